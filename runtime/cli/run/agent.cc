// SPDX-License-Identifier: Apache-2.0
// One attempt of an agent: where its ranks meet, what shows their output, who supervises them.
#include "cli/run/agent.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "job/job.h"
#include "job/store_options.h"
#include "store/messages.h"
#include "store/relay.h"
#include "store/server.h"

namespace dt::cli {
namespace {

constexpr rlim_t kFdsPerRank = 4;  // two pipes, two log files
constexpr rlim_t kFdsOfAgent = 64;
// PyTorch up to 1.13 has two connections a rank, and the store gives such clients half of its
// descriptors at most. That makes four a rank; its own connection is one of them.
constexpr int kFdsPerGuestRank = 3;
constexpr rlim_t kFdsForStrangers = 512;  // who connect and say nothing, where the limit allows
constexpr int64_t kRelayMs = 10'000;      // to reach a store that is served already
constexpr int64_t kSettleMs = 15'000;  // after the grace: what a node may take to sweep and to tell

// The store of one attempt, served by this process.
struct ServedStore {
  std::unique_ptr<net::Loop> loop;
  std::unique_ptr<store::Server> server;  // ends before the loop
};

// The way of this node's ranks to it, where they share one.
struct SharedWay {
  std::unique_ptr<net::Loop> loop;
  std::unique_ptr<store::Relay> relay;  // ends before the loop
};

Result<ServedStore> serve_store(Agent& agent) {
  const JobPlace& place = agent.plan.place;
  store::ServerOptions options = job::store_options(agent.config);
  options.security = agent.credentials.security;
  options.logger = agent.logger;
  options.job_id = place.job_id;
  options.attempt = place.attempt;
  options.world_size = place.world_size;
  options.host = agent.plan.host;
  options.pid = place.agent_pid;
  options.several_jobs = true;
  options.bind_address = place.store_host;
  Fleet* const fleet = agent.fleet.get();
  options.on_silent = [lost = &agent.lost_ranks, fleet, attempt = place.attempt](int32_t rank) {
    lost->note(attempt, rank);
    if (fleet != nullptr) fleet->tell_silent(attempt, rank);
  };
  if (fleet != nullptr) {
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
  agent->plan.first_failure = [] { return store::FirstFailure(); };
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
  agent->plan.ask_to_stop = nullptr;  // they know the store of the attempt before
  agent->plan.process_ended = nullptr;
  DT_TRY_VALUE(*served, serve_store(*agent));
  agent->plan.process_ended = [server = served->server.get()](const store::Member& rank,
                                                              const std::string& how) {
    server->process_ended(rank, how);
  };
  agent->plan.first_failure = [server = served->server.get()] { return server->first_failure(); };
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
    agent->plan.process_ended = [fleet, attempt = place.attempt](const store::Member& rank,
                                                                 const std::string& how) {
      fleet->tell_end(attempt, rank, how);
    };
    const int64_t timeout_ms = agent->config.integer("rendezvous.timeout_ms");
    const auto told = while_stoppable(agent, signals, timeout_ms, [&](const Wait& wait) {
      return fleet->await_endpoints(place.attempt, wait);
    });
    if (!told.ok() && agent->node.elastic() && agent->stopped_by == 0) return told.status();
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

Result<SharedWay> start_relay(Agent* agent, Signals* signals) {
  const JobPlace& place = agent->plan.place;
  store::RelayOptions options;
  options.host = place.store_host;
  options.port = static_cast<uint16_t>(place.store_port);
  options.job_id = place.job_id;
  options.attempt = place.attempt;
  options.host_name = agent->plan.host;
  options.security = agent->credentials.security;
  options.logger = agent->logger;
  SharedWay way;
  DT_TRY_VALUE(way.loop, net::Loop::start("dt-relay"));
  const auto start = [&](const Wait& wait) {
    return store::Relay::start(way.loop.get(), options, wait);
  };
  DT_TRY_VALUE(way.relay, agent->fleet == nullptr
                              ? start(Wait{Deadline::after_ms(kRelayMs)})
                              : while_stoppable(agent, signals, kRelayMs, start));
  return way;
}

/// Once the store is known.
Status open_relay(Agent* agent, Signals* signals, SharedWay* way) {
  JobPlace& place = agent->plan.place;
  place.relay_port = 0;
  const bool starts_ranks = agent->plan.start_error.ok() && agent->plan.stop_signal == 0;
  // Without a port node 0 could not serve, and says why.
  if (!agent->config.boolean("store.relay") || !starts_ranks || place.store_port == 0) return {};
  auto started = start_relay(agent, signals);
  if (!started.ok()) return cannot_go_on(agent, started.status());
  *way = std::move(started).value();
  place.relay_port = way->relay->port();
  place.relay_address = way->relay->store_address();
  return {};
}

/// Of --log-dir in this attempt; empty: none.
std::string log_folder(const Agent& agent) {
  const JobPlace& place = agent.plan.place;
  std::string folder = agent.options.log_dir;
  if (!folder.empty() && (place.max_restarts > 0 || agent.node.elastic())) {
    folder += format("/attempt-%d", place.attempt);
  }
  return folder;
}

/// Holds a folder of this user's, for as long as the descriptor lives. Not open: another agent
/// holds it, or it is gone.
Fd hold_folder(const std::string& path) {
  Fd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat held {};
  struct stat named {};
  if (!fd.is_open() || fstat(fd.get(), &held) != 0 || held.st_uid != geteuid() ||
      flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return Fd();
  }
  // It may have been removed before it was held.
  if (lstat(path.c_str(), &named) != 0 || named.st_ino != held.st_ino ||
      named.st_dev != held.st_dev) {
    return Fd();
  }
  return fd;
}

constexpr char kErrorFolder[] = "dt-errors-";

/// Of agents that were killed: nobody holds them.
void remove_error_folders(const std::filesystem::path& where) {
  std::error_code error;
  std::filesystem::directory_iterator entry(where, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(kErrorFolder)) continue;
    std::error_code ignored;
    const Fd held = hold_folder(entry->path());
    if (held.is_open()) std::filesystem::remove_all(entry->path(), ignored);
  }
}

/// Where the ranks of an attempt write why they failed: beside their logs, else a folder for as
/// long as the attempt lasts. Without one they do not write it.
class ErrorFolder {
 public:
  explicit ErrorFolder(Agent* agent) : place_(agent->plan.place) {
    const std::string logs = log_folder(*agent);
    std::error_code ignored;
    if (logs.empty()) {
      make_own();
      return;
    }
    place_.error_folder = std::filesystem::absolute(logs, ignored);
    for (int rank = 0; rank < place_.local_size; ++rank) {  // of an earlier run
      std::filesystem::remove(error_file(place_, rank), ignored);
    }
  }
  ~ErrorFolder() {
    place_.error_folder.clear();
    std::error_code ignored;
    if (!own_.empty()) std::filesystem::remove_all(own_, ignored);
  }
  ErrorFolder(const ErrorFolder&) = delete;
  ErrorFolder& operator=(const ErrorFolder&) = delete;

 private:
  void make_own() {
    std::error_code missing;
    std::filesystem::path where = std::filesystem::temp_directory_path(missing);
    if (missing) where = "/tmp";  // TMPDIR names no folder
    where = std::filesystem::absolute(where, missing);
    if (place_.attempt == 0) remove_error_folders(where);
    for (int tries = 0; tries < 3; ++tries) {
      std::string own = where / (std::string(kErrorFolder) + "XXXXXX");
      if (mkdtemp(own.data()) == nullptr) return;
      held_ = hold_folder(own);
      place_.error_folder = own_ = own;
      // Another agent may have removed it before it was held. Where a file system has no locks
      // nobody removes it.
      if (held_.is_open() || std::filesystem::exists(own, missing)) return;
    }
  }

  JobPlace& place_;
  std::string own_;
  Fd held_;
};

/// With restarts each attempt has a folder of its own. `plain` is what the terminal gets when the
/// options cannot be followed.
Result<std::unique_ptr<Output>> open_output(const Agent* agent, bool plain) {
  const JobPlace& place = agent->plan.place;
  OutputOptions options = agent->output;
  options.ranks = place.local_size;
  options.first_rank = place.first_rank;
  options.world_size = place.world_size;
  options.servers = place.local_servers;
  options.first_server = place.first_server;
  const bool several = place.world_size > 1 || place.local_servers > 0;
  options.prefix = agent->options.prefix.value_or(several && agent->config.boolean("run.prefix"));
  if (plain) return Output::create(options, STDOUT_FILENO, STDERR_FILENO);
  // The ranks of an elastic job may become fewer.
  const int most = agent->node.elastic() ? kMaxWorldSize : place.world_size;
  DT_TRY_VALUE(const std::vector<bool> shown, parse_show(agent->options.show, most));
  options.shown.assign(shown.begin() + place.first_rank,
                       shown.begin() + place.first_rank + place.local_size);
  options.shown.resize(options.shown.size() + static_cast<size_t>(place.local_servers),
                       agent->options.show == "all");  // ranks alone have numbers there
  options.log_dir = log_folder(*agent);
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
  if (place.relay_port != 0) {
    output->message(format("dt run: the ranks of this node share the connection of port %d to it",
                           place.relay_port));
  }
  for (size_t i = 0; i < plan.cpus.size(); ++i) {
    output->message(format("dt run: rank %zu on processors %s",
                           static_cast<size_t>(place.first_rank) + i,
                           cpu_list_text(plan.cpus[i]).c_str()));
  }
  for (int server = 0; server < place.local_servers; ++server) {
    const int index = place.first_server + server;
    output->message(format("dt run: parameter server %d of %zu at %s", index, place.servers.size(),
                           place.servers[static_cast<size_t>(index)].c_str()));
  }
  if (place.omp_num_threads == 0) return;
  output->message(format("dt run: OMP_NUM_THREADS=%d, as it was not set: %s", place.omp_num_threads,
                         place.omp_reason.c_str()));
}

}  // namespace

Agent::Agent(const RunOptions& given, Config settings, NodePlace place)
    : options(given),
      config(std::move(settings)),
      node(std::move(place)),
      logger(std::make_shared<Logger>(job::log_level(config))) {}

Status raise_open_files(const rlimit& before, int processes, int connections, int spare) {
  const rlim_t needed =
      kFdsOfAgent + kFdsPerRank * static_cast<rlim_t>(processes) + static_cast<rlim_t>(connections);
  rlimit raised = before;
  const rlim_t wanted = needed + kFdsForStrangers + static_cast<rlim_t>(spare);
  raised.rlim_cur = std::max(before.rlim_cur, std::min(wanted, before.rlim_max));
  if (raised.rlim_cur >= needed && setrlimit(RLIMIT_NOFILE, &raised) == 0) return {};
  return Status(Code::kSystem,
                format("%d ranks and %d connections need %llu open files, the hard limit is %llu; "
                       "raise it (ulimit -Hn), or start fewer ranks on this machine",
                       processes, connections, static_cast<unsigned long long>(needed),
                       static_cast<unsigned long long>(before.rlim_max)));
}

int files_for_guests(const Agent& agent) {
  if (!agent.config.boolean("store.torch_compat")) return 0;
  return kFdsPerGuestRank * agent.plan.place.world_size;
}

Status cannot_start(Agent* agent, const Status& status, int code) {
  if (status.ok() || agent->node.node_count == 1) return status;
  if (!agent->plan.start_error.ok()) return {};  // the first one counts
  agent->plan.start_error = status;
  agent->plan.start_code = code;
  return {};
}

Result<std::vector<std::string>> open_servers(Agent* agent, const Wait& wait) {
  const std::string& interface = agent->config.text("network.interface");
  DT_TRY_VALUE(const ServerHost host, find_server_host(agent->node, interface, wait));
  DT_TRY_VALUE(agent->servers, listen_for_servers(agent->options.servers, host));
  std::vector<std::string> addresses;
  for (const ServerSocket& socket : agent->servers) {
    addresses.push_back(socket.address);
    agent->plan.server_fds.push_back(socket.fd.get());
  }
  return addresses;
}

FleetOptions fleet_options(Agent& agent) {
  FleetOptions options;
  if (agent.options.servers > 0) {
    options.open_servers = [&agent](const Wait& wait) { return open_servers(&agent, wait); };
  }
  options.node = agent.node;
  options.local_size = agent.local_size;
  options.max_restarts = agent.options.max_restarts;
  options.host_name = agent.plan.host;
  options.pid = getpid();
  options.job_id = agent.plan.place.job_id;
  options.bind_address = agent.config.text("store.bind");
  options.timeout_ms = agent.config.integer("rendezvous.timeout_ms");
  options.security = agent.credentials.security;
  options.settle_timeout_ms = agent.plan.grace_ms + kSettleMs;
  options.heartbeat_ms = agent.config.integer("heartbeat.interval_ms");
  options.others_go_on = !agent.options.end_on_failure;
  options.lost_ranks = &agent.lost_ranks;
  options.heartbeat_timeout_ms = agent.config.integer("heartbeat.timeout_ms");
  options.logger = agent.logger;
  return options;
}

void take_fleet(Agent* agent, std::unique_ptr<Fleet> met) {
  agent->fleet = std::move(met);
  const Fleet& fleet = *agent->fleet;
  JobPlace& place = agent->plan.place;
  place.world_size = fleet.world_size();
  place.first_rank = fleet.own().first_rank;
  place.node_rank = fleet.node_rank();
  place.node_count = static_cast<int>(fleet.nodes().size());
  place.max_restarts = fleet.max_restarts();
  place.job_id = fleet.job_id();
  agent->plan.fleet = agent->fleet.get();
  for (const NodeRecord& node : fleet.nodes()) {
    if (&node == &fleet.own()) place.first_server = static_cast<int>(place.servers.size());
    place.servers.insert(place.servers.end(), node.servers.begin(), node.servers.end());
  }
}

Result<AttemptEnd> run_attempt(Agent* agent, Signals* signals, Guardian* guardian) {
  ServedStore served;
  DT_TRY(open_attempt(agent, signals, &served));
  SharedWay way;
  DT_TRY(open_relay(agent, signals, &way));
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
  const ErrorFolder errors(agent);
  if (agent->options.verbose) say_what_is_set_up(agent->plan, output.get());
  Supervisor supervisor(agent->plan, *signals, *guardian, *output);
  agent->has_begun |= agent->plan.start_error.ok();
  AttemptEnd end;
  end.outcome = supervisor.run();
  end.exit_code = end.outcome.exit_code == 0 && output->is_cut_short() ? 1 : end.outcome.exit_code;
  if (end.outcome.restart || end.outcome.regroup) {
    agent->plan.stop_signal = supervisor.stop_signal();
    agent->plan.stopped_here = supervisor.stopped_here();
  }
  return end;
}

}  // namespace dt::cli
