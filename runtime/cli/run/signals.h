// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include "base/status.h"
#include "cli/run/fd.h"

namespace dt::cli {

/// The agent's signals as a descriptor: everything it passes on or reacts to is blocked and read
/// from there, so no handler runs. Signals that were ignored at start (nohup) stay ignored.
class Signals {
 public:
  /// Call while the process has one thread: later ones inherit the mask.
  static Result<Signals> block();

  int fd() const { return fd_.get(); }
  /// The mask from before, for the ranks.
  const sigset_t& original_mask() const { return original_mask_; }
  /// The next pending signal; 0 none.
  int next();

 private:
  Fd fd_;
  sigset_t original_mask_{};
};

}  // namespace dt::cli
