// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/bench/options.h"
#include "cli/bench/rivals.h"

namespace dt::cli::bench {

/// The processors of each rank that dt bench starts: whole cores of its own, for dt and the rivals
/// alike. Else the kernel may begin two ranks on one processor and leave another idle, for longer
/// than a round of small messages takes. Empty, nothing is bound: where that is not wanted or there
/// are fewer cores than ranks.
std::vector<std::vector<int>> cpus_of_ranks(const Options& options);

/// "cores" or "none": Options::bound of what is started.
const char* binding_of(const Options& options);

/// `dt run` with everything that stands before the program.
std::vector<std::string> own_launcher(const Options& options, const Files& files);

/// What Open MPI's and MPICH's mpirun are told, `-n RANKS` included.
std::vector<std::string> openmpi_options(const Options& options);
std::vector<std::string> mpich_options(const Options& options);

}  // namespace dt::cli::bench
