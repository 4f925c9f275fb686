// SPDX-License-Identifier: Apache-2.0
#include "cli/run/node_place.h"

#include <algorithm>

#include "launch/facts.h"
#include "launch/nodes.h"
#include "launch/slurm.h"
#include "net/address.h"
#include "net/host_port.h"

namespace dt::cli {
namespace {

using launch::Facts;
using launch::Field;
using launch::Variables;

constexpr int kMaxNodes = 65536;

Status bad(const std::string& text) { return Status(Code::kInvalidArgument, text); }

std::string name_of(const Facts& step) { return "Slurm step " + step.job_id->value; }

/// Somebody between srun and this process started it: the step's numbers are not about it.
bool has_inner_launcher(Variables& variables) {
  for (const char* name : {"DT_LAUNCHER_PID", "OMPI_COMM_WORLD_SIZE", "TORCHELASTIC_RUN_ID"}) {
    if (variables.get(name) != nullptr) return true;
  }
  const std::string* pmi = variables.get("PMI_SIZE");  // `srun --mpi=pmi2` sets it equally
  const std::string* tasks = variables.get("SLURM_STEP_NUM_TASKS");
  return pmi != nullptr && tasks != nullptr && *pmi != *tasks;
}

/// Absent outside of a step that srun started: in a batch script or a shell of salloc too.
Result<std::optional<Facts>> read_step(Variables& variables) {
  const std::optional<Facts> none;
  if (has_inner_launcher(variables)) return none;
  DT_TRY_VALUE(Facts step, launch::read_slurm_step(variables));
  const bool whole = step.at(Field::kWorldSize) && step.at(Field::kNodeRank) &&
                     step.at(Field::kNodeCount) && step.job_id;
  return whole ? std::optional(std::move(step)) : none;
}

Status check_tasks(const Facts& step) {
  const int tasks = step.value(Field::kWorldSize, 1);
  const int nodes = step.value(Field::kNodeCount, 1);
  if (tasks <= nodes) return {};
  return bad(
      format("%s has %d tasks on %d %s, but dt run is started once per node and starts the "
             "ranks itself; use srun -n \"$SLURM_NNODES\" --ntasks-per-node=1 dt run -n "
             "RANKS_PER_NODE (-n, "
             "because srun inherits the number of tasks of a batch script), or dt run "
             "--nnodes 1 for a job of its own in each task",
             name_of(step).c_str(), tasks, nodes, nodes == 1 ? "node" : "nodes"));
}

/// Several processes on a node: each would make a job of its own.
Status refuse_processes(const Facts& starter) {
  const launch::NumberFact& rank = *starter.at(Field::kRank);
  const launch::NumberFact& size = *starter.at(Field::kWorldSize);
  return bad(format(
      "this is one of %d dt run that %s has started (%s %s), and each would make a job of its own; "
      "start PROG without dt run there; or start dt run once per node, with --nnodes, "
      "--rendezvous HOST:PORT and --node-rank \"$%s\"; or give --nnodes 1 for a job of its own in "
      "each process",
      size.value, starter.launcher.c_str(), rank.text().c_str(), size.text().c_str(),
      rank.variable.c_str()));
}

/// The platform that started one dt run per node, if any; with --nnodes as far as it agrees.
Result<std::optional<Facts>> read_platform(const NodeOptions& options, Variables& variables) {
  Result<std::optional<Facts>> starter = launch::find_starter(variables);
  if (options.node_count) {
    const bool agrees = starter.ok() && starter.value() && starter.value()->at(Field::kNodeRank) &&
                        starter.value()->at(Field::kNodeCount)->value == *options.node_count;
    return agrees ? std::move(starter) : std::optional<Facts>();
  }
  if (!starter.ok()) {
    return bad(starter.status().message() +
               "; give --nnodes, --node-rank and --rendezvous HOST:PORT (--nnodes 1: a job of its "
               "own on each node)");
  }
  if (starter.value() && !starter.value()->at(Field::kNodeRank)) {
    return refuse_processes(*starter.value());
  }
  return starter;
}

Status take_slurm_address(Variables& variables, Facts step, NodePlace* place) {
  DT_TRY(launch::read_slurm_step_host(variables, step));
  if (!step.master_addr) {
    return bad("SLURM_STEP_NODELIST is empty; give --rendezvous HOST:PORT of node 0");
  }
  place->host = step.master_addr->value;
  place->port = static_cast<uint16_t>(step.value(Field::kMasterPort, 0));
  return {};
}

/// `starter`: the Slurm step, or the platform.
Status find_rank(const NodeOptions& options, Variables& variables,
                 const std::optional<Facts>& starter, NodePlace* place) {
  std::string who = "--node-rank";
  std::optional<int64_t> rank;
  if (options.node_rank) rank = *options.node_rank;
  if (!rank && starter) {
    rank = starter->at(Field::kNodeRank)->value;
    who = starter->at(Field::kNodeRank)->variable;
  }
  for (const char* name : {"JOB_COMPLETION_INDEX", "NODE_RANK"}) {
    if (rank) break;
    DT_TRY_VALUE(rank, variables.wide_integer(name, 0, INT32_MAX));
    who = name;
  }
  if (!rank) {
    return bad(
        format("--nnodes %d without a node rank; give --node-rank 0 to %d, another one to each "
               "node, or set NODE_RANK (a Kubernetes Indexed Job sets JOB_COMPLETION_INDEX)",
               place->node_count, place->node_count - 1));
  }
  if (*rank < 0 || *rank >= place->node_count) {
    return bad(format("%s %lld is out of range: with --nnodes %d the nodes are 0 to %d",
                      who.c_str(), static_cast<long long>(*rank), place->node_count,
                      place->node_count - 1));
  }
  place->node_rank = static_cast<int>(*rank);
  return {};
}

/// "host:port,host:port": of node 0, node 1, ...
Status read_addresses(const std::string& text, NodePlace* place) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    Result<net::HostPort> parsed = net::parse_host_port(text.substr(begin, end - begin));
    if (!parsed.ok()) return parsed.status().within("--rendezvous");
    const net::HostPort& next = parsed.value();
    for (const net::HostPort& each : place->addresses) {
      if (each.host != next.host || each.port != next.port) continue;
      return bad(format(
          "--rendezvous has %s twice; give each of node 0, node 1, ... an address of its own",
          net::host_port_text(next.host, next.port).c_str()));
    }
    place->addresses.push_back(next);
    begin = end + 1;
  }
  place->host = place->addresses.front().host;
  place->port = place->addresses.front().port;
  if (static_cast<int>(place->addresses.size()) <= place->node_count) return {};
  return bad(
      format("--rendezvous has %zu addresses, but there are %d nodes; give those of node 0, "
             "node 1, ..., one for each node at most",
             place->addresses.size(), place->node_count));
}

