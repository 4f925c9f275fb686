// SPDX-License-Identifier: Apache-2.0
// A task of a Slurm step. SLURM_NTASKS, SLURM_NNODES, SLURM_TASKS_PER_NODE and SLURM_JOB_NODELIST
// describe the allocation or an earlier launch, so the step is described by SLURM_STEP_* only.
#include <charconv>
#include <optional>

#include "config/value.h"
#include "launch/hostlist.h"
#include "launch/mpi.h"
#include "launch/slurm.h"

namespace dt::launch {
namespace {

// Batch scripts, interactive shells and the like have step ids from here on (slurm.h); some
// releases print them as negative numbers.
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

constexpr NumberRow kSlurmRows[] = {
    rank_row(Field::kRank, "SLURM_PROCID"),
    size_row(Field::kWorldSize, "SLURM_STEP_NUM_TASKS"),
    rank_row(Field::kLocalRank, "SLURM_LOCALID"),
    rank_row(Field::kNodeRank, "SLURM_NODEID"),
    size_row(Field::kNodeCount, "SLURM_STEP_NUM_NODES"),
};

Result<bool> in_ordinary_step(Variables& variables) {
  DT_TRY_VALUE(const auto id, variables.wide_integer("SLURM_STEP_ID", INT64_MIN, INT64_MAX));
  return id && *id >= 0 && *id < kFirstSpecialStep;
}

/// "4(x2),3": 4, 4, 3. Counts up to `wanted` and all of them.
struct TasksPerNode {
  std::optional<int64_t> wanted;
  int64_t nodes = 0;
  int64_t tasks = 0;
};

std::optional<TasksPerNode> parse_tasks_per_node(const std::string& text, int64_t node) {
  TasksPerNode result;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&](int32_t& value) {
    const auto parsed = std::from_chars(at, end, value);
    const bool good = parsed.ec == std::errc() && value > 0;
    at = parsed.ptr;
    return good;
  };
  for (;;) {
    int32_t tasks = 0;
    int32_t repeat = 1;
    if (!number(tasks)) return std::nullopt;
    if (end - at > 2 && at[0] == '(' && at[1] == 'x') {
      at += 2;
      if (!number(repeat) || at == end || *at++ != ')') return std::nullopt;
    }
    if (node >= result.nodes && node < result.nodes + repeat) result.wanted = tasks;
    result.nodes += repeat;
    result.tasks += int64_t{tasks} * repeat;
    if (result.tasks > INT32_MAX) return std::nullopt;
    if (at == end) return result;
    if (*at++ != ',') return std::nullopt;
  }
}

Status read_tasks_per_node(Variables& variables, Facts& facts) {
  constexpr const char* kVariable = "SLURM_STEP_TASKS_PER_NODE";
  const std::string* text = variables.get(kVariable);
  const auto& node = facts.at(Field::kNodeRank);
  const auto& nodes = facts.at(Field::kNodeCount);
  if (text == nullptr || !node || !nodes) return {};
  const std::string shown = variables.shown(kVariable) + "=" + config::quoted(*text);
  const auto parsed = parse_tasks_per_node(*text, node->value);
  if (!parsed) {
    return launch_error("bad_tasks_per_node",
                        shown + "; expected counts such as 4(x2),3; start the program with srun");
  }
  const NumberFact& size = *facts.at(Field::kWorldSize);
  if (parsed->tasks != size.value || parsed->nodes != nodes->value) {
    return launch_error(
        "bad_tasks_per_node",
        format("%s are %lld tasks on %lld nodes, but %s and %s; start the program with srun, and "
               "do not export SLURM_STEP_* variables",
               shown.c_str(), static_cast<long long>(parsed->tasks),
               static_cast<long long>(parsed->nodes), size.text().c_str(), nodes->text().c_str()));
  }
  if (parsed->wanted) {
    facts.at(Field::kLocalSize) = NumberFact{static_cast<int32_t>(*parsed->wanted), kVariable};
  }
  return {};
}

/// The first host of a list, and a port from the job's number. No more names are made than
/// `node_count`.
Status read_first_host(Variables& variables, const char* list, int32_t node_count, Facts& facts) {
  // Where the user says it, the list is not needed and may well be odd.
  if (variables.get("MASTER_ADDR") != nullptr && variables.get("MASTER_PORT") != nullptr) return {};
  const std::string* text = variables.get(list);
  DT_TRY_VALUE(const auto job, variables.wide_integer("SLURM_JOB_ID", 0, UINT32_MAX));
  if (text == nullptr || !job) return {};
  const auto hosts = expand_hostlist(*text, static_cast<size_t>(node_count));
  if (!hosts.ok()) {
    return launch_error("bad_nodelist",
                        variables.shown(list) + ": " + hosts.status().message() +
                            "; set MASTER_ADDR and MASTER_PORT to the host of rank 0 and a free "
                            "port there");
  }
  if (hosts.value().empty()) return {};
  const auto host = parse_host(variables.shown(list), hosts.value().front());
  if (!host.ok()) return host.status();
  facts.master_addr = TextFact{host.value(), variables.shown(list)};
  facts.at(Field::kMasterPort) = NumberFact{port_of_job(*job), "10000 + SLURM_JOB_ID mod 10000"};
  facts.by_convention = facts.address_by_convention = true;
  return {};
}

Status read_step_address(Variables& variables, Facts& facts) {
  const int32_t nodes = facts.value(Field::kNodeCount, 1);
  const std::string* distribution = variables.get("SLURM_DISTRIBUTION");
  if (distribution != nullptr && distribution->find("arbitrary") == 0 && nodes > 1) {
    facts.no_address = launch_error("ambiguous_host_order",
                                    "SLURM_DISTRIBUTION=" + config::quoted(*distribution) +
                                        ": rank 0 need not be on the first node of "
                                        "SLURM_STEP_NODELIST; set MASTER_ADDR and MASTER_PORT to "
                                        "its host and a free port there")
                           .message();
    return {};
  }
  return read_slurm_step_host(variables, facts);
}

}  // namespace

