// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/bench/child.h"
#include "cli/bench/options.h"

namespace dt::cli::bench {

/// A library that is measured beside dt, with the program that measures it.
struct Rival {
  std::string name;                  ///< "openmpi"
  std::string mpirun;                ///< what starts its ranks; empty: dt run
  std::vector<std::string> program;  ///< what each rank runs, with its first arguments
  bool has_tuned = false;            ///< it is measured at its best settings, too
};

/// Where dt bench's files lie.
struct Files {
  std::string dt;                ///< this command
  std::string worker;            ///< dt-bench-worker
  std::string source_directory;  ///< of method.h and the rivals' programs
};

/// Finds what runs the rival and compiles its program unless that was done before; the result is
/// kept in $XDG_CACHE_HOME/dt or ~/.cache/dt. What is missing is an error that names the Debian
/// packages. `meeting` is an empty directory in which ranks of gloo may meet.
Result<Rival> prepare_rival(const std::string& name, const Files& files,
                            const std::string& meeting);

/// One short run over all sizes. `tuned`: at the best settings that we know.
ChildPlan rival_run(const Rival& rival, const Options& options, const Files& files, bool tuned);

}  // namespace dt::cli::bench
