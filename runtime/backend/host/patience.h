// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <cstdint>

#include "backend/host/spread.h"
#include "base/wait.h"

namespace dt::backend {

/// How a waiter spends the time before it sleeps. With a processor for each rank it polls, since
/// the peer runs at this moment. With more ranks than processors the peer may need ours: yielding
/// at once gave the best latency (measured: 2.6 us against 12 us of a futex at 8 B
/// with 4 ranks on 2 processors), but only a bounded number of times and for a bounded time, to
/// leave it to others and to keep deadlines.
class Patience {
 public:
  /// `spread`, which may be null, is told while it lingers.
  Patience(bool oversubscribed, int64_t spin_ns, Spread* spread)
      : oversubscribed_(oversubscribed), spin_ns_(spin_ns), spread_(spread) {}

  /// Something moved: begin anew.
  void renew() {
    rounds_ = 0;
    began_ns_ = 0;
  }

  /// Since when it waits, on the monotonic clock; 0: for no longer than it takes to look there.
  int64_t since_ns() const { return began_ns_; }

  /// Spends a moment. False: time to sleep.
  bool linger() {
    ++rounds_;
    if (oversubscribed_) {
      if (spin_ns_ == 0 || rounds_ > kYieldsMax) return false;
      // Among many others that run, each yield takes a round of their time slices.
      if (rounds_ % kYieldsPerLook == 0) {
        const int64_t now = monotonic_ns();
        if (began_ns_ == 0) began_ns_ = now;
        if (now - began_ns_ > kYieldMaxNs) return false;
        if (spread_ != nullptr) spread_->look(now);
      }
      sched_yield();
      return true;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
    if (rounds_ % kRoundsPerLook != 0) return spin_ns_ != 0;
    // The scheduler may have put the peer behind us on this processor: polling would then only keep
    // it from answering. With nobody waiting this returns at once.
    sched_yield();
    const int64_t now = monotonic_ns();
    if (began_ns_ == 0) began_ns_ = now;
    if (spread_ != nullptr) spread_->look(now);
    return now - began_ns_ < spin_ns_;
  }

 private:
  static constexpr uint32_t kYieldsMax = 200;
  static constexpr uint32_t kYieldsPerLook = 4;
  static constexpr int64_t kYieldMaxNs = 2'000'000;  // 200 of them take 0.1 to 0.5 ms with 4 on 2
  static constexpr uint32_t kRoundsPerLook = 64;     // a pause takes 10 to 50 ns, the clock 25

  const bool oversubscribed_;
  const int64_t spin_ns_;
  Spread* const spread_;
  uint32_t rounds_ = 0;
  int64_t began_ns_ = 0;
};

}  // namespace dt::backend
