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
#include "cli/command.h"
#include "cli/run/binding.h"
#include "cli/run/devices.h"
#include "cli/run/environment.h"
#include "cli/run/fleet.h"
#include "cli/run/options.h"
#include "cli/run/stop_interrupt.h"
#include "cli/run/supervisor.h"
#include "config/config.h"
#include "job/host_identity.h"
#include "job/store_options.h"
#include "launch/credentials.h"
#include "net/loop.h"
#include "store/server.h"

namespace dt::cli {
namespace {

constexpr rlim_t kFdsPerRank = 4;  // two pipes, two log files
constexpr int kFdsPerNode = 2;     // connections of its agent
constexpr rlim_t kFdsOfAgent = 64;
constexpr rlim_t kFdsForStrangers = 512;  // who connect and say nothing, where the limit allows
constexpr int64_t kSettleMs = 15'000;  // after the grace: what a node may take to sweep and to tell

/// What outlives an attempt.
struct Agent {
  Agent(const RunOptions& given, Config settings, NodePlace place)
      : options(given), config(std::move(settings)), node(std::move(place)) {}

  const RunOptions& options;
  const Config config;
  const NodePlace node;
  SupervisorPlan plan;
  OutputOptions output;
  ReservedPort master;              // with one node or on node 0
  ReservedPort ras;                 // of NCCL's service on this node
  std::unique_ptr<net::Loop> loop;  // of the fleet
  std::unique_ptr<Fleet> fleet;     // null with one node; ends before the loop
  launch::Credentials credentials;
  BindPlan binding;
  std::string nccl_note;  // inherited variables that are replaced
  int stopped_by = 0;     // a signal that ended a wait for other nodes
};

// Room for the agent's descriptors; the connections of the stores count too. The ranks get what
// was there before, which is `before`.
Status raise_open_files(const rlimit& before, int local_size, int connections) {
  const rlim_t needed = kFdsOfAgent + kFdsPerRank * static_cast<rlim_t>(local_size) +
                        static_cast<rlim_t>(connections);
  rlimit raised = before;
  raised.rlim_cur = std::max(before.rlim_cur, std::min(needed + kFdsForStrangers, before.rlim_max));
  if (raised.rlim_cur >= needed && setrlimit(RLIMIT_NOFILE, &raised) == 0) return {};
  return Status(Code::kSystem,
                format("%d ranks and %d connections need %llu open files, the hard limit is %llu; "
                       "raise it (ulimit -Hn), or start fewer ranks on this machine",
                       local_size, connections, static_cast<unsigned long long>(needed),
                       static_cast<unsigned long long>(before.rlim_max)));
}

// Options win over dt.toml and DT_RUN_*.
void settle_options(Agent* agent) {
  const RunOptions& options = agent->options;
  const Config& config = agent->config;
  SupervisorPlan& plan = agent->plan;
  plan.grace_ms = options.grace_ms.value_or(config.integer("run.grace_ms"));
  if (options.grace_ms || config.given("run.grace_ms")) plan.stop_grace_ms = plan.grace_ms;
  plan.end_on_failure = options.end_on_failure;
  plan.heed_ms = config.integer("run.stop_grace_ms");
  plan.place.local_size = options.nproc;
  plan.place.world_size = options.nproc;
  plan.place.max_restarts = options.max_restarts;
  plan.place.agent_pid = getpid();
  agent->output.tail_lines =
      options.show_lines.value_or(static_cast<int>(config.integer("run.show_lines")));
}

/// What the ranks of this node run on.
Status settle_processors(Agent* agent) {
  const int ranks = agent->options.nproc;
  DT_TRY(check_gpus(ranks, count_gpus("/dev", getenv("CUDA_VISIBLE_DEVICES")), agent->config));
  if (agent->options.bind != Bind::kNone) {
    agent->binding =
        plan_binding(agent->options.bind, read_topology("/sys", allowed_cpus()), ranks);
    agent->plan.cpus = agent->binding.cpus;
  }
  if (getenv("OMP_NUM_THREADS") != nullptr) return {};
  const int own = agent->binding.cores_per_rank;
  agent->plan.place.omp_num_threads = own > 0 ? own : std::max(1, usable_cores() / ranks);
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

// ---- the other nodes ----

/// An error that keeps this node from starting ranks. Alone it is the end; the agents of other
/// nodes wait for this one and must hear of it, so it goes on until they have.
Status cannot_start(Agent* agent, const Status& status, int code = kExitFailure) {
  if (status.ok() || agent->node.node_count == 1) return status;
  if (!agent->plan.start_error.ok()) return {};  // the first one counts
  agent->plan.start_error = status;
  agent->plan.start_code = code;
  return {};
}

/// A wait for other nodes, which a signal to this agent ends.
template <class F>
auto while_stoppable(Agent* agent, Signals* signals, F&& function)
    -> decltype(function(std::declval<const Wait&>())) {
  DT_TRY_VALUE(const auto stop, StopInterrupt::start(agent->loop.get(), signals));
  const Deadline deadline = Deadline::after_ms(agent->config.integer("rendezvous.timeout_ms"));
  auto result = function(Wait{deadline, stop->interrupt()});
  if (!result.ok()) {
    agent->stopped_by = stop->signal();
  } else if (stop->signal() != 0) {  // it came a moment too late: the attempt ends by it
    agent->plan.stop_signal = stop->signal();
    agent->plan.stopped_here = true;
  }
  return result;
}

Status meet(Agent* agent, Signals* signals) {
  FleetOptions options;
  options.node = agent->node;
  options.local_size = agent->options.nproc;
  options.max_restarts = agent->options.max_restarts;
  options.host_name = agent->plan.host;
  options.pid = getpid();
  options.job_id = agent->plan.place.job_id;
  options.bind_address = agent->config.text("store.bind");
  options.timeout_ms = agent->config.integer("rendezvous.timeout_ms");
  options.security = agent->credentials.security;
  options.settle_timeout_ms = agent->plan.grace_ms + kSettleMs;
  options.logger = std::make_shared<Logger>();
  DT_TRY_VALUE(agent->loop, net::Loop::start("dt-agents"));
  auto met = while_stoppable(agent, signals, [&](const Wait& wait) {
    return Fleet::meet(agent->loop.get(), options, wait);
  });
  DT_TRY(met.status());
  agent->fleet = std::move(met).value();
  const Fleet& fleet = *agent->fleet;
  JobPlace& place = agent->plan.place;
  place.world_size = fleet.world_size();
  place.first_rank = fleet.own().first_rank;
  place.node_rank = fleet.node_rank();
  place.node_count = agent->node.node_count;
  place.max_restarts = fleet.max_restarts();
  place.job_id = fleet.job_id();
  agent->plan.fleet = agent->fleet.get();
  return {};
}

// ---- an attempt ----

// The store of one attempt, served by this process.
struct ServedStore {
  std::unique_ptr<net::Loop> loop;
  std::unique_ptr<store::Server> server;  // ends before the loop
};

Result<ServedStore> serve_store(const Agent& agent) {
  const JobPlace& place = agent.plan.place;
  store::ServerOptions options = job::store_options(agent.config);
  options.security = agent.credentials.security;
  options.logger = std::make_shared<Logger>();
  options.job_id = place.job_id;
  options.attempt = place.attempt;
  options.world_size = place.world_size;
  options.host = agent.plan.host;
  options.pid = place.agent_pid;
  if (Fleet* const fleet = agent.fleet.get(); fleet != nullptr) {
    options.bind_address = fleet->bind_address();
    options.on_heed = [fleet, attempt = place.attempt] { fleet->tell_heed(attempt); };
  }
  ServedStore served;
  DT_TRY_VALUE(served.loop, net::Loop::start("dt-store"));
  DT_TRY_VALUE(served.server, store::Server::start(served.loop.get(), options));
  return served;
}

/// Node 0 has no store to offer, but the others wait for its word. Told before they have it, so
/// that they start no ranks.
Status publish_failure(Agent* agent) {
  const JobPlace& place = agent->plan.place;
  agent->plan.first_failed_rank = [] { return -1; };
  agent->fleet->tell_failure(place.attempt, -1);
  Endpoints nowhere;
  nowhere.attempt = place.attempt;
  return agent->fleet->publish(nowhere);
}

/// The others may have begun the attempt: it goes on until they have heard why this node has not.
Status cannot_go_on(Agent* agent, const Status& why) {
  if (agent->stopped_by == 0) return cannot_start(agent, why);
  agent->plan.stop_signal = std::exchange(agent->stopped_by, 0);
  agent->plan.stopped_here = true;
  return {};
}

Status serve_attempt(Agent* agent, ServedStore* served) {
  JobPlace& place = agent->plan.place;
  DT_TRY_VALUE(*served, serve_store(*agent));
  agent->plan.first_failed_rank = [server = served->server.get()] {
    return server->first_failed_rank();
  };
  agent->plan.ask_to_stop = [server = served->server.get()] {
    if (!server->heeds_stop()) return false;
    server->request_stop();
    return true;
  };
  place.store_port = served->server->port();
  // PyTorch's ranks then find a store there that is served already.
  place.torch_store = agent->config.boolean("store.torch_compat");
  place.master_port = place.torch_store ? place.store_port : agent->master.port;
  return {};
}

/// Where the ranks of this attempt meet: served here, or told by node 0.
Status open_attempt(Agent* agent, Signals* signals, ServedStore* served) {
  JobPlace& place = agent->plan.place;
  Fleet* fleet = agent->fleet.get();
  if (fleet != nullptr && fleet->node_rank() != 0) {
    if (agent->plan.stop_signal != 0) {  // no ranks are started, and the others must hear of it
      fleet->begin(place.attempt);
      return {};
    }
    const auto told = while_stoppable(agent, signals, [&](const Wait& wait) {
      return fleet->await_endpoints(place.attempt, wait);
    });
    if (!told.ok()) return cannot_go_on(agent, told.status());
    const Endpoints& endpoints = told.value();
    place.store_host = endpoints.store_host;
    place.store_port = endpoints.store_port;
    place.master_host = endpoints.master_host;
    place.master_port = endpoints.master_port;
    place.torch_store = endpoints.master_port == endpoints.store_port;
    agent->plan.ask_to_stop = [fleet, attempt = place.attempt] { return fleet->heeded(attempt); };
    return {};
  }
  if (agent->plan.start_error.ok()) DT_TRY(cannot_start(agent, serve_attempt(agent, served)));
  if (fleet == nullptr) return {};
  if (!agent->plan.start_error.ok()) return publish_failure(agent);
  place.store_host = place.master_host = fleet->reachable_host();
  return fleet->publish({place.attempt, place.job_id, place.store_host, place.store_port,
                         place.master_host, place.master_port});
}

/// With restarts each attempt has a folder of its own. `plain` is what the terminal gets when the
/// options cannot be followed.
Result<std::unique_ptr<Output>> open_output(const Agent* agent, bool plain) {
  const JobPlace& place = agent->plan.place;
  OutputOptions options = agent->output;
  options.ranks = place.local_size;
  options.first_rank = place.first_rank;
  options.world_size = place.world_size;
  options.prefix =
      agent->options.prefix.value_or(place.world_size > 1 && agent->config.boolean("run.prefix"));
  if (plain) return Output::create(options, STDOUT_FILENO, STDERR_FILENO);
  DT_TRY_VALUE(const std::vector<bool> shown, parse_show(agent->options.show, place.world_size));
  options.shown.assign(shown.begin() + place.first_rank,
                       shown.begin() + place.first_rank + place.local_size);
  options.log_dir = agent->options.log_dir;
  if (!options.log_dir.empty() && place.max_restarts > 0) {
    options.log_dir += format("/attempt-%d", place.attempt);
  }
  return Output::create(options, STDOUT_FILENO, STDERR_FILENO);
}

void say_what_is_set_up(const SupervisorPlan& plan, Output* output) {
  const JobPlace& place = plan.place;
  std::string where = plan.host;
  if (place.node_count > 1) {
    where = format("%s, node %d of %d (ranks %d-%d of %d)", plan.host.c_str(), place.node_rank,
                   place.node_count, place.first_rank, place.first_rank + place.local_size - 1,
                   place.world_size);
  }
  output->message(format("dt run: job %s, %d ranks on %s, store %s:%d, MASTER_PORT %d",
                         place.job_id.c_str(), place.local_size, where.c_str(),
                         place.store_host.c_str(), place.store_port, place.master_port));
  for (size_t i = 0; i < plan.cpus.size(); ++i) {
    output->message(format("dt run: rank %zu on processors %s",
                           static_cast<size_t>(place.first_rank) + i,
                           cpu_list_text(plan.cpus[i]).c_str()));
  }
  if (place.omp_num_threads == 0) return;
  output->message(format("dt run: OMP_NUM_THREADS=%d, as it was not set: %d cores for %d ranks",
                         place.omp_num_threads, usable_cores(), place.local_size));
}

/// Attempt after attempt, until one ends well or may not be repeated.
Result<int> run_attempts(Agent* agent, Signals* signals, Guardian* guardian) {
  for (;; ++agent->plan.place.attempt) {
    ServedStore served;
    DT_TRY(open_attempt(agent, signals, &served));
    auto opened = open_output(agent, false);
    if (!opened.ok()) {
      DT_TRY(cannot_start(agent, opened.status()));
      opened = open_output(agent, true);
    }
    DT_TRY_VALUE(const std::unique_ptr<Output> output, std::move(opened));
    agent->plan.place.terminal = output->is_terminal(Stream::kStdout);
    if (!agent->binding.note.empty()) output->message("dt run: " + agent->binding.note);
    agent->binding.note.clear();  // once
    if (!agent->nccl_note.empty()) output->message("dt run: warning: " + agent->nccl_note);
    agent->nccl_note.clear();
    if (agent->options.verbose) say_what_is_set_up(agent->plan, output.get());
    Supervisor supervisor(agent->plan, *signals, *guardian, *output);
    const Outcome outcome = supervisor.run();
    if (!outcome.restart) {
      return outcome.exit_code == 0 && output->is_cut_short() ? 1 : outcome.exit_code;
    }
    agent->plan.stop_signal = supervisor.stop_signal();
    agent->plan.stopped_here = supervisor.stopped_here();
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
  DT_TRY(cannot_start(agent, raise_open_files(plan.open_files, plan.place.local_size,
                                              plan.place.local_size + kFdsPerNode * nodes)));
  DT_TRY(cannot_start(agent, settle_processors(agent)));
  DT_TRY(cannot_start(agent, settle_nccl(agent)));
  // Not a matter of this node alone: without the token it cannot tell the others.
  DT_TRY(settle_credentials(agent));

  // Before any thread exists: the signal mask, which threads inherit, and the fork of the guardian.
  DT_TRY_VALUE(Signals signals, Signals::block());
  DT_TRY_VALUE(const std::unique_ptr<Guardian> guardian, Guardian::start());
  prctl(PR_SET_CHILD_SUBREAPER, 1);

  if (nodes > 1) {
    DT_TRY(meet(agent, &signals));
  }
  if (agent->node.node_rank == 0) {
    DT_TRY(cannot_start(agent, raise_open_files(plan.open_files, plan.place.local_size,
                                                plan.place.world_size + kFdsPerNode * nodes)));
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

int run_parsed(const RunOptions& options) {
  const Result<NodePlace> node = find_node(options.node, process_environment());
  if (!node.ok()) return usage_error(node.status());
  if (node.value().node_count == 1) {
    const auto shown = parse_show(options.show, options.nproc);
    if (!shown.ok()) return usage_error(shown.status());
  }
  Result<Config> config = Config::load(process_environment());
  const Status config_error = config.status();
  Agent agent(options, config.ok() ? std::move(config).value() : Config(), node.value());
  const Result<std::string> program = find_program(options.command.front());
  if (program.ok()) agent.plan.program = program.value();
  for (const auto& [error, code] :
       {std::pair(program.status(), kExitNotFound), std::pair(config_error, kExitFailure)}) {
    const Status alone = cannot_start(&agent, error, code);
    if (!alone.ok()) return fail("run", alone, code);
  }
  const Result<int> exit_code = run_job(&agent);
  if (exit_code.ok()) return exit_code.value();
  return fail("run", exit_code.status(), agent.stopped_by != 0 ? 128 + agent.stopped_by : 1);
}

}  // namespace

int run_command(int argument_count, char** arguments) {
  const ParsedRun parsed = parse_run(argument_count, arguments);
  return parsed.exit_code ? *parsed.exit_code : run_parsed(parsed.options);
}

}  // namespace dt::cli
