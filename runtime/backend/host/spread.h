// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/shm/arena.h"

namespace dt::backend {

/// Spreads the ranks of a host over its processors while they wait for each other.
///
/// The system's scheduler leaves ranks that poll or yield where they are for a long time: to it all
/// processors are busy. So three of four ranks may share one of two processors, and the fourth
/// waits for them on the other (measured at 25 MiB of ordinary buffers: 17 ms against 9). Here each
/// rank tells where it runs. One that waits, and finds at least two ranks more on its processor
/// than on another one that it may use, goes there: the calling thread is restricted to that
/// processor, which moves it at once, and gets back what it may use right after. From then on the
/// scheduler decides again.
///
/// Threads. Any waiting thread of a rank may look(); `next_ns_` lets one at a time through. Between
/// ranks only hints are shared (where each runs, when the last one moved), one word each, relaxed:
/// a stale one costs a needless move or a late one, and both are bounded, since a rank that moves
/// waits twice as long as before until it may again.
class Spread {
 public:
  explicit Spread(std::shared_ptr<shm::HostArena> arena) : arena_(std::move(arena)) {}

  /// A thread of the rank has waited until now without sleeping.
  void look(int64_t now_ns) {
    if (now_ns >= next_ns_.load(std::memory_order_relaxed)) look_around(now_ns);
  }
  /// It goes to sleep: the rank uses no processor.
  void sleep() { arena_->own_header().processor.store(-1, std::memory_order_relaxed); }

  /// Where to go from `own`, or -1 to stay: the nearest of the `usable` processors, ascending, with
  /// the fewest of `ranks` (the processor of each; -1: none) if `own` has at least two more.
  static int32_t better(const std::vector<int32_t>& ranks, int32_t own,
                        const std::vector<int32_t>& usable);

 private:
  static constexpr int64_t kLookEveryNs = 50'000;
  static constexpr int64_t kFullEveryNs = 500'000;  // while ranks share processors, but evenly
  static constexpr int64_t kMoveEveryNs = 200'000;  // of all ranks: the next one sees what changed
  static constexpr int64_t kRestMinNs = 1'000'000;  // after a move
  static constexpr int64_t kRestMaxNs = 1'000'000'000;
  static constexpr int64_t kCalm = 8;  // after so many rests without a move it is short again

  void look_around(int64_t now_ns);
  bool is_first(int64_t now_ns) const;

  const std::shared_ptr<shm::HostArena> arena_;
  std::atomic<int64_t> next_ns_{0};
  // Of who is inside look_around(): next_ns_ is beyond his stay, but for a thread that is stopped
  // there for long, and then two may count one move.
  std::atomic<int64_t> moved_ns_{0};
  std::atomic<int64_t> rest_ns_{kRestMinNs};
};

}  // namespace dt::backend
