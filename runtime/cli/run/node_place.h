// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "config/environment.h"

namespace dt::cli {

/// What the command line says about the nodes of the job.
struct NodeOptions {
  std::optional<int> node_count;
  std::optional<int> node_rank;
  std::string rendezvous;  ///< "host:port", empty not given
  std::string job_id;      ///< empty not given
};

/// Which node of the job this agent is, and where the agents of all nodes meet.
struct NodePlace {
  int node_rank = 0;
  int node_count = 1;
  std::string host;    ///< of node 0; empty with one node
  uint16_t port = 0;   ///< likewise
  std::string job_id;  ///< empty: node 0 chooses one
  std::string source;  ///< who said so: "the options", "Slurm step 812.0"
};

/// From the options, then from a Slurm step of one task per node; the node rank also from
/// JOB_COMPLETION_INDEX (Kubernetes Indexed Job) or NODE_RANK, the address also from MASTER_ADDR
/// and MASTER_PORT. Pure. INVALID_ARGUMENT says what is missing or contradicts, or that another
/// launcher starts several such agents while nobody names their number; CONFIG says which variable
/// is malformed.
Result<NodePlace> find_node(const NodeOptions& options, const Environment& environment);

}  // namespace dt::cli