/// Whether the job goes on without a node.
Status find_min_nodes(const NodeOptions& options, NodePlace* place) {
  if (place->addresses.empty()) place->addresses.push_back({place->host, place->port});
  if (options.min_nodes) {
    place->min_nodes = *options.min_nodes;
  } else if (place->addresses.size() > 1) {
    place->min_nodes = place->node_count;
  } else {
    return {};
  }
  if (place->min_nodes >= 1 && place->min_nodes <= place->node_count) return {};
  return bad(format("--min-nodes %d is out of range: with --nnodes %d it is 1 to %d",
                    place->min_nodes, place->node_count, place->node_count));
}

Status no_meeting(const NodePlace& place, const std::optional<Facts>& platform) {
  std::string text = format("--nnodes %d, but nobody says where the nodes meet", place.node_count);
  if (platform) {
    text = format("%d nodes (%s), but nobody says where they meet", place.node_count,
                  platform->at(Field::kNodeCount)->text().c_str());
  }
  text +=
      "; give --rendezvous HOST:PORT, the host of node 0 and a free port there, the same on all "
      "nodes, or set MASTER_ADDR and MASTER_PORT";
  if (platform && platform->launcher == "openmpi") {
    text += " (mpirun of Open MPI: -x MASTER_ADDR -x MASTER_PORT)";
  }
  return bad(text);
}

