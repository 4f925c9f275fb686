// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dt {

/// Asks Linux for short time slices of the calling thread while this object lives. With them a
/// thread gets no more of a processor, but runs as soon as it is woken, where otherwise it would
/// first wait for the rest of a slice (some milliseconds) of a thread that computes. For waits, and
/// for threads that wait often and then do little. Linux has such slices since 6.12; elsewhere, and
/// for threads with another policy than the usual one (SCHED_BATCH), nothing happens.
///
/// Made, begun and destroyed on one thread, on which one at most has begun. A thread that is
/// started meanwhile inherits them.
class ShortSlices {
 public:
  ShortSlices() = default;
  explicit ShortSlices(bool now) {
    if (now) begin();
  }
  ShortSlices(const ShortSlices&) = delete;
  ShortSlices& operator=(const ShortSlices&) = delete;
  ~ShortSlices() {
    if (before_ns_ != 0) end();
  }
  void begin();

 private:
  void end();

  uint64_t before_ns_ = 0;  ///< 0: it has not begun
};

/// The same for good, for a thread of dt's own. What it starts has the usual slices.
void use_short_slices();
/// For a thread that may have inherited short ones.
void use_usual_slices();

}  // namespace dt
