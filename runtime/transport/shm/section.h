// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/wait.h"

namespace dt::shm {

/// Each rank's share of the arena's address space; sparse, so it costs nothing until allocated.
inline constexpr int64_t kSectionBytes = int64_t{1} << 40;
inline constexpr int64_t kPageBytes = 4096;
inline constexpr int64_t kHugePageBytes = 2 << 20;
inline constexpr int64_t kLineBytes = 64;
inline constexpr int32_t kMaxLocalRanks = 1024;

/// What a rank did last, for messages of its peers. Written by the owner only, from any of its
/// threads: words may stem from two operations, which a message can bear.
struct LastOperation {
  static constexpr int kNameWords = 4;
  std::atomic<int64_t> kind{-1};  ///< -1: none yet
  std::atomic<int64_t> sequence{-1};
  std::atomic<uint64_t> name[kNameWords];  ///< first 32 bytes, zero padded

  std::string label() const {
    char bytes[sizeof name + 1] = {};
    for (int i = 0; i < kNameWords; ++i) {
      const uint64_t word = name[i].load(std::memory_order_relaxed);
      memcpy(bytes + 8 * i, &word, sizeof word);
    }
    return bytes;
  }

  void set(int64_t new_kind, int64_t new_sequence, const std::string& label) {
    kind.store(new_kind, std::memory_order_relaxed);
    sequence.store(new_sequence, std::memory_order_relaxed);
    if (label.empty() && name[0].load(std::memory_order_relaxed) == 0) return;
    char bytes[sizeof name] = {};
    memcpy(bytes, label.data(), label.size() < sizeof bytes ? label.size() : sizeof bytes);
    for (int i = 0; i < kNameWords; ++i) {
      uint64_t word;
      memcpy(&word, bytes + 8 * i, sizeof word);
      name[i].store(word, std::memory_order_relaxed);
    }
  }
};

/// First page of each section. Written by its owner, read and rung by its peers.
struct SectionHeader {
  static constexpr uint64_t kMagic = 0x3130'616e'6572'6164;  // "darena01", little endian
  static constexpr int kAffinityWords = 16;                  // 1024 processors

  alignas(kLineBytes) Doorbell doorbell;  ///< every waiting thread of the rank sleeps here
  alignas(kLineBytes) uint64_t magic;
  uint32_t header_bytes;
  int32_t world_rank;
  int64_t pid;                        ///< in the rank's own PID namespace
  uint64_t pid_namespace;             ///< its inode; 0: unknown
  uint64_t affinity[kAffinityWords];  ///< processors the rank may use
  int32_t node;                       ///< NUMA, where the rank lives; -1: not known
  alignas(kLineBytes) std::atomic<int32_t> processor{-1};  ///< where the rank waits; -1: nowhere
  /// Of local rank 0: when a rank of the host last went to another processor, CLOCK_MONOTONIC.
  std::atomic<int64_t> spread_ns{0};
  alignas(kLineBytes) LastOperation last;
  /// Whether the rank has said goodbye. In peace: nothing had failed there, so its leaving is what
  /// ends the operations that still need it. Otherwise they end because of that failure, of which
  /// the store tells before it tells of the goodbye.
  static constexpr uint32_t kLeft = 1;
  static constexpr uint32_t kLeftInPeace = 2;
  alignas(kLineBytes) std::atomic<uint32_t> left;
  /// Of local rank 0: how many ranks of the host have left in peace.
  std::atomic<uint32_t> leavers;
  /// Whose failure this rank has heard of, so that its own end, which follows, is not mistaken for
  /// the cause: 0 none, else world rank + 1; kStoreTells: no rank's end, as an abort or silence, of
  /// which the store tells all.
  std::atomic<int32_t> blames;
  static constexpr int32_t kStoreTells = -1;
  /// Section offset of the world communicator's block, 0 while there is none.
  std::atomic<int64_t> world_block;
};
static_assert(sizeof(SectionHeader) <= kPageBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace dt::shm
