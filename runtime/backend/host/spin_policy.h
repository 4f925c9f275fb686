// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <cstdint>

#include "backend/host/contention.h"
#include "backend/host/spread.h"
#include "base/wait.h"

namespace dt::backend {

/// How a waiting thread spends the time before it sleeps. With a processor for each rank it polls,
/// because the peer is running. With more ranks than processors the peer may need this processor:
/// yielding immediately gave the best latency (measured: 2.6 us against 12 us of a futex at 8 B
/// with 4 ranks on 2 processors), but only a bounded number of times and for a bounded time, to
/// leave the processor to others and to keep deadlines. Where other busy threads share the
/// processors (Contention), it does neither.
class SpinPolicy {
 public:
  /// `contention` is null if the policy should not adapt; `spread`, which may be null as well, is
  /// told while the thread spins.
  SpinPolicy(bool oversubscribed, int64_t spin_ns, Contention* contention, Spread* spread)
      : oversubscribed_(oversubscribed),
        spin_ns_(spin_ns),
        contention_(contention),
        spread_(spread) {}

  /// Something moved: begin anew.
  void renew() {
    rounds_ = 0;
    began_ns_ = 0;
  }

  /// Since when the thread waits, on the monotonic clock; 0: not known, but less than a few
  /// microseconds.
  int64_t since_ns() const { return began_ns_; }

  /// Spends a moment. False: time to sleep.
  bool spin() {
    if (++rounds_ == 1 && must_sleep()) return false;
    if (oversubscribed_) return rounds_ <= kYieldsMax && yield(kYieldMaxNs);
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
    if (rounds_ % kRoundsPerYield != 0) return true;
    // The scheduler may have put the peer behind this thread on the same processor: polling would
    // then only keep it from answering. With nobody waiting a yield returns immediately.
    return yield(spin_ns_);
  }

 private:
  static constexpr uint32_t kYieldsMax = 200;
  static constexpr int64_t kYieldMaxNs = 2'000'000;  // 200 of them take 0.1 to 0.5 ms with 4 on 2
  static constexpr uint32_t kRoundsPerYield = 64;    // a pause takes 10 to 50 ns, the clock 25

  bool must_sleep() {
    if (spin_ns_ == 0) return true;
    if (contention_ == nullptr || !contention_->ever()) return false;
    const int64_t now = monotonic_ns();
    if (!contention_->present(now)) return false;
    began_ns_ = now;
    return true;
  }
  bool yield(int64_t limit_ns) {
    const int64_t before = monotonic_ns();
    if (began_ns_ == 0) began_ns_ = before;
    sched_yield();
    const int64_t now = monotonic_ns();
    if (contention_ != nullptr && contention_->yielded(before, now, oversubscribed_)) return false;
    if (spread_ != nullptr) spread_->look(now);
    return now - began_ns_ < limit_ns;
  }

  const bool oversubscribed_;
  const int64_t spin_ns_;
  Contention* const contention_;
  Spread* const spread_;
  uint32_t rounds_ = 0;
  int64_t began_ns_ = 0;
};

}  // namespace dt::backend
