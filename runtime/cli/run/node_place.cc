// SPDX-License-Identifier: Apache-2.0
#include "cli/run/node_place.h"

#include <vector>

#include "cli/host_port.h"
#include "launch/hostlist.h"

namespace dt::cli {
namespace {

constexpr int kMaxNodes = 65536;
constexpr int64_t kFirstSpecialStep = 0xfffffff0;  // batch, extern, interactive (slurm.h)
constexpr int64_t kFirstSlurmPort = 10000;         // as scripts for Azure's and other clusters do
constexpr int64_t kSlurmPorts = 10000;

Status bad(const std::string& text) { return Status(Code::kInvalidArgument, text); }

const std::string* find(const Environment& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() || found->second.empty() ? nullptr : &found->second;
}

/// Absent without the variable; an error when it holds no number.
Result<std::optional<int64_t>> number(const Environment& environment, const char* name) {
  const std::string* text = find(environment, name);
  if (text == nullptr) return std::optional<int64_t>();
  if (text->size() > 18 || text->find_first_not_of("0123456789") != std::string::npos) {
    return bad(format("%s=%s is no number", name, text->c_str()));
  }
  return std::optional<int64_t>(std::stoll(*text));
}

struct Step {
  int64_t job = 0;
  int64_t step = 0;
  int64_t nodes = 1;
  int64_t node = 0;
  int64_t tasks = 1;
  std::string hosts;

