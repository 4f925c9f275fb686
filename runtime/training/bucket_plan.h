// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"

namespace dt::training {

/// What the plan needs to know of one parameter.
struct PlanParam {
  int64_t count = 0;  ///< elements
  Dtype dtype = Dtype::kF32;
  int32_t device = -1;  ///< -1 host, else the CUDA ordinal
  bool sparse = false;  ///< gets a bucket of its own
};

struct BucketPlan {
  /// Parameter indices of each bucket, in the order they were fed.
  std::vector<std::vector<int32_t>> buckets;
  /// Bytes at which each bucket closed or would have closed; 0 for a sparse one.
  std::vector<int64_t> caps;
};

/// Assigns parameters to buckets as PyTorch's DistributedDataParallel does
/// (compute_bucket_assignment_by_size).
///
/// Words: parameters are fed in `order` (empty: by index). Each (dtype, device) fills one bucket at
/// a time; a bucket closes when its bytes reach the cap in force, and that (dtype, device) moves to
/// the next cap, staying at the last. Nothing is split, padding counts nothing. Without an order
/// the buckets are sorted by their smallest index; with one they come in the order they closed,
/// unfinished ones last, in the order of their first parameter.
///
/// @param caps bytes, at least one.
BucketPlan plan_buckets(std::span<const PlanParam> params, std::span<const int64_t> caps,
                        std::span<const int32_t> order);

/// Where a gradient lies next to the previous one of its dtype in the order of a plan.
enum class Neighbour : int8_t { kNone, kBefore, kBehind, kAny };

/// Of gradients that lie where `places` says, for each position in `order`: whether it ends where
/// the previous one of its dtype begins, or begins where that one ends. Parameters without elements
/// get kAny, and are skipped as previous ones.
std::vector<Neighbour> find_neighbours(std::span<const PlanParam> params,
                                       std::span<const int32_t> order,
                                       std::span<char* const> places);

/// As plan_buckets() with an order, but each bucket is one contiguous range of memory: it also
/// closes where the next gradient of its dtype is not adjacent. Sparse parameters are in none.
std::vector<std::vector<int32_t>> plan_in_place(std::span<const PlanParam> params,
                                                std::span<const int64_t> caps,
                                                std::span<const int32_t> order,
                                                std::span<const Neighbour> neighbours);

/// Bytes that every gradient's place in a bucket is aligned to: a pair of cache lines, and what
/// NCCL likes.
inline constexpr int64_t kGradientAlignment = 256;

/// Elements from a parameter's place in a bucket to the next one's.
inline int64_t padded_count(int64_t count, Dtype dtype) {
  const int64_t multiple = kGradientAlignment / dtype_bytes(dtype);
  return (count + multiple - 1) / multiple * multiple;
}

}  // namespace dt::training
