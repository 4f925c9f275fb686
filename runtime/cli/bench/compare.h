// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/status.h"
#include "cli/bench/options.h"
#include "cli/bench/rivals.h"

namespace dt::cli::bench {

/// Runs dt and the rivals in turn and prints the comparison. Gives the exit code.
Result<int> compare(const Options& options, const Files& files);

}  // namespace dt::cli::bench
