// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/status.h"
#include "cli/bench/options.h"
#include "cli/bench/rivals.h"

namespace dt::cli::bench {

/// `dt bench --tune`: tries values of [host] on this machine, prints those that are faster for
/// sure, and writes them where --tune-write says. Gives the exit code.
Result<int> tune(const Options& options, const Files& files);

}  // namespace dt::cli::bench
