// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/space.h"

#include <iterator>

namespace dt::shm {

Space::Space(int64_t begin, int64_t end) {
  if (begin < end) gaps_[begin] = end;
}

int64_t Space::take(int64_t bytes, int64_t alignment) {
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    const int64_t begin = gap->first;
    const int64_t end = gap->second;
    const int64_t offset = (begin + alignment - 1) & ~(alignment - 1);
    if (offset > end || end - offset < bytes) continue;
    gaps_.erase(gap);
    if (begin < offset) gaps_[begin] = offset;
    if (offset + bytes < end) gaps_[offset + bytes] = end;
    return offset;
  }
  return -1;
}

void Space::give(int64_t offset, int64_t bytes) {
  int64_t end = offset + bytes;
  auto next = gaps_.lower_bound(offset);
  if (next != gaps_.end() && next->first == end) {
    end = next->second;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin()) {
    auto before = std::prev(next);
    if (before->second == offset) {
      before->second = end;
      return;
    }
  }
  gaps_[offset] = end;
}

}  // namespace dt::shm
