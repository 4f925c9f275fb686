// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/wait.h"

namespace dt::launch {

/// For the ranks of one host, which need no service of a launcher: rank 0 listens at a Unix socket
/// whose name is made of the user and `job`, and returns when all others have its `mine`, which
/// they return. Only processes of the same user are answered and believed. `job` is the same on all
/// ranks, and no other job of this host has it. Errors: SYSTEM (no such socket can be opened, or
/// another process has the name), TIMEOUT with the ranks that are missing.
Result<std::string> host_exchange(const std::string& job, int32_t rank, int32_t world_size,
                                  const std::string& mine, const Wait& wait);

}  // namespace dt::launch
