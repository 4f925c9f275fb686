// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <memory>

#include "base/status.h"
#include "cli/run/fd.h"

namespace dt::cli {

/// A small process in a session of its own that outlives the agent: when the agent dies, by SIGKILL
/// too, it kills every process group that was announced to it, and ends.
///
/// It learns of the death by the end of file of a pipe whose only lasting writer is the agent. Each
/// rank announces its own group before it runs the program, so there is no moment at which a
/// program runs unguarded.
class Guardian {
 public:
  /// Forks: call while the process has one thread.
  static Result<std::unique_ptr<Guardian>> start();
  /// Tells it that all is well, and reaps it.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  pid_t pid() const { return pid_; }
  /// For announce(); close-on-exec.
  int fd() const { return pipe_.get(); }
  /// Async-signal-safe: a child calls it between fork and exec. False when it could not be told.
  static bool announce(int fd, pid_t group);
  /// The group is empty: its number may soon belong to somebody else.
  void forget(pid_t group);
  /// Somebody else reaped it: it was killed from outside.
  void lost() { pid_ = -1; }

 private:
  Guardian(pid_t pid, Fd pipe) : pid_(pid), pipe_(std::move(pipe)) {}

  pid_t pid_;
  Fd pipe_;
};

}  // namespace dt::cli
