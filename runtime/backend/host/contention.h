// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace dt::backend {

/// Detects that a rank's processors are shared with other busy threads, where spinning is worse
/// than sleeping: to the scheduler a spinning thread uses up its share of the processor, and must
/// then wait for a whole time slice of the others when its data arrives; a sleeping thread is run
/// soon after it is woken.
///
/// The sign is a sched_yield() that does not return soon. Waits then sleep immediately for a while,
/// which doubles each time that the next attempt to spin soon ends in the same way, so that a
/// machine that stays busy costs one time slice per second. A long yield after many short ones is
/// a passing disturbance and costs the shortest pause only.
///
/// Threads: any waiting thread of the rank reads and writes, relaxed. A lost update means one spin
/// or one sleep more than needed.
class Contention {
 public:
  /// Whether a wait that begins now should not spin.
  bool present(int64_t now_ns) const { return now_ns < until_ns_.load(std::memory_order_relaxed); }
  /// Whether present() can be true: saves its caller the time of reading the clock.
  bool ever() const { return until_ns_.load(std::memory_order_relaxed) != 0; }

  /// A sched_yield() took from `before_ns` to `now_ns`. `oversubscribed`: this host has more ranks
  /// than processors. Returns present(now_ns).
  bool yielded(int64_t before_ns, int64_t now_ns, bool oversubscribed) {
    if (now_ns - before_ns < (oversubscribed ? kLongerYieldNs : kLongYieldNs)) {
      const int32_t few = short_yields_.load(std::memory_order_relaxed);
      if (few < kManyYields) short_yields_.store(few + 1, std::memory_order_relaxed);
      return false;
    }
    const bool again = ever() && short_yields_.exchange(0, std::memory_order_relaxed) < kManyYields;
    const int64_t pause = pause_ns_.load(std::memory_order_relaxed);
    const int64_t next = again ? std::min(2 * pause, kPauseMaxNs) : kPauseMinNs;
    pause_ns_.store(next, std::memory_order_relaxed);
    until_ns_.store(now_ns + next, std::memory_order_relaxed);
    return true;
  }

 private:
  // Time slices last 1.4 ms and more. A yield to a rank that spins, too, returns within 20 us; if
  // there are more ranks than processors, it may lead to a rank that computes, whose result comes
  // sooner if this one does not sleep (measured with 500 us of work: 9 %).
  static constexpr int64_t kLongYieldNs = 400'000;
  static constexpr int64_t kLongerYieldNs = 1'200'000;
  static constexpr int64_t kPauseMinNs = 10'000'000;
  static constexpr int64_t kPauseMaxNs = 1'000'000'000;
  static constexpr int32_t kManyYields = 100;  // of some waits of 50 us

  std::atomic<int64_t> until_ns_{0};  ///< waits do not spin before then
  std::atomic<int64_t> pause_ns_{kPauseMinNs};
  std::atomic<int32_t> short_yields_{0};  ///< since the last long one, at most kManyYields
};

}  // namespace dt::backend
