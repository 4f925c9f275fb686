// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/status.h"
#include "cli/bench/options.h"

namespace dt::cli::bench {

/// Where dt bench's files lie.
struct Files {
  std::string dt;                ///< this command
  std::string worker;            ///< dt-bench-worker
  std::string source_directory;  ///< of rival_mpi.c and method.h
};

/// Runs dt and the rivals in turn and prints the comparison. Gives the exit code.
Result<int> compare(const Options& options, const Files& files);

}  // namespace dt::cli::bench