Result<Facts> read_slurm_step(Variables& variables) {
  Facts facts;
  facts.launcher = "slurm";
  DT_TRY_VALUE(const bool ordinary, in_ordinary_step(variables));
  if (!ordinary) return facts;
  DT_TRY(read_numbers(variables, kSlurmRows, facts));
  if (const std::string* job = variables.get("SLURM_JOB_ID")) {
    facts.job_id = TextFact{*job + "." + *variables.get("SLURM_STEP_ID"), "SLURM_STEP_ID"};
  }
  return facts;
}

Status read_slurm_step_host(Variables& variables, Facts& facts) {
  return read_first_host(variables, "SLURM_STEP_NODELIST", facts.value(Field::kNodeCount, 1),
                         facts);
}

Status read_slurm_job(Variables& variables, Facts& facts) {
  constexpr int32_t kMostNodes = 100000;  // Slurm itself holds 64 Ki
  const auto nodes = variables.integer("SLURM_JOB_NUM_NODES", 1, kMostNodes);
  return read_first_host(variables, "SLURM_JOB_NODELIST",
                         nodes.ok() ? nodes.value().value_or(kMostNodes) : kMostNodes, facts);
}

Result<Facts> read_slurm(Variables& variables) {
  DT_TRY_VALUE(Facts facts, read_slurm_step(variables));
  if (!facts.complete()) return facts;
  DT_TRY(read_tasks_per_node(variables, facts));
  DT_TRY(read_step_address(variables, facts));
  if (facts.value(Field::kWorldSize, 1) > 1 && variables.get("SLURM_PTY_PORT") != nullptr) {
    facts.warnings.push_back(
        "slurm_pty: this step was started by srun --pty: only its task 0 has a terminal, and if it "
        "runs a shell, so do the others, which will not come. Run the program with a srun of its "
        "own");
  }
  read_exchange(variables, facts);
  return facts;
}

void warn_slurm_alone(Variables& variables) {
  const auto tasks = variables.integer("SLURM_NTASKS", 1, INT32_MAX);
  if (variables.get("SLURM_JOB_ID") == nullptr || !tasks.ok() || tasks.value().value_or(1) < 2) {
    return;
  }
  variables.warn(
      format("slurm_allocation_without_srun: the allocation is for %d tasks (SLURM_NTASKS), but "
             "this process was not started by srun: running as 1 of 1. Start it with srun",
             *tasks.value()));
}

}  // namespace dt::launch
