// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/environment.h"
#include "net/host_port.h"

namespace dt::cli {

/// What the command line says about the nodes of the job.
struct NodeOptions {
  std::optional<int> node_count;
  std::optional<int> node_rank;
  std::string rendezvous;  ///< "host:port[,host:port...]", empty not given
  std::string job_id;      ///< empty not given
  std::optional<int> min_nodes = std::nullopt;
};

/// Which node of the job this agent is, and where the agents of all nodes meet.
struct NodePlace {
  int node_rank = 0;
  int node_count = 1;
  std::string host;   ///< of node 0; empty with one node
  uint16_t port = 0;  ///< likewise
  /// One node after the other, from node 0 on, may serve the meeting at its address.
  std::vector<net::HostPort> addresses;
  /// With how many nodes an attempt may begin; 0: with all, and the loss of one ends the job.
  int min_nodes = 0;
  std::string job_id;  ///< empty: node 0 chooses one
  std::string source;  ///< who said so: "the options", "Slurm step 812.0"

  bool elastic() const { return min_nodes > 0; }
};

/// From the options, then from a Slurm step of one task per node, then from a platform that starts
/// one process per node (launch/nodes.h); the node rank also from JOB_COMPLETION_INDEX (Kubernetes
/// Indexed Job) or NODE_RANK, the address first from MASTER_ADDR and MASTER_PORT. Pure.
/// INVALID_ARGUMENT says what is missing or contradicts, or that another launcher starts several
/// such agents on a node; CONFIG says which variable is malformed.
Result<NodePlace> find_node(const NodeOptions& options, const Environment& environment);

}  // namespace dt::cli
