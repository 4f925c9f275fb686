// SPDX-License-Identifier: Apache-2.0
#include "training/sample_order.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

using dt::training::BlockOrder;
using dt::training::epoch_key;
using dt::training::Permutation;
using dt::training::Weights;

namespace {

template <class Order>
std::vector<int64_t> all_of(const Order& order, int64_t size) {
  std::vector<int64_t> all(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) all[static_cast<size_t>(i)] = order.at(i);
  return all;
}

bool each_once(std::vector<int64_t> all) {
  std::sort(all.begin(), all.end());
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("mix: as splitmix64 with seed 0 begins") {
  // From the generator's published code: its state grows by the golden ratio before each output.
  CHECK(dt::training::mix(0x9e3779b97f4a7c15) == 0xe220a8397b1dcdaf);
  CHECK(dt::training::mix(0x9e3779b97f4a7c15 * 2) == 0x6e789e6aa1b965f4);
}

TEST_CASE("Permutation: each value once, and back, for every small size") {
  for (int64_t size = 1; size <= 300; ++size) {
    for (uint64_t key = 0; key < 3; ++key) {
      const Permutation order(size, epoch_key(key, size));
      CAPTURE(size);
      REQUIRE(each_once(all_of(order, size)));
      for (int64_t i = 0; i < size; ++i) REQUIRE(order.position_of(order.at(i)) == i);
    }
  }
}

TEST_CASE("Permutation: every value comes to every place about as often") {
  constexpr int64_t kSize = 10;
  constexpr int64_t kKeys = 20000;
  std::vector<int64_t> counts(kSize * kSize);
  for (int64_t key = 0; key < kKeys; ++key) {
    const Permutation order(kSize, epoch_key(7, key));
    for (int64_t i = 0; i < kSize; ++i) ++counts[static_cast<size_t>(i * kSize + order.at(i))];
  }
  // 2000 expected; the standard deviation is sqrt(20000 x 0.1 x 0.9) = 42.
  for (const int64_t count : counts) {
    CHECK(count > 2000 - 6 * 42);
    CHECK(count < 2000 + 6 * 42);
  }
}

TEST_CASE("Permutation: all orders of three and four come about as often") {
  for (const int64_t size : {3, 4}) {
    std::map<std::vector<int64_t>, int64_t> counts;
    for (int64_t key = 0; key < 24000; ++key) {
      ++counts[all_of(Permutation(size, epoch_key(3, key)), size)];
    }
    const size_t orders = size == 3 ? 6 : 24;
    CHECK(counts.size() == orders);
    const double expected = 24000.0 / static_cast<double>(orders);
    for (const auto& [order, count] : counts) {
      CHECK(std::abs(static_cast<double>(count) - expected) < 6 * std::sqrt(expected));
    }
  }
}

TEST_CASE("Permutation: of 10^9 and of 2^59 samples") {
  for (const int64_t size : {int64_t{1000000000}, std::numeric_limits<int64_t>::max() / 16}) {
    const Permutation order(size, epoch_key(1, 2));
    std::vector<int64_t> seen;
    for (int64_t i = 0; i < 10000; ++i) {
      const int64_t position = size / 10000 * i;
      const int64_t value = order.at(position);
      REQUIRE(value >= 0);
      REQUIRE(value < size);
      REQUIRE(order.position_of(value) == position);
      seen.push_back(value);
    }
    // Spread evenly: a tenth of them in each tenth, by 6 standard deviations of 30.
    for (int64_t tenth = 0; tenth < 10; ++tenth) {
      const auto inside = std::count_if(seen.begin(), seen.end(), [&](int64_t value) {
        return value / (size / 10 + 1) == tenth;
      });
      CHECK(std::abs(static_cast<double>(inside) - 1000) < 180);
    }
  }
}

TEST_CASE("BlockOrder: each sample once, for every small shape") {
  for (int64_t size = 1; size <= 40; ++size) {
    for (int64_t block = 1; block <= size; ++block) {
      for (const int64_t window : {int64_t{1}, int64_t{2}, int64_t{7}, size, 2 * size}) {
        CAPTURE(size);
        CAPTURE(block);
        CAPTURE(window);
        REQUIRE(each_once(all_of(BlockOrder(size, block, window, epoch_key(5, size)), size)));
      }
    }
  }
}

TEST_CASE("BlockOrder: with a window of 1 blocks stay whole and in order inside") {
  constexpr int64_t kSize = 1003;
  constexpr int64_t kBlock = 10;
  const std::vector<int64_t> all = all_of(BlockOrder(kSize, kBlock, 1, epoch_key(0, 0)), kSize);
  std::vector<int64_t> blocks;
  for (size_t at = 0; at < all.size();) {
    const int64_t first = all[at];
    REQUIRE(first % kBlock == 0);
    blocks.push_back(first / kBlock);
    const int64_t end = std::min(first + kBlock, kSize);
    for (int64_t sample = first; sample < end; ++sample, ++at) REQUIRE(all[at] == sample);
  }
  CHECK(each_once(blocks));
  CHECK_FALSE(std::is_sorted(blocks.begin(), blocks.end()));
}

TEST_CASE("BlockOrder: a window holds the samples of its blocks, mixed") {
  constexpr int64_t kSize = 10000;
  const BlockOrder order(kSize, 100, 400, epoch_key(0, 9));
  const BlockOrder unmixed(kSize, 100, 1, epoch_key(0, 9));
  const std::vector<int64_t> mixed = all_of(order, kSize);
  const std::vector<int64_t> blocks = all_of(unmixed, kSize);
  int64_t moved = 0;
  for (size_t begin = 0; begin < kSize; begin += 400) {
    std::vector<int64_t> a(mixed.begin() + static_cast<ptrdiff_t>(begin),
                           mixed.begin() + static_cast<ptrdiff_t>(begin + 400));
    std::vector<int64_t> b(blocks.begin() + static_cast<ptrdiff_t>(begin),
                           blocks.begin() + static_cast<ptrdiff_t>(begin + 400));
    moved += a != b ? 1 : 0;
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    REQUIRE(a == b);
  }
  CHECK(moved == 25);
}

TEST_CASE("Weights: samples come as often as they weigh, those of weight 0 never") {
  const std::vector<double> weights = {0, 1, 0, 2.5, 6.5, 0};
  const Weights draws(weights.data(), 6);
  std::vector<int64_t> counts(6);
  constexpr int64_t kDraws = 100000;
  for (int64_t i = 0; i < kDraws; ++i)
    ++counts[static_cast<size_t>(draws.draw(epoch_key(4, 1), i))];
  for (size_t i = 0; i < weights.size(); ++i) {
    const double share = weights[i] / 10;
    const double deviation = std::sqrt(kDraws * share * (1 - share));
    CHECK(std::abs(static_cast<double>(counts[i]) - kDraws * share) <= 6 * deviation);
  }
}

TEST_CASE("Weights: only their ratio counts, from the smallest double to the largest") {
  const std::vector<double> base = {3, 1, 4, 1, 5};
  const Weights draws(base.data(), 5);
  for (const int exponent : {-1074, -500, 0, 500, 1020}) {
    std::vector<double> scaled;
    for (const double weight : base) scaled.push_back(std::ldexp(weight, exponent));
    const Weights same(scaled.data(), 5);
    CAPTURE(exponent);
    CHECK(same.digest() == draws.digest());
    for (int64_t i = 0; i < 1000; ++i) REQUIRE(same.draw(9, i) == draws.draw(9, i));
  }
  const std::vector<double> largest(5, std::numeric_limits<double>::max());
  const Weights equal(largest.data(), 5);
  std::vector<int64_t> counts(5);
  for (int64_t i = 0; i < 10000; ++i) ++counts[static_cast<size_t>(equal.draw(9, i))];
  for (const int64_t count : counts) CHECK(std::abs(static_cast<double>(count) - 2000) < 6 * 40);
}

TEST_CASE("Weights: one sample, and a weight far below the others") {
  const double one = 0.25;
  CHECK(Weights(&one, 1).draw(1, 1000000) == 0);
  const std::vector<double> far = {1e300, 1e-300};
  const Weights draws(far.data(), 2);
  for (int64_t i = 0; i < 1000; ++i) REQUIRE(draws.draw(2, i) == 0);
}

TEST_CASE("BlockOrder, Weights: what the formulas of docs/sampler.md give") {
  // Worked out in Python: tests/bindings/python/sampler_test.py.
  CHECK(all_of(BlockOrder(10, 3, 4, epoch_key(5, 0)), 10) ==
        std::vector<int64_t>{2, 1, 0, 6, 7, 8, 4, 3, 5, 9});
  const std::vector<double> weights = {0, 1, 2, 3};
  const Weights draws(weights.data(), 4);
  std::vector<int64_t> drawn;
  for (int64_t i = 0; i < 8; ++i) drawn.push_back(draws.draw(epoch_key(5, 0), i));
  CHECK(drawn == std::vector<int64_t>{3, 3, 3, 2, 1, 2, 2, 2});
}
