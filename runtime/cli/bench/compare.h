// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/status.h"
#include "cli/bench/child.h"
#include "cli/bench/options.h"
#include "cli/bench/report.h"
#include "cli/bench/rivals.h"

namespace dt::cli::bench {

/// Runs dt and the rivals in turn and prints the comparison. Gives the exit code.
Result<int> compare(const Options& options, const Files& files);

/// A run of dt's ranks over all sizes, of `rounds` rounds.
ChildPlan own_run(const Options& options, const Files& files, bool shared, int rounds);

/// Adds what such a run printed, or a rival's, to `program`.
Status add_output(const std::string& output, const Options& options, int rounds, Program* program);

}  // namespace dt::cli::bench
