// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/wait.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace dt::record {

/// Reads the time as cheaply as the processor can: its counter where that runs evenly on all cores
/// (8 ns instead of 25 of clock_gettime), else the monotonic clock. What it counts becomes
/// nanoseconds by two points in time, see Scale. Any thread.
class Clock {
 public:
  Clock();

  int64_t ticks() const {
    if (!has_counter_) return monotonic_ns();
#if defined(__x86_64__)
    return static_cast<int64_t>(__rdtsc());
#elif defined(__aarch64__)
    uint64_t count;
    asm volatile("mrs %0, cntvct_el0" : "=r"(count));
    return static_cast<int64_t>(count);
#else
    return monotonic_ns();
#endif
  }

  /// The same moment on both.
  struct Point {
    int64_t ticks = 0;
    int64_t monotonic_ns = 0;
  };
  Point now() const;

 private:
  bool has_counter_ = false;
};

/// The straight line through two points. Between them it is wrong by no more than the points are.
class Scale {
 public:
  Scale(Clock::Point first, Clock::Point last);
  /// On the monotonic clock. Zero stays zero: not yet.
  int64_t monotonic_ns(int64_t ticks) const;
  /// So many ticks are so long.
  int64_t duration_ns(int64_t ticks) const {
    return static_cast<int64_t>(static_cast<double>(ticks) * ns_per_tick_);
  }

 private:
  Clock::Point first_;
  double ns_per_tick_ = 1;
};

}  // namespace dt::record
