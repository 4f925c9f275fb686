// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"

namespace dt::training {

/// What the plan of shards needs to know of one parameter.
struct ShardParam {
  int64_t count = 0;  ///< elements
  Dtype dtype = Dtype::kF32;
  int64_t granule = 1;  ///< elements, >= 1: the parameter is cut at multiples of it only
  int32_t unit = 0;     ///< parameters of a unit are gathered together
};

/// Parameters of one unit and dtype that lie side by side in memory, cut into a part for each rank.
struct ShardBucket {
  int32_t unit = 0;
  Dtype dtype = Dtype::kF32;
  std::vector<int32_t> params;  ///< in the order of memory
  std::vector<int64_t> starts;  ///< of each of these, in elements from the bucket's start
  int64_t count = 0;            ///< elements with padding
  /// [ranks + 1] elements from the bucket's start: rank r owns those from cuts[r] to cuts[r + 1].
  std::vector<int64_t> cuts;

  /// Whether all parts have one size.
  bool is_equally_cut() const {
    for (size_t i = 2; i < cuts.size(); ++i) {
      if (cuts[i] - cuts[i - 1] != cuts[1]) return false;
    }
    return true;
  }
  int64_t part(int32_t rank) const {
    return cuts[static_cast<size_t>(rank) + 1] - cuts[static_cast<size_t>(rank)];
  }
};

/// A part of a parameter that one rank owns.
struct ShardPiece {
  int32_t param = 0;
  int32_t owner = 0;   ///< rank
  int64_t offset = 0;  ///< elements from the parameter's start
  int64_t count = 0;   ///< elements, > 0

  bool operator==(const ShardPiece&) const = default;
};

/// Lays parameters into buckets and cuts each bucket into as many parts as there are ranks: into
/// equal ones, multiples of 64 bytes, where all granules are 1, else so that the elements that a
/// rank gets of a bucket differ from an equal share by at most one granule and one element.
///
/// A bucket takes parameters in `order`, those of one unit and dtype, and closes when its bytes
/// reach the cap or a parameter of another unit comes. Buckets stand in the order in which they
/// close. Nothing but the arguments goes in, so every rank, and whoever reads a checkpoint, finds
/// the same plan.
///
/// @param cap_bytes > 0.
/// @param order     every index of `params` once.
/// @param ranks     > 0.
std::vector<ShardBucket> plan_shards(std::span<const ShardParam> params, int64_t cap_bytes,
                                     std::span<const int32_t> order, int32_t ranks);

/// Who owns what, sorted by parameter and offset. A rank owns at most one piece of a parameter.
std::vector<ShardPiece> pieces_of(std::span<const ShardBucket> buckets,
                                  std::span<const ShardParam> params);

}  // namespace dt::training
