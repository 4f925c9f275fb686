// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <atomic>

namespace dt::backend {

/// A lock that nobody sleeps on: whose turn it is to advance a communicator. A thread that wants to
/// sleep because another one has the turn says so, and is woken when the turn ends: else it would
/// miss what the other one looked at too early.
class Turn {
 public:
  bool try_take() { return !taken_.exchange(true, std::memory_order_seq_cst); }
  /// As try_take(), before sleeping. False: the present holder sees it when it gives the turn back,
  /// since the wish was written before the turn was found taken, all in one total order.
  bool take_or_wish() {
    if (try_take()) return true;
    wished_.store(true, std::memory_order_seq_cst);
    return try_take();
  }
  /// Whether somebody has it.
  bool taken() const { return taken_.load(std::memory_order_seq_cst); }
  /// For destructors.
  void take() {
    while (!try_take()) sched_yield();
  }
  /// True: somebody wished for it; ring the doorbell.
  [[nodiscard]] bool give() {
    taken_.store(false, std::memory_order_seq_cst);
    return wished_.load(std::memory_order_seq_cst) &&
           wished_.exchange(false, std::memory_order_seq_cst);
  }

 private:
  std::atomic<bool> taken_{false};
  std::atomic<bool> wished_{false};
};

}  // namespace dt::backend
