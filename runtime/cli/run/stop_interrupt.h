// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/status.h"
#include "base/wait.h"
#include "cli/run/signals.h"
#include "net/loop.h"

namespace dt::cli {

/// Ends the agent's own waits when a signal asks it to end, while there are no ranks to pass it on
/// to. Reads the signals as long as it lives; nobody else may then.
class StopInterrupt {
 public:
  /// All are borrowed. Fires `interrupt`, which something else may fire, too.
  static Result<std::unique_ptr<StopInterrupt>> start(net::Loop* loop, Signals* signals,
                                                      Interrupt* interrupt);
  ~StopInterrupt();
  StopInterrupt(const StopInterrupt&) = delete;
  StopInterrupt& operator=(const StopInterrupt&) = delete;

  /// 0 none came.
  int signal() const { return signal_.load(); }

 private:
  StopInterrupt(net::Loop* loop, Signals* signals, Interrupt* interrupt)
      : loop_(loop), signals_(signals), interrupt_(interrupt) {}
  void on_readable();

  net::Loop* const loop_;
  Signals* const signals_;
  Interrupt* const interrupt_;
  std::atomic<int> signal_{0};
  std::unique_ptr<net::FdWatcher> watcher_;  // lives on the loop's thread
};

}  // namespace dt::cli
