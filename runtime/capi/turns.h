// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "capi/call.h"

namespace dt::capi {

/// Who is inside an object whose calls may not all run at once: calls that share it, or one that
/// has it alone. Nobody waits: what dt.h forbids is an error and touches nothing. Entering acquires
/// what the one who left before has released, so the object itself needs no lock.
class Turns {
 public:
  class Turn {
   public:
    Turn(std::atomic<int32_t>* inside, int32_t weight) : inside_(inside), weight_(weight) {}
    Turn(Turn&& other) noexcept
        : inside_(std::exchange(other.inside_, nullptr)), weight_(other.weight_) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn() {
      if (inside_ != nullptr) inside_->fetch_sub(weight_, std::memory_order_release);
    }

   private:
    std::atomic<int32_t>* inside_;
    const int32_t weight_;
  };

  Result<Turn> shared(const Call& call) {
    int32_t inside = inside_.load(std::memory_order_relaxed);
    while (inside >= 0) {
      if (inside_.compare_exchange_weak(inside, inside + 1, std::memory_order_acquire,
                                        std::memory_order_relaxed)) {
        return Turn(&inside_, 1);
      }
    }
    return taken(call);
  }
  Result<Turn> alone(const Call& call) {
    int32_t inside = 0;
    if (inside_.compare_exchange_strong(inside, -1, std::memory_order_acquire,
                                        std::memory_order_relaxed)) {
      return Turn(&inside_, -1);
    }
    return taken(call);
  }

 private:
  static Status taken(const Call& call) {
    return Status(Code::kInvalidState,
                  format("%s: another thread is inside a call on the same handle that allows no "
                         "other beside it; let one thread make these calls",
                         call.function()));
  }
  std::atomic<int32_t> inside_{0};  ///< sharing calls; -1: one alone
};

}  // namespace dt::capi
