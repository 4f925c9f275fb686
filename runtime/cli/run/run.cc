// SPDX-License-Identifier: Apache-2.0
// `dt run`: puts the parts together, in the order that forking demands.
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "backend/nccl/conf.h"
#include "backend/nccl/settings.h"
#include "cli/run/agent.h"
#include "cli/run/devices.h"
#include "cli/run/processes.h"
#include "cli/run/rounds.h"
#include "job/host_identity.h"
#include "launch/facts.h"
#include "net/interfaces.h"

namespace dt::cli {
namespace {

// Options win over dt.toml and DT_RUN_*.
void settle_options(Agent* agent) {
  const RunOptions& options = agent->options;
  const Config& config = agent->config;
  SupervisorPlan& plan = agent->plan;
  plan.grace_ms = options.grace_ms.value_or(config.integer("run.grace_ms"));
  if (options.grace_ms || config.given("run.grace_ms")) plan.stop_grace_ms = plan.grace_ms;
  plan.end_on_failure = options.end_on_failure;
  plan.lost_ranks = &agent->lost_ranks;
  plan.heed_ms = config.integer("run.stop_grace_ms");
  plan.place.local_size = agent->local_size;
  plan.place.world_size = agent->local_size;
  plan.place.max_restarts = options.max_restarts;
  plan.place.local_servers = options.servers;
  plan.server_restarts = options.server_restarts;
  plan.place.agent_pid = getpid();
  launch::Variables variables(process_environment());
  plan.place.around = launch::launches_around(variables);
  plan.place.store_host = plan.place.master_host = net::loopback_host();
  agent->output.tail_lines =
      options.show_lines.value_or(static_cast<int>(config.integer("run.show_lines")));
}

/// What the ranks of this node run on.
Status settle_processors(Agent* agent) {
  const int ranks = agent->local_size;
  DT_TRY(check_gpus(ranks, count_gpus("/dev", getenv("CUDA_VISIBLE_DEVICES")), agent->config));
  if (agent->options.bind != Bind::kNone) {
    agent->binding =
        plan_binding(agent->options.bind, read_topology("/sys", allowed_cpus()), ranks);
    agent->plan.cpus = agent->binding.cpus;
  }
  if (getenv("OMP_NUM_THREADS") != nullptr) return {};
  Threads threads = threads_per_rank(agent->binding.cores_per_rank, usable_cores(), ranks);
  agent->plan.place.omp_num_threads = threads.count;
  agent->plan.place.omp_reason = std::move(threads.reason);
  return {};
}

/// The table [nccl] as the ranks' environment.
Status settle_nccl(Agent* agent) {
  DT_TRY_VALUE(const nccl::Settings settings, nccl::Settings::read(agent->config));
  const Environment environment = process_environment();
  for (const nccl::Variable& each : nccl::to_set(settings, environment)) {
    agent->plan.place.variables.emplace_back(each.name, each.value);
  }
  agent->nccl_note = nccl::replaced_text(settings, environment);
  // Held as long as the job lives; without one the service stays off.
  if (Result<ReservedPort> ras = reserve_port(); ras.ok()) agent->ras = std::move(ras).value();
  const auto lines = nccl::read_conf(environment, nccl::conf_places());
  for (const nccl::Variable& each :
       nccl::ras_variables(settings, environment, lines, agent->ras.port)) {
    agent->plan.place.variables.emplace_back(each.name, each.value);
  }
  return {};
}

/// What guards the job: on one node a token of its own, unless the user gives one.
Status settle_credentials(Agent* agent) {
  const bool alone = agent->node.node_count == 1;
  DT_TRY_VALUE(agent->credentials,
               launch::find_credentials(agent->config, process_environment(), alone));
  if (alone && !agent->credentials.has_token() && agent->credentials.takes_token()) {
    DT_TRY_VALUE(net::Token token, net::Token::random());
    agent->credentials.take(std::move(token), "dt run");
  }
  if (agent->credentials.has_token()) {
    agent->plan.place.token = agent->credentials.security.token->text();
  }
  return {};
}

Status meet(Agent* agent, Signals* signals) {
  const FleetOptions options = fleet_options(*agent);
  DT_TRY_VALUE(agent->loop, net::Loop::start("dt-agents"));
  auto met = while_stoppable(agent, signals, options.timeout_ms, [&](const Wait& wait) {
    return Fleet::meet(agent->loop.get(), options, wait);
  });
  DT_TRY(met.status());
  take_fleet(agent, std::move(met).value());
  return {};
}

/// Attempt after attempt, until one ends well or may not be repeated.
Result<int> run_attempts(Agent* agent, Signals* signals, Guardian* guardian) {
  for (;; ++agent->plan.place.attempt) {
    DT_TRY_VALUE(const AttemptEnd end, run_attempt(agent, signals, guardian));
    if (!end.outcome.restart) return end.exit_code;
  }
}

Result<int> run_job(Agent* agent) {
  SupervisorPlan& plan = agent->plan;
  plan.args = agent->options.command;
  plan.host = job::host_name();
  settle_options(agent);
  plan.place.job_id = agent->node.job_id;
  if (plan.place.job_id.empty()) {
    DT_TRY_VALUE(plan.place.job_id, random_job_id());
  }
  if (getrlimit(RLIMIT_NOFILE, &plan.open_files) != 0) {
    return Status(Code::kSystem, "cannot read the limit of open files: " + errno_text(errno));
  }
  const int nodes = agent->node.node_count;
  const int processes = plan.place.local_size + plan.place.local_servers;
  DT_TRY(cannot_start(
      agent, raise_open_files(plan.open_files, processes, processes + kFdsPerNode * nodes)));
  DT_TRY(cannot_start(agent, settle_processors(agent)));
  DT_TRY(cannot_start(agent, settle_nccl(agent)));
  // Not a matter of this node alone: without the token it cannot tell the others.
  DT_TRY(settle_credentials(agent));

  // Those of a shell that became this program by exec, such as a `tee` of its output.
  for (const pid_t pid : own_descendants()) plan.outsiders->insert(pid);
  // Before any thread exists: the signal mask, which threads inherit, and the fork of the guardian.
  DT_TRY_VALUE(Signals signals, Signals::block());
  DT_TRY_VALUE(const std::unique_ptr<Guardian> guardian, Guardian::start());
  plan.outsiders->insert(guardian->pid());
  prctl(PR_SET_CHILD_SUBREAPER, 1);

  if (agent->node.elastic()) return run_rounds(agent, &signals, guardian.get());
  if (nodes > 1) {
    DT_TRY(meet(agent, &signals));
  } else if (plan.place.local_servers > 0) {
    DT_TRY_VALUE(plan.place.servers, open_servers(agent, Wait{Deadline::never(), nullptr}));
  }
  if (agent->node.node_rank == 0) {
    DT_TRY(cannot_start(agent, raise_open_files(plan.open_files, processes,
                                                plan.place.world_size + kFdsPerNode * nodes,
                                                files_for_guests(*agent))));
    auto master = reserve_port();
    DT_TRY(cannot_start(agent, master.status()));
    if (master.ok()) agent->master = std::move(master).value();
  }
  const Result<int> exit_code = run_attempts(agent, &signals, guardian.get());
  if (agent->fleet != nullptr && exit_code.ok()) agent->fleet->leave();
  return exit_code;
}

int usage_error(const Status& status) {
  return fail("run", Status(status.code(), status.message() + "; see dt run --help"), kExitUsage);
}

Status check_elastic(const RunOptions& options, const NodePlace& node) {
  if (!node.elastic()) {
    if (!options.allow_minority) return {};
    return Status(Code::kInvalidArgument, "--allow-minority without --min-nodes");
  }
  if (options.servers > 0) {
    return Status(
        Code::kInvalidArgument,
        format("--servers and %s exclude each other: parameter servers of a lost node "
               "would be lost with what they hold; leave one of them out",
               options.node.min_nodes ? "--min-nodes" : "several --rendezvous addresses"));
  }
  if (options.end_on_failure) return {};
  return Status(Code::kInvalidArgument,
                format("--on-failure continue and %s exclude each other: after the loss of a node "
                       "either the others go on, or all start again",
                       options.node.min_nodes ? "--min-nodes" : "several --rendezvous addresses"));
}

int run_parsed(const RunOptions& options) {
  const Result<NodePlace> node = find_node(options.node, process_environment());
  if (!node.ok()) return usage_error(node.status());
  if (const Status fits = check_elastic(options, node.value()); !fits.ok()) {
    return usage_error(fits);
  }
  const Result<int> ranks = count_ranks(
      options.nproc, count_gpus("/dev", getenv("CUDA_VISIBLE_DEVICES")), usable_cores().count);
  if (ranks.status().code() == Code::kInvalidArgument) return usage_error(ranks.status());
  if (node.value().node_count == 1 && ranks.ok()) {
    const auto shown = parse_show(options.show, ranks.value());
    if (!shown.ok()) return usage_error(shown.status());
  }
  Result<Config> config = Config::load(process_environment());
  const Status config_error = config.ok() ? config.value().check_together() : config.status();
  Agent agent(options, config.ok() ? std::move(config).value() : Config(), node.value());
  if (ranks.ok()) agent.local_size = ranks.value();
  const Result<std::string> program = find_program(options.command.front());
  if (program.ok()) agent.plan.program = program.value();
  const auto failed = [&](const Status& why, int code) {
    if (!agent.has_begun) warn("run", agent.config.warnings());
    return fail("run", why, code);
  };
  for (const auto& [error, code] :
       {std::pair(program.status(), kExitNotFound), std::pair(config_error, kExitFailure),
        std::pair(ranks.status(), kExitFailure)}) {
    const Status alone = cannot_start(&agent, error, code);
    if (!alone.ok()) return failed(alone, code);
  }
  const Result<int> exit_code = run_job(&agent);
  if (exit_code.ok()) return exit_code.value();
  // What was kept for the other nodes, who have not come.
  if (!agent.plan.start_error.ok()) fail("run", agent.plan.start_error);
  return failed(exit_code.status(), agent.stopped_by != 0 ? 128 + agent.stopped_by : 1);
}

}  // namespace

int run_command(int argument_count, char** arguments) {
  const ParsedRun parsed = parse_run(argument_count, arguments);
  return parsed.exit_code ? *parsed.exit_code : run_parsed(parsed.options);
}

}  // namespace dt::cli
