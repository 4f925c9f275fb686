// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "transport/shm/section.h"

namespace dt::collective {

/// Where the ways of moving data on one host part, of messages that are too large to travel with
/// their announcement. Each member chooses and cuts by itself, so all members have these alike: the
/// join compares the keys of [host] that they come from, and Group::open() compares them once more.
///
/// The values are what ships. They were measured on two processors with 32 MiB of L3;
/// `dt bench --tune` measures whether others do better on a machine.
struct Thresholds {
  /// A message that goes through the ring is cut into `segments` pieces, so that even small ones
  /// are pipelined, but none is below `segment_bytes` or above a slot. Whole cache lines.
  int64_t segment_bytes = 64 << 10;
  int64_t segments = 8;
  /// Up to so many members each sums all contributions itself; with more the sum is shared, since
  /// there would be too much to read.
  int64_t exchange_ranks = 2;
  /// From this size of all buffers together on, results that go elsewhere than the contributions
  /// are written past the caches, which would not hold them anyway. Measured with 2, 4 and 8
  /// contributions: below 48 MiB usual stores are faster, from 64 MiB on these.
  int64_t streaming_bytes = 64 << 20;
  /// What is done with shared buffers between two looks at interrupts and other communicators.
  int64_t push_bytes = 512 << 10;
  /// From this size on a message out of a shared buffer is read where it lies. Below, the copy
  /// through the ring costs about as much as finding that buffer; it is mapped once.
  int64_t mapped_bytes = 4 << 10;

  bool operator==(const Thresholds&) const = default;

  bool exchanges(int32_t members) const { return members <= exchange_ranks; }
  /// `bytes`: of each of the buffers.
  bool streams(int64_t bytes, int64_t buffers) const {
    return bytes > 0 && bytes >= streaming_bytes / buffers;
  }
  bool maps(int64_t bytes) const { return bytes >= mapped_bytes; }
  /// Into what a message is cut: whole lines where `most` is.
  int64_t segment(int64_t bytes, int64_t most) const {
    const int64_t lines = (bytes / segments + shm::kLineBytes - 1) / shm::kLineBytes;
    return std::min(std::max(lines * shm::kLineBytes, segment_bytes), most);
  }
};

}  // namespace dt::collective