  std::string name() const {
    return format("Slurm step %lld.%lld", static_cast<long long>(job),
                  static_cast<long long>(step));
  }
};

/// Somebody between srun and this process started it: the step's numbers are not about it.
bool has_inner_launcher(const Environment& environment) {
  for (const char* name : {"DT_LAUNCHER_PID", "OMPI_COMM_WORLD_SIZE", "TORCHELASTIC_RUN_ID"}) {
    if (find(environment, name) != nullptr) return true;
  }
  const std::string* pmi = find(environment, "PMI_SIZE");  // `srun --mpi=pmi2` sets it equally
  const std::string* tasks = find(environment, "SLURM_STEP_NUM_TASKS");
  return pmi != nullptr && tasks != nullptr && *pmi != *tasks;
}

/// Absent outside of a step that srun started: in a batch script or a shell of salloc too.
Result<std::optional<Step>> read_step(const Environment& environment) {
  const std::optional<Step> none;
  const std::string* id = find(environment, "SLURM_STEP_ID");
  if (id == nullptr || id->front() == '-' || has_inner_launcher(environment)) return none;
  Step step;
  const struct {
    const char* name;
    int64_t* value;
  } rows[] = {{"SLURM_STEP_ID", &step.step},
              {"SLURM_JOB_ID", &step.job},
              {"SLURM_STEP_NUM_NODES", &step.nodes},
              {"SLURM_STEP_NUM_TASKS", &step.tasks},
              {"SLURM_NODEID", &step.node}};
  for (const auto& row : rows) {
    DT_TRY_VALUE(const std::optional<int64_t> value, number(environment, row.name));
    if (!value) return none;
    *row.value = *value;
  }
  if (step.step >= kFirstSpecialStep) return none;
  if (const std::string* hosts = find(environment, "SLURM_STEP_NODELIST")) step.hosts = *hosts;
  return std::optional<Step>(step);
}

Status check_tasks(const Step& step) {
  if (step.tasks <= step.nodes) return {};
  return bad(
      format("%s has %lld tasks on %lld %s, but dt run is started once per node and starts the "
             "ranks itself; use srun --ntasks-per-node=1 dt run -n RANKS_PER_NODE, or dt run "
             "--nnodes 1 for a job of its own in each task",
             step.name().c_str(), static_cast<long long>(step.tasks),
             static_cast<long long>(step.nodes), step.nodes == 1 ? "node" : "nodes"));
}

Status take_slurm_address(const Step& step, NodePlace* place) {
  constexpr size_t kMaxHosts = 100'000;
  DT_TRY_VALUE(const std::vector<std::string> hosts,
               launch::expand_hostlist(step.hosts, kMaxHosts));
  if (hosts.empty()) {
    return bad("SLURM_STEP_NODELIST is empty; give --rendezvous HOST:PORT of node 0");
  }
  place->host = hosts.front();
  place->port = static_cast<uint16_t>(kFirstSlurmPort + step.job % kSlurmPorts);
  return {};
}

Status find_rank(const NodeOptions& options, const Environment& environment,
                 const std::optional<Step>& step, NodePlace* place) {
  std::string who = "--node-rank";
  std::optional<int64_t> rank;
  if (options.node_rank) rank = *options.node_rank;
  if (!rank && step) {
    rank = step->node;
    who = "SLURM_NODEID";
  }
  for (const char* name : {"JOB_COMPLETION_INDEX", "NODE_RANK"}) {
    if (rank) break;
    DT_TRY_VALUE(rank, number(environment, name));
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

Status find_address(const NodeOptions& options, const Environment& environment,
                    const std::optional<Step>& step, NodePlace* place) {
  if (!options.rendezvous.empty()) {
    const Result<HostPort> parsed = parse_host_port(options.rendezvous);
    if (!parsed.ok()) return parsed.status().within("--rendezvous");
    place->host = parsed.value().host;
    place->port = parsed.value().port;
    return {};
  }
  const std::string* host = find(environment, "MASTER_ADDR");
  DT_TRY_VALUE(const std::optional<int64_t> port, number(environment, "MASTER_PORT"));
  if (host != nullptr && port) {
    const Result<HostPort> parsed = parse_host_port(
        (host->find(':') != std::string::npos && host->front() != '[' ? "[" + *host + "]" : *host) +
        ":" + std::to_string(*port));
    if (!parsed.ok()) return parsed.status().within("MASTER_ADDR and MASTER_PORT");
    place->host = parsed.value().host;
    place->port = parsed.value().port;
    return {};
  }
  if (step) return take_slurm_address(*step, place);
  return bad(
      format("--nnodes %d, but nobody says where the nodes meet; give --rendezvous HOST:PORT, "
             "the host of node 0 and a free port there, the same on all nodes, or set "
             "MASTER_ADDR and MASTER_PORT",
             place->node_count));
}

}  // namespace

Result<NodePlace> find_node(const NodeOptions& options, const Environment& environment) {
  NodePlace place;
  place.job_id = options.job_id;
  place.source = "the options";
  const bool alone = options.node_count && *options.node_count == 1;
  std::optional<Step> step;
  if (!alone) {
    DT_TRY_VALUE(step, read_step(environment));
  }
  if (step) {
    DT_TRY(check_tasks(*step));
    if (options.node_count && *options.node_count != step->nodes) {
      return bad(format("--nnodes %d, but %s has %lld nodes; leave --nnodes out",
                        *options.node_count, step->name().c_str(),
                        static_cast<long long>(step->nodes)));
    }
    place.node_count = static_cast<int>(step->nodes);
    place.source = step->name();
    if (place.job_id.empty()) {
      place.job_id = format("slurm-%lld.%lld", static_cast<long long>(step->job),
                            static_cast<long long>(step->step));
    }
  } else if (options.node_count) {
    place.node_count = *options.node_count;
  } else if (options.node_rank || !options.rendezvous.empty()) {
    return bad(format("%s without --nnodes; give --nnodes N, the number of nodes",
                      options.node_rank ? "--node-rank" : "--rendezvous"));
  }
  if (place.node_count < 1 || place.node_count > kMaxNodes) {
    return bad(format("--nnodes %d: the number of nodes is 1 to %d", place.node_count, kMaxNodes));
  }
  if (place.node_count == 1) {
    if (options.node_rank.value_or(0) == 0) return place;
    return bad(format("--node-rank %d is out of range: with one node it is 0", *options.node_rank));
  }
  DT_TRY(find_rank(options, environment, step, &place));
  DT_TRY(find_address(options, environment, step, &place));
  return place;
}

}  // namespace dt::cli
