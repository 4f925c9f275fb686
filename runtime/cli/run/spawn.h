// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"

namespace dt::cli {

/// What a rank is started with. The descriptors are borrowed.
struct SpawnPlan {
  std::string program;  ///< path of the file to run
  std::vector<std::string> args;
  std::vector<std::string> environment;  ///< "NAME=value"
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  int guardian_fd = -1;
  int kept_fd = -1;        ///< one more that the program gets, under its number; -1: none
  sigset_t signal_mask{};  ///< as it was before the agent blocked signals
  rlimit open_files{};     ///< as it was before the agent raised it
  std::vector<int> cpus;   ///< that it may run on, ascending; empty: those of the agent
};

/// Starts the program as the leader of a process group of its own. It dies with the calling thread,
/// is known to the guardian before it runs, and gets only its three standard descriptors and
/// kept_fd. Returns once the program runs; what kept it from running is the error.
Result<pid_t> spawn(const SpawnPlan& plan);

/// The file that `name` means, as a shell would find it. The error says what to do.
Result<std::string> find_program(const std::string& name);

}  // namespace dt::cli
