// SPDX-License-Identifier: Apache-2.0
#include "training/shard_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "training/bucket_plan.h"

using dt::Dtype;
using dt::training::pieces_of;
using dt::training::plan_shards;
using dt::training::ShardBucket;
using dt::training::ShardParam;
using dt::training::ShardPiece;

namespace {

std::vector<int32_t> reversed(size_t count) {
  std::vector<int32_t> order(count);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

/// The parameters of all buckets, in order, are those of `order` with the same dtype and unit.
void check_layout(const std::vector<ShardBucket>& buckets, const std::vector<ShardParam>& params,
                  int64_t cap) {
  std::vector<int32_t> seen;
  for (const ShardBucket& bucket : buckets) {
    REQUIRE(!bucket.params.empty());
    int64_t at = 0;
    int64_t bytes = 0;
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      const ShardParam& param = params[static_cast<size_t>(bucket.params[i])];
      CHECK(bytes < cap);  // it was open
      CHECK(bucket.starts[i] == at);
      CHECK(param.unit == bucket.unit);
      CHECK(param.dtype == bucket.dtype);
      at += dt::training::padded_count(param.count, param.dtype);
      bytes += param.count * dt::dtype_bytes(param.dtype);
      seen.push_back(bucket.params[i]);
    }
    CHECK(bucket.count >= at);
  }
  std::sort(seen.begin(), seen.end());
  std::vector<int32_t> all(params.size());
  std::iota(all.begin(), all.end(), 0);
  CHECK(seen == all);
}

/// Each bucket is cut in order, into equal parts or within a granule of a rank's share.
void check_cuts(const std::vector<ShardBucket>& buckets, const std::vector<ShardParam>& params,
                int32_t ranks) {
  for (const ShardBucket& bucket : buckets) {
    REQUIRE(bucket.cuts.size() == static_cast<size_t>(ranks) + 1);
    CHECK(bucket.cuts.front() == 0);
    CHECK(bucket.cuts.back() == bucket.count);
    CHECK(std::is_sorted(bucket.cuts.begin(), bucket.cuts.end()));
    int64_t largest = 1;
    int64_t total = 0;
    for (const int32_t index : bucket.params) {
      const ShardParam& param = params[static_cast<size_t>(index)];
      largest = std::max(largest, param.granule);
      total += param.count;
    }
    if (largest == 1) {
      for (int32_t rank = 0; rank < ranks; ++rank) CHECK(bucket.part(rank) == bucket.part(0));
      CHECK(bucket.part(0) * dt::dtype_bytes(bucket.dtype) % 64 == 0);
      continue;
    }
    std::vector<int64_t> parts(static_cast<size_t>(ranks));
    for (const ShardPiece& piece : pieces_of({&bucket, 1}, params)) {
      parts[static_cast<size_t>(piece.owner)] += piece.count;
    }
    for (const int64_t part : parts) {
      CHECK(std::abs(part * ranks - total) <= (largest + 1) * ranks);
    }
  }
}

/// Pieces cover every parameter once and start at granules.
void check_pieces(const std::vector<ShardPiece>& pieces, const std::vector<ShardParam>& params,
                  int32_t ranks) {
  std::vector<int64_t> covered(params.size());
  std::vector<int32_t> last_owner(params.size(), -1);
  for (const ShardPiece& piece : pieces) {
    const auto index = static_cast<size_t>(piece.param);
    CHECK(piece.count > 0);
    CHECK(piece.owner < ranks);
    CHECK(piece.owner > last_owner[index]);  // at most one piece for a rank
    CHECK(piece.offset == covered[index]);
    CHECK(piece.offset % params[index].granule == 0);
    last_owner[index] = piece.owner;
    covered[index] += piece.count;
  }
  for (size_t i = 0; i < params.size(); ++i) CHECK(covered[i] == params[i].count);
}

}  // namespace

