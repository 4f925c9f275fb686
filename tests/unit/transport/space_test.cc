// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/space.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

using dt::shm::Space;

TEST_CASE("Space: first fit, aligned, coalescing") {
  Space space(10, 110);
  CHECK(space.take(20, 1) == 10);
  CHECK(space.take(16, 16) == 32);  // 30 and 31 stay free
  CHECK(space.take(2, 1) == 30);
  CHECK(space.take(63, 1) == -1);
  CHECK(space.take(62, 1) == 48);
  CHECK(space.take(1, 1) == -1);
  space.give(32, 16);
  space.give(10, 20);
  CHECK(space.take(21, 1) == -1);
  space.give(30, 2);
  CHECK(space.take(38, 1) == 10);
}

TEST_CASE("Space: random takes never overlap and all comes back") {
  struct Taken {
    int64_t offset;
    int64_t bytes;
  };
  constexpr int64_t kBegin = 4096;
  constexpr int64_t kEnd = 1 << 20;
  Space space(kBegin, kEnd);
  std::vector<Taken> taken;
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    if (!taken.empty() && random() % 2 == 0) {
      const size_t victim = random() % taken.size();
      space.give(taken[victim].offset, taken[victim].bytes);
      taken.erase(taken.begin() + static_cast<ptrdiff_t>(victim));
      continue;
    }
    const int64_t bytes = 1 + random() % 30'000;
    const int64_t alignment = int64_t{1} << random() % 14;
    const int64_t offset = space.take(bytes, alignment);
    if (offset < 0) continue;
    CHECK(offset % alignment == 0);
    CHECK(std::none_of(taken.begin(), taken.end(), [&](const Taken& other) {
      return offset < other.offset + other.bytes && other.offset < offset + bytes;
    }));
    taken.push_back({offset, bytes});
  }
  for (const Taken& one : taken) space.give(one.offset, one.bytes);
  CHECK(space.take(kEnd - kBegin, 1) == kBegin);
}
