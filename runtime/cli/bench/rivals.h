// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/bench/child.h"
#include "cli/bench/options.h"

namespace dt::cli::bench {

/// An MPI that is measured beside dt, with the program that measures it.
struct Rival {
  std::string name;     ///< "openmpi"
  std::string mpirun;   ///< "mpirun.openmpi"
  std::string program;  ///< compiled rival_mpi.c
};

/// Compiles rival_mpi.c (`source_directory`, with method.h) unless that was done before; the result
/// is kept in $XDG_CACHE_HOME/dt or ~/.cache/dt. A missing compiler or mpirun is an error that
/// names the Debian packages.
Result<Rival> prepare_rival(const std::string& name, const std::string& source_directory);

/// One short run over all sizes. `tuned`: with malloc set to keep large blocks.
ChildPlan rival_run(const Rival& rival, const Options& options, bool tuned);

}  // namespace dt::cli::bench
