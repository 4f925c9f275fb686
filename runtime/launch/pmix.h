// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/wait.h"
#include "config/environment.h"

namespace dt::launch {

/// All ranks of the launch call it; rank 0's `mine` comes back on each. PMIx's calls block without
/// a limit, so they run on a thread of their own, which is left behind when the deadline passes.
/// `libraries` as pmix_libraries() lists them. CONFIG no_rendezvous, TIMEOUT.
Result<std::string> pmix_exchange(int32_t rank, const std::string& mine, const Wait& wait,
                                  const std::vector<std::string>& libraries);

/// Where the library of PMIx may be, the likeliest first: that of the Open MPI which started this
/// process, as its variables name it, else the system's, by name.
std::vector<std::string> pmix_libraries(const Environment& environment);

}  // namespace dt::launch
