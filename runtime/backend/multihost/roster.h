// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "collective/operation.h"
#include "collective/topology.h"

namespace dt::backend {

/// Who the ranks of a communicator are and where. Equal on all of them but for `rank`.
struct Roster {
  std::string name;  ///< of the communicator
  int32_t rank = 0;  ///< of the caller
  collective::Topology topology;
  std::vector<int32_t> world_ranks;     ///< by rank
  std::vector<std::string> host_names;  ///< by host of the topology

  int32_t host() const { return topology.host[rank]; }
  int32_t local() const { return topology.local[rank]; }
  int32_t local_size() const {
    return static_cast<int32_t>(topology.hosts[topology.host[rank]].size());
  }
  /// The rank that speaks for a host.
  int32_t leader(int32_t of_host) const { return topology.hosts[of_host][0]; }
  const std::string& host_name(int32_t of_rank) const { return host_names[topology.host[of_rank]]; }

  /// `rank 3 (node7, pid 4711)`; the world rank stands behind where it differs, the pid where
  /// known.
  std::string member_text(int32_t of_rank, int64_t pid) const;
  /// `allreduce "bucket 3" #812 on comm "world", rank 3 (node7): ` in front of `message`.
  /// `culprit`: a rank of the communicator, or -1. `label`: the operation's name, if it has one.
  Status failure(Code code, collective::Kind kind, int64_t sequence, int32_t culprit, int64_t pid,
                 const std::string& message, const std::string& label = {}) const;
};

}  // namespace dt::backend
