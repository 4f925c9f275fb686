// SPDX-License-Identifier: Apache-2.0
#include "training/shard_plan.h"

#include <algorithm>
#include <tuple>

#include "training/bucket_plan.h"

namespace dt::training {
namespace {

constexpr int64_t kEqualBytes = 64;  // that parts of equal size are multiples of: a cache line

/// Parts of one size, which the plain collectives take. The bucket grows to a multiple of it.
void cut_equally(ShardBucket* bucket, int32_t ranks) {
  const int64_t multiple = kEqualBytes / dtype_bytes(bucket->dtype);
  const int64_t part = (bucket->count + ranks * multiple - 1) / (ranks * multiple) * multiple;
  for (int32_t rank = 0; rank <= ranks; ++rank) bucket->cuts.push_back(part * rank);
  bucket->count = part * ranks;
}

/// Each cut is the one nearest to an equal share of the elements. Padding does not count as
/// elements, and stays with the parameter before it.
void cut_at_granules(ShardBucket* bucket, std::span<const ShardParam> params, int32_t ranks) {
  std::vector<int64_t> before = {0};  // elements before each parameter, then all
  for (const int32_t index : bucket->params) {
    before.push_back(before.back() + params[static_cast<size_t>(index)].count);
  }
  const int64_t total = before.back();
  before.pop_back();
  bucket->cuts.push_back(0);
  for (int32_t rank = 1; rank < ranks; ++rank) {
    const int64_t share = total / ranks * rank + total % ranks * rank / ranks;
    const auto place = static_cast<size_t>(std::upper_bound(before.begin(), before.end(), share) -
                                           before.begin() - 1);
    const ShardParam& param = params[static_cast<size_t>(bucket->params[place])];
    const int64_t offset = share - before[place];
    const int64_t below = offset / param.granule * param.granule;
    const int64_t above = below + std::min(param.granule, param.count - below);
    const int64_t cut = offset - below <= above - offset ? below : above;
    const int64_t next =
        place + 1 < bucket->starts.size() ? bucket->starts[place + 1] : bucket->count;
    bucket->cuts.push_back(cut < param.count ? bucket->starts[place] + cut : next);
  }
  bucket->cuts.push_back(bucket->count);
}

void cut(ShardBucket* bucket, std::span<const ShardParam> params, int32_t ranks) {
  const bool anywhere =
      std::all_of(bucket->params.begin(), bucket->params.end(),
                  [&](int32_t index) { return params[static_cast<size_t>(index)].granule == 1; });
  if (anywhere) {
    cut_equally(bucket, ranks);
  } else {
    cut_at_granules(bucket, params, ranks);
  }
}

}  // namespace

std::vector<ShardBucket> plan_shards(std::span<const ShardParam> params, int64_t cap_bytes,
                                     std::span<const int32_t> order, int32_t ranks) {
  std::vector<ShardBucket> closed;
  std::vector<ShardBucket> open;  // of the unit at hand: one for each dtype, in order of arrival
  std::vector<int64_t> bytes;     // of each open one, without padding
  const auto close = [&](size_t place) {
    cut(&open[place], params, ranks);
    closed.push_back(std::move(open[place]));
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(place));
    bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(place));
  };
  for (const int32_t index : order) {
    const ShardParam& param = params[static_cast<size_t>(index)];
    while (!open.empty() && open[0].unit != param.unit) close(0);
    const auto found = std::find_if(open.begin(), open.end(), [&](const ShardBucket& bucket) {
      return bucket.dtype == param.dtype;
    });
    const auto place = static_cast<size_t>(found - open.begin());
    if (found == open.end()) {
      open.emplace_back();
      open.back().unit = param.unit;
      open.back().dtype = param.dtype;
      bytes.push_back(0);
    }
    ShardBucket& bucket = open[place];
    bucket.params.push_back(index);
    bucket.starts.push_back(bucket.count);
    bucket.count += padded_count(param.count, param.dtype);
    bytes[place] += param.count * dtype_bytes(param.dtype);
    if (bytes[place] >= cap_bytes) close(place);
  }
  while (!open.empty()) close(0);
  return closed;
}

std::vector<ShardPiece> pieces_of(std::span<const ShardBucket> buckets,
                                  std::span<const ShardParam> params) {
  std::vector<ShardPiece> pieces;
  for (const ShardBucket& bucket : buckets) {
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      const int64_t start = bucket.starts[i];
      const int64_t end = start + params[static_cast<size_t>(bucket.params[i])].count;
      // The first rank whose part ends behind the start.
      auto end_of_part = std::upper_bound(bucket.cuts.begin() + 1, bucket.cuts.end(), start);
      for (int64_t at = start; at < end; ++end_of_part) {
        const int64_t to = std::min(end, *end_of_part);
        if (to == at) continue;  // a rank without a part
        pieces.push_back({bucket.params[i],
                          static_cast<int32_t>(end_of_part - bucket.cuts.begin() - 1), at - start,
                          to - at});
        at = to;
      }
    }
  }
  std::sort(pieces.begin(), pieces.end(), [](const ShardPiece& a, const ShardPiece& b) {
    return std::tie(a.param, a.offset) < std::tie(b.param, b.offset);
  });
  return pieces;
}

}  // namespace dt::training
