// SPDX-License-Identifier: Apache-2.0
#include "training/bucket_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace dt::training {
namespace {

/// The bucket that one (dtype, device) is filling.
struct Accumulator {
  Dtype dtype;
  int32_t device;
  std::vector<int32_t> indices;
  int64_t bytes = 0;
  size_t cap = 0;    // index into caps
  size_t first = 0;  // position of the first parameter in the order
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
      accumulators.push_back({param.dtype, param.device, {}, 0, 0, 0});
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
  struct Last {
    Dtype dtype;
    uintptr_t begin;
    uintptr_t end;
  };
  std::vector<Last> lasts;  // few: one per dtype
  std::vector<Neighbour> found;
  for (const int32_t index : order) {
    const PlanParam& param = params[static_cast<size_t>(index)];
    if (param.count == 0) {
      found.push_back(Neighbour::kAny);
      continue;
    }
    const auto begin = reinterpret_cast<uintptr_t>(places[static_cast<size_t>(index)]);
    const uintptr_t end = begin + static_cast<uintptr_t>(param.count * dtype_bytes(param.dtype));
    auto last = std::find_if(lasts.begin(), lasts.end(),
                             [&](const Last& each) { return each.dtype == param.dtype; });
    Neighbour neighbour = Neighbour::kNone;
    if (last == lasts.end()) {
      last = lasts.insert(last, {param.dtype, begin, end});
    } else if (end == last->begin) {
      neighbour = Neighbour::kBefore;
    } else if (begin == last->end) {
      neighbour = Neighbour::kBehind;
    }
    found.push_back(neighbour);
    *last = {param.dtype, begin, end};
  }
  return found;
}

std::vector<std::vector<int32_t>> plan_in_place(std::span<const PlanParam> params,
                                                std::span<const int64_t> caps,
                                                std::span<const int32_t> order,
                                                std::span<const Neighbour> neighbours) {
  std::vector<std::vector<int32_t>> buckets;
  std::vector<Accumulator> accumulators;
  auto close = [&](Accumulator& filling) {
    buckets.push_back(std::exchange(filling.indices, {}));
    filling.bytes = 0;
    filling.cap = std::min(filling.cap + 1, caps.size() - 1);
  };
  for (size_t position = 0; position < order.size(); ++position) {
    const PlanParam& param = params[static_cast<size_t>(order[position])];
    if (param.sparse) continue;
    auto filling = std::find_if(accumulators.begin(), accumulators.end(),
                                [&](const Accumulator& each) { return each.dtype == param.dtype; });
    if (filling == accumulators.end()) {
      filling = accumulators.insert(filling, {param.dtype, param.device, {}, 0, 0, 0});
    }
    if (!filling->indices.empty() && neighbours[position] == Neighbour::kNone) close(*filling);
    if (filling->indices.empty()) filling->first = position;
    filling->indices.push_back(order[position]);
    filling->bytes += param.count * dtype_bytes(param.dtype);
    if (filling->bytes >= caps[filling->cap]) close(*filling);
  }
  std::sort(accumulators.begin(), accumulators.end(),
            [](const Accumulator& a, const Accumulator& b) { return a.first < b.first; });
  for (Accumulator& left : accumulators) {
    if (!left.indices.empty()) close(left);
  }
  return buckets;
}

}  // namespace dt::training
