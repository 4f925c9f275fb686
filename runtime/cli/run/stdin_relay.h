// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/status.h"
#include "cli/run/fd.h"

namespace dt::cli {

/// What rank 0 reads. A file or pipe is simply inherited. From a terminal it could not read,
/// because its process group is not the one in the foreground (SIGTTIN would stop it), so the agent
/// reads for it and hands on through a pipe.
class StdinRelay {
 public:
  static Result<StdinRelay> create(int stdin_fd);

  /// For rank 0; valid until child_started().
  int child_fd() const { return child_end_.is_open() ? child_end_.get() : stdin_fd_; }
  void child_started() { child_end_.reset(); }
  /// Descriptors to wait on for reading and for writing; -1 none.
  int read_fd() const {
    return agent_end_.is_open() && reading_ && pending_.empty() ? stdin_fd_ : -1;
  }
  int write_fd() const { return pending_.empty() ? -1 : agent_end_.get(); }
  void on_readable();
  void on_writable();
  /// The agent may be in the foreground again.
  void resume() { reading_ = true; }

 private:
  int stdin_fd_ = -1;
  bool reading_ = true;  // false: in the background
  Fd child_end_;
  Fd agent_end_;
  std::string pending_;
};

}  // namespace dt::cli
