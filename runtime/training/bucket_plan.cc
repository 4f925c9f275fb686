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

std::vector<Neighbour> find_neighbours(std::span<const PlanParam> params,
                                       std::span<const int32_t> order,
                                       std::span<char* const> places) {
  std::vector<Neighbour> found;
  const PlanParam* last = nullptr;
  uintptr_t begin = 0, end = 0;  // of the last one
  for (const int32_t index : order) {
    const PlanParam& param = params[static_cast<size_t>(index)];
    if (param.count == 0) {
      found.push_back(Neighbour::kAny);
      continue;
    }
    const auto place = reinterpret_cast<uintptr_t>(places[static_cast<size_t>(index)]);
    const uintptr_t behind = place + static_cast<uintptr_t>(param.count * dtype_bytes(param.dtype));
    const bool alike = last != nullptr && last->dtype == param.dtype;
    found.push_back(alike && behind == begin ? Neighbour::kBefore
                    : alike && place == end  ? Neighbour::kBehind
                                             : Neighbour::kNone);
    last = &param;
    begin = place;
    end = behind;
  }
  return found;
}

std::vector<std::vector<int32_t>> plan_in_place(std::span<const PlanParam> params,
                                                std::span<const int64_t> caps,
                                                std::span<const int32_t> order,
                                                std::span<const Neighbour> neighbours) {
  std::vector<std::vector<int32_t>> buckets;
  std::vector<std::pair<Dtype, size_t>> seen;  // buckets of each dtype so far
  auto count_of = [&](Dtype dtype) -> size_t& {
    for (auto& [each, count] : seen) {
      if (each == dtype) return count;
    }
    return seen.emplace_back(dtype, 0).second;
  };
  Dtype dtype = Dtype::kF32;  // of the last bucket, like the next two
  int64_t bytes = 0;
  int64_t cap = 0;
  for (size_t position = 0; position < order.size(); ++position) {
    const PlanParam& param = params[static_cast<size_t>(order[position])];
    if (param.sparse) continue;
    const bool joins = !buckets.empty() && param.dtype == dtype &&
                       neighbours[position] != Neighbour::kNone &&
                       (bytes < cap || param.count == 0);
    if (!joins) {
      size_t& count = count_of(param.dtype);
      cap = caps[std::min(count++, caps.size() - 1)];
      dtype = param.dtype;
      bytes = 0;
      buckets.emplace_back();
    }
    buckets.back().push_back(order[position]);
    bytes += param.count * dtype_bytes(dtype);
  }
  return buckets;
}

}  // namespace dt::training
