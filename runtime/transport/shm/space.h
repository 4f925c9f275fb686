// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

namespace dt::shm {

/// Which parts of a section are taken: first fit, coalescing. Knows offsets only; pure.
class Space {
 public:
  Space() : Space(0, 0) {}
  /// Manages [begin, end).
  Space(int64_t begin, int64_t end);

  /// Offset of `bytes` free bytes at a multiple of `alignment` (a power of two), now taken; -1 when
  /// there is no such gap.
  int64_t take(int64_t bytes, int64_t alignment);
  /// Gives back exactly what take() gave.
  void give(int64_t offset, int64_t bytes);

 private:
  std::map<int64_t, int64_t> gaps_;  ///< begin -> end
};

}  // namespace dt::shm