TEST_CASE("plan_shards: one vector of 1000 for 3 ranks has equal parts in memory") {
  const std::vector<ShardParam> params = {{1000, Dtype::kF32, 1, 0}};
  const auto buckets = plan_shards(params, 1 << 20, reversed(1), 3);
  REQUIRE(buckets.size() == 1);
  CHECK(buckets[0].count == 1056);  // 1024 with padding, in three parts of 64-byte lines
  CHECK(pieces_of(buckets, params) ==
        std::vector<ShardPiece>{{0, 0, 0, 352}, {0, 1, 352, 352}, {0, 2, 704, 296}});
}

TEST_CASE("plan_shards: rows stay whole, and a whole parameter has one owner") {
  const std::vector<ShardParam> rows = {{30, Dtype::kF32, 10, 0}};
  CHECK(pieces_of(plan_shards(rows, 1 << 20, reversed(1), 2), rows) ==
        std::vector<ShardPiece>{{0, 0, 0, 10}, {0, 1, 10, 20}});
  const std::vector<ShardParam> matrix = {{640, Dtype::kF32, 64, 0}};
  CHECK(pieces_of(plan_shards(matrix, 1 << 20, reversed(1), 4), matrix) ==
        std::vector<ShardPiece>{
            {0, 0, 0, 128}, {0, 1, 128, 192}, {0, 2, 320, 128}, {0, 3, 448, 192}});
  const std::vector<ShardParam> whole(4, ShardParam{256, Dtype::kF32, 256, 0});
  CHECK(pieces_of(plan_shards(whole, 1 << 20, reversed(4), 2), whole) ==
        std::vector<ShardPiece>{{0, 1, 0, 256}, {1, 1, 0, 256}, {2, 0, 0, 256}, {3, 0, 0, 256}});
}

TEST_CASE("plan_shards: a bucket closes at the cap and where a unit ends, each dtype has its own") {
  const std::vector<ShardParam> params = {{100, Dtype::kF32, 1, 0},  {100, Dtype::kF32, 1, 1},
                                          {100, Dtype::kBf16, 1, 1}, {100, Dtype::kF32, 1, 1},
                                          {100, Dtype::kF32, 1, 1},  {0, Dtype::kF32, 1, 2}};
  const auto buckets = plan_shards(params, 800, reversed(params.size()), 2);
  std::vector<std::vector<int32_t>> got;
  for (const ShardBucket& bucket : buckets) got.push_back(bucket.params);
  CHECK(got == std::vector<std::vector<int32_t>>{{5}, {4, 3}, {2}, {1}, {0}});
}

TEST_CASE("plan_shards: 2000 random models") {
  std::mt19937 random(27);
  const auto below = [&](int64_t limit) {
    return std::uniform_int_distribution<int64_t>(0, limit - 1)(random);
  };
  const Dtype dtypes[] = {Dtype::kF32, Dtype::kBf16, Dtype::kF64, Dtype::kF16};
  for (int model = 0; model < 2000; ++model) {
    CAPTURE(model);
    std::vector<ShardParam> params(static_cast<size_t>(1 + below(12)));
    for (ShardParam& param : params) {
      param.count = below(4) == 0 ? below(3) : below(5000);
      param.dtype = dtypes[below(below(2) == 0 ? 1 : 4)];
      param.granule = below(3) == 0 ? 1 + below(700) : 1;
      param.unit = static_cast<int32_t>(below(3));
    }
    std::vector<int32_t> order = reversed(params.size());
    if (below(2) == 0) std::shuffle(order.begin(), order.end(), random);
    const int64_t cap = 1 + below(30'000);
    const auto ranks = static_cast<int32_t>(1 + below(9));
    const auto buckets = plan_shards(params, cap, order, ranks);
    check_layout(buckets, params, cap);
    check_cuts(buckets, params, ranks);
    check_pieces(pieces_of(buckets, params), params, ranks);
  }
}
