// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace dt::cli::bench {

/// A program that runs to its end while we wait.
struct ChildPlan {
  std::vector<std::string> command;      ///< found in PATH
  std::vector<std::string> environment;  ///< "NAME=value", added to this process's
  int64_t timeout_ms = 0;
};

/// While it lives, SIGINT, SIGTERM and SIGHUP end the child of run_child() instead of this process,
/// which they then meet when this is destroyed. Those that are ignored stay so.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

 private:
  sigset_t before_;
};

/// Runs it and returns its standard output. The error (not found, exit code, signal, out of time)
/// has the last lines of what it printed; ABORTED is the one of a held signal. In every case no
/// process that it started is left. Call while the process has one thread.
Result<std::string> run_child(const ChildPlan& plan);

/// As a shell finds it in PATH; empty when it is not there.
std::string program_path(const std::string& name);

}  // namespace dt::cli::bench
