// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/bench/options.h"

namespace dt::cli::bench {

/// The names that --compare knows.
const std::vector<std::string>& rival_names();

/// Why this rival cannot measure what `options` ask for: it is not known, or does not have that
/// collective, dtype or reduction.
Status check_rival(const std::string& name, const Options& options);

/// The Debian packages that bring it.
const char* rival_packages(const std::string& name);

}  // namespace dt::cli::bench