Status find_address(const NodeOptions& options, Variables& variables,
                    const std::optional<Facts>& step, const std::optional<Facts>& platform,
                    NodePlace* place) {
  if (!options.rendezvous.empty()) return read_addresses(options.rendezvous, place);
  Facts found;
  DT_TRY(launch::read_user_rendezvous(variables, found));
  if (platform) found.fill_rendezvous(*platform);
  if (found.master_addr && found.at(Field::kMasterPort)) {
    place->host = found.master_addr->value;
    place->port = static_cast<uint16_t>(found.at(Field::kMasterPort)->value);
    return {};
  }
  if (!step) return no_meeting(*place, platform);
  DT_TRY(take_slurm_address(variables, *step, place));
  // One of the two alone, such as another port for each of several steps on a node.
  if (found.master_addr) place->host = found.master_addr->value;
  if (found.at(Field::kMasterPort)) {
    place->port = static_cast<uint16_t>(found.at(Field::kMasterPort)->value);
  }
  return {};
}

}  // namespace

Result<NodePlace> find_node(const NodeOptions& options, const Environment& environment) {
  NodePlace place;
  place.job_id = options.job_id;
  place.source = "the options";
  const bool alone = options.node_count && *options.node_count == 1;
  Variables variables(environment);
  std::optional<Facts> step;
  std::optional<Facts> platform;
  if (!options.node_count) {
    const std::string inner = launch::launch_inside_rank(variables);
    if (!inner.empty()) {
      return bad(inner + ", or give --nnodes 1 for a job of its own in each process");
    }
  }
  if (!alone) {
    DT_TRY_VALUE(step, read_step(variables));
    if (!step) {
      DT_TRY_VALUE(platform, read_platform(options, variables));
    }
  }
  if (step) {
    DT_TRY(check_tasks(*step));
    place.node_count = step->at(Field::kNodeCount)->value;
    if (options.node_count && *options.node_count != place.node_count) {
      return bad(format("--nnodes %d, but %s has %d nodes; leave --nnodes out", *options.node_count,
                        name_of(*step).c_str(), place.node_count));
    }
    place.source = name_of(*step);
    if (place.job_id.empty()) place.job_id = "slurm-" + step->job_id->value;
  } else if (options.node_count) {
    place.node_count = *options.node_count;
  } else if (platform) {
    place.node_count = platform->at(Field::kNodeCount)->value;
    place.source = platform->at(Field::kNodeCount)->text();
  } else if (options.node_rank || !options.rendezvous.empty()) {
    return bad(format("%s without --nnodes; give --nnodes N, the number of nodes",
                      options.node_rank ? "--node-rank" : "--rendezvous"));
  }
  if (place.node_count < 1 || place.node_count > kMaxNodes) {
    return bad(format("--nnodes %d: the number of nodes is 1 to %d", place.node_count, kMaxNodes));
  }
  if (place.node_count == 1) {
    if (options.min_nodes) {
      return bad("--min-nodes without several nodes; give --nnodes N, the most there may be");
    }
    if (options.node_rank.value_or(0) == 0) return place;
    return bad(format("--node-rank %d is out of range: with one node it is 0", *options.node_rank));
  }
  DT_TRY(find_rank(options, variables, step ? step : platform, &place));
  DT_TRY(find_address(options, variables, step, platform, &place));
  DT_TRY(find_min_nodes(options, &place));
  return place;
}

}  // namespace dt::cli
