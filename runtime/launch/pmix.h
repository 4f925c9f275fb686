// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/wait.h"

namespace dt::launch {

/// All ranks of the launch call it; rank 0's `mine` comes back on each. PMIx's calls block without
/// a limit, so they run on a thread of their own, which is left behind when the deadline passes.
/// CONFIG no_rendezvous, TIMEOUT.
Result<std::string> pmix_exchange(int32_t rank, const std::string& mine, const Wait& wait);

}  // namespace dt::launch
