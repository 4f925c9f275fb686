// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "collective/operation.h"
#include "transport/shm/section.h"

namespace dt::backend {

/// What this rank does on one communicator, for reports.
struct Pulse {
  bool inside = false;    ///< of the operation below; else it was the last one
  int64_t sequence = -1;  ///< -1: no operation yet
  collective::Kind kind = collective::Kind::kBarrier;
  std::string label;
  uint64_t stamp = 0;  ///< another one after each operation that was entered or left
};

/// Where operations leave their traces: two plain stores each, no clock.
///
/// One thread at a time writes (whoever advances the communicator), any thread reads. A reader may
/// mix two operations that follow each other; what it is for looks again and again.
class PulseCell {
 public:
  void enter(collective::Kind kind, int64_t sequence, const std::string& label) {
    last_.set(static_cast<int64_t>(kind), sequence, label);
    entered_.store(entered_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  void leave() {
    left_.store(left_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  Pulse read() const {
    Pulse pulse;
    const uint64_t left = left_.load(std::memory_order_acquire);
    const uint64_t entered = entered_.load(std::memory_order_acquire);
    if (entered == 0) return pulse;
    pulse.inside = entered != left;
    pulse.sequence = last_.sequence.load(std::memory_order_relaxed);
    pulse.kind = static_cast<collective::Kind>(last_.kind.load(std::memory_order_relaxed));
    pulse.label = last_.label();
    pulse.stamp = entered + left;
    return pulse;
  }

 private:
  shm::LastOperation last_{};
  std::atomic<uint64_t> entered_{0};
  std::atomic<uint64_t> left_{0};
};

/// Until when ranks are away on purpose: no operation times out before, and each has its whole
/// time-out after that. Any thread.
class Excuse {
 public:
  void set(int64_t until_ns) { until_ns_.store(until_ns, std::memory_order_relaxed); }
  Deadline apply(Deadline deadline) const {
    return deadline.renewed_at(until_ns_.load(std::memory_order_relaxed));
  }
  bool over() const { return monotonic_ns() >= until_ns_.load(std::memory_order_relaxed); }
  int64_t remaining_ms() const {
    return (until_ns_.load(std::memory_order_relaxed) - monotonic_ns()) / 1'000'000 + 1;
  }

 private:
  std::atomic<int64_t> until_ns_{0};
};

}  // namespace dt::backend
