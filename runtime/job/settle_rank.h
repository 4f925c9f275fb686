// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/wait.h"
#include "store/client.h"

namespace dt::job {

/// A process whose launcher knows its node and its place there, and not the processes of the nodes
/// below.
struct NodeProcess {
  int32_t node_rank = 0;
  int32_t local_rank = 0;
  int32_t world_size = 1;
  std::string host_name;  ///< for messages
  int64_t pid = 0;        ///< likewise
};

/// Makes this process known to the others of its job in their store, and returns its rank: the
/// number of processes on lower nodes, and its local rank. All processes of the job call it once
/// with a client that has no rank. On node 0 it returns at once, on others when all have come.
/// Errors: CONFIG (two processes have the same place, or the places are not 0, 1, ... on each
/// node), TIMEOUT with the processes that are missing.
Result<int32_t> settle_rank(store::Client& client, const NodeProcess& self, const Wait& wait);

}  // namespace dt::job
