// SPDX-License-Identifier: Apache-2.0
#include "training/bucket_plan.h"

#include <algorithm>
#include <numeric>

namespace dt::training {
namespace {

/// The bucket that one (dtype, device) is filling.
struct Accumulator {
  Dtype dtype;
  int32_t device;
  std::vector<int32_t> indices;
  int64_t bytes = 0;
  size_t cap = 0;  // index into caps
};

void sort_by_smallest_index(BucketPlan& plan) {
  std::vector<size_t> by(plan.buckets.size());
  std::iota(by.begin(), by.end(), size_t{0});
  auto smallest = [&](size_t bucket) {
    return *std::min_element(plan.buckets[bucket].begin(), plan.buckets[bucket].end());
  };
  std::stable_sort(by.begin(), by.end(),
                   [&](size_t a, size_t b) { return smallest(a) < smallest(b); });
  BucketPlan sorted;
  for (const size_t bucket : by) {
    sorted.buckets.push_back(std::move(plan.buckets[bucket]));
    sorted.caps.push_back(plan.caps[bucket]);
  }
  plan = std::move(sorted);
}

}  // namespace

BucketPlan plan_buckets(std::span<const PlanParam> params, std::span<const int64_t> caps,
                        std::span<const int32_t> order) {
  BucketPlan plan;
  std::vector<Accumulator> accumulators;  // few: one per (dtype, device)
  auto close = [&](std::vector<int32_t> indices, int64_t cap) {
    plan.buckets.push_back(std::move(indices));
    plan.caps.push_back(cap);
  };
  for (size_t position = 0; position < params.size(); ++position) {
    const int32_t index = order.empty() ? static_cast<int32_t>(position) : order[position];
    const PlanParam& param = params[static_cast<size_t>(index)];
    if (param.sparse) {
      close({index}, 0);
      continue;
    }
    auto filling = std::find_if(
        accumulators.begin(), accumulators.end(),
        [&](const Accumulator& a) { return a.dtype == param.dtype && a.device == param.device; });
    if (filling == accumulators.end()) {
      accumulators.push_back({param.dtype, param.device, {}, 0, 0});
      filling = accumulators.end() - 1;
    }
    filling->indices.push_back(index);
    filling->bytes += param.count * dtype_bytes(param.dtype);
    if (filling->bytes >= caps[filling->cap]) {
      close(std::move(filling->indices), caps[filling->cap]);
      filling->indices.clear();
      filling->bytes = 0;
      filling->cap = std::min(filling->cap + 1, caps.size() - 1);
    }
  }
  for (Accumulator& left : accumulators) {
    if (!left.indices.empty()) close(std::move(left.indices), caps[left.cap]);
  }
  if (order.empty()) sort_by_smallest_index(plan);
  return plan;
}

}  // namespace dt::training
