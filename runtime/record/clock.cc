// SPDX-License-Identifier: Apache-2.0
#include "record/clock.h"

#include <algorithm>
#include <limits>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace dt::record {
namespace {

constexpr int kPointTries = 3;

bool counter_runs_evenly() {
#if defined(__x86_64__)
  // Intel SDM 17.17.1, AMD APM E.4.6: the time-stamp counter is invariant.
  constexpr unsigned kLeaf = 0x80000007;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(kLeaf, &a, &b, &c, &d) != 0 && (d & (1U << 8)) != 0;
#elif defined(__aarch64__)
  return true;  // the generic timer: Arm ARM D12.1
#else
  return false;
#endif
}

}  // namespace

Clock::Clock() : has_counter_(counter_runs_evenly()) {}

Clock::Point Clock::now() const {
  Point best;
  int64_t best_width = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kPointTries; ++i) {
    const int64_t before = ticks();
    const int64_t ns = dt::monotonic_ns();
    const int64_t after = ticks();
    if (after - before >= best_width) continue;
    best_width = after - before;
    best = {before + (after - before) / 2, ns};
  }
  return best;
}

Scale::Scale(Clock::Point first, Clock::Point last) : first_(first) {
  if (last.ticks <= first.ticks) return;
  ns_per_tick_ = static_cast<double>(last.monotonic_ns - first.monotonic_ns) /
                 static_cast<double>(last.ticks - first.ticks);
}

int64_t Scale::monotonic_ns(int64_t ticks) const {
  if (ticks == 0) return 0;
  const double ns = static_cast<double>(ticks - first_.ticks) * ns_per_tick_;
  return std::max<int64_t>(first_.monotonic_ns + static_cast<int64_t>(ns), 1);
}

}  // namespace dt::record
