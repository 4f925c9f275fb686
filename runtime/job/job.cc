// SPDX-License-Identifier: Apache-2.0
#include "job/job.h"

#include <dt/version.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <numeric>

#include "backend/self/self.h"
#include "job/host_identity.h"

namespace dt::job {
namespace {

constexpr int64_t kReportMs = 1000;      // telling the others of a failure
constexpr int64_t kFinishMs = 1;         // between two looks whether operations have ended
constexpr int64_t kCountMs = 500;        // between two looks who else waits for that
constexpr int64_t kJoinMs = 1000;        // threads get so long to end, at least
constexpr int64_t kMuteMs = 2000;        // for a call of the log's sink that is under way
constexpr int64_t kStandstillMs = 5000;  // of operations that nobody adds to any more
constexpr const char* kFinishingKey = "dt.finishing/";  // and how many ranks were forgiven
constexpr int64_t kFarewellMs = 1000;  // a failed rank 0 keeps serving the bad news this long
constexpr const char* kWorldName = "world";
// The I/O thread hears of a failure and tells nobody before the trace is written, or this is over:
// who is told may end the process at once.
constexpr int64_t kTraceMs = 200;

bool has_left(const shm::SectionHeader& header) {
  return header.left.load(std::memory_order_acquire) != 0;
}

/// Shows the peers of this host the last operation of this rank.
auto noting(const backend::HostEngine& engine) {
  return [arena = engine.arena()](backend::Kind kind, int64_t sequence, const std::string& name) {
    arena->own_header().last.set(static_cast<int64_t>(kind), sequence, name);
  };
}

collective::Thresholds thresholds_of(const Config& config) {
  collective::Thresholds thresholds;
  thresholds.segment_bytes = config.integer("host.segment_bytes");
  thresholds.segments = config.integer("host.segments");
  thresholds.exchange_ranks = config.integer("host.exchange_ranks");
  thresholds.streaming_bytes = config.integer("host.streaming_bytes");
  thresholds.push_bytes = config.integer("host.push_bytes");
  thresholds.mapped_bytes = config.integer("host.mapped_bytes");
  return thresholds;
}

collective::Staging staging_of(const std::string& name) {
  if (name == "cached") return collective::Staging::kCached;
  if (name == "streaming") return collective::Staging::kStreaming;
  return collective::Staging::kAuto;
}

std::optional<collective::Way> way_of(const std::string& name) {
  if (name == "direct") return collective::Way::kDirect;
  if (name == "halving") return collective::Way::kHalving;
  if (name == "ring") return collective::Way::kRing;
  return {};
}

}  // namespace

LogLevel log_level(const Config& config) {
  const std::string& name = config.text("log.level");
  if (name == "error") return LogLevel::kError;
  if (name == "info") return LogLevel::kInfo;
  if (name == "debug") return LogLevel::kDebug;
  return LogLevel::kWarning;
}

LoggerPtr make_logger(const Config& config, Logger::Sink sink) {
  auto logger = std::make_shared<Logger>(log_level(config), std::move(sink));
  for (const std::string& warning : config.warnings()) {
    logger->log(LogLevel::kWarning, "%s", warning.c_str());
  }
  return logger;
}

Job::Job(const Config& config, Logger::Sink sink, Devices devices)
    : config_(config),
      logger_(make_logger(config, std::move(sink))),
      devices_(std::move(devices)),
      host_name_(job::host_name()),
      host_id_(config.text("job.host_id").empty() ? host_identity() : config.text("job.host_id")),
      rendezvous_timeout_ms_(config.integer("rendezvous.timeout_ms")),
      finalize_timeout_ms_(config.integer("job.finalize_timeout_ms")),
      collective_timeout_ms_(config.integer("collective.timeout_ms")),
      stall_warn_ms_(config.integer("watchdog.stall_warn_ms")) {}

Job::~Job() {
  // Whoever calls back goes first: the watch and the client. Then the server, so that its clients
  // hear of the end, then the loop that carried them.
  end_metrics();
  peer_watch_ = nullptr;
  device_watch_ = nullptr;
  control_->disconnect();
  server_ = nullptr;
  smaller_world_.with([](auto& world) { world = nullptr; });
  world_ = nullptr;
  if (tracer_ != nullptr) tracer_->settle(Tracer::kSettleMs);
  local_.with([](LocalPeers& local) { local = {}; });
  // The sink is borrowed for the life of the job. Threads that still write a trace or metrics to a
  // file system that hangs, or end later for another reason, have the logger.
  logger_->mute(Wait{Deadline::after_ms(kMuteMs), nullptr});
}

Result<std::shared_ptr<Job>> Job::start(const Config& config, Logger::Sink sink, Devices devices) {
  std::shared_ptr<Job> job(new Job(config, std::move(sink), std::move(devices)));
  const Status begun = job->begin(config);
  if (begun.ok()) return job;
  launch::ErrorFile(process_environment(), job->place_.rank).write(begun, time(nullptr));
  return begun;
}

Status Job::begin(const Config& config) {
  DT_TRY(config.check_together());
  Config merged = config;
  const Environment variables = process_environment();
  DT_TRY_VALUE(place_, launch::resolve_place(merged, variables));
  for (const std::string& warning : place_.warnings) {
    logger_->log(LogLevel::kWarning, "%s", warning.c_str());
  }
  DT_TRY(settle_progress(merged));
  DT_TRY(settle_numa(merged));
  record::Identity identity;
  identity.job_id = place_.job_id;
  identity.attempt = place_.attempt;
  identity.rank = place_.rank;
  identity.world_size = place_.world_size;
  identity.host = host_name_;
  identity.pid = getpid();
  tracer_ = Tracer::create(merged, std::move(identity), launch::ErrorFile(variables, place_.rank),
                           logger_);
  control_->trace(tracer_);
  DT_TRY(place_.world_size == 1 ? start_alone(merged) : start_together(merged));
  publish_metrics();
  tell_start();
  return {};
}

void Job::tell_start() const {
  std::string store = "no store";
  if (place_.world_size > 1) {
    store = format("store %s:%d, security %s", place_.master_addr.c_str(), place_.master_port,
                   net::mode_name(credentials_.security.mode));
  }
  const std::string& launcher = place_.launcher;
  logger_->log(LogLevel::kDebug,
               "dt %s: rank %d of %d (%s pid %d), local rank %d of %d, node %d of %d; backend %s; "
               "%s; started by %s",
               DT_VERSION, place_.rank, place_.world_size, host_name_.c_str(), int{getpid()},
               place_.local_rank, place_.local_size, place_.node_rank, place_.node_count,
               world_->backend().name(), store.c_str(),
               launcher.empty() ? "no launcher" : launcher.c_str());
}

Status Job::start_alone(const Config& config) {
  if (place_.launcher == "dt run" && place_.store_served) {
    const auto credentials = launch::find_credentials(config, process_environment(), false);
    if (credentials.ok()) {
      credentials_ = credentials.value();
      launcher_store_ = client_options();
      launcher_store_->rank = -1;
    } else {
      warn_of_sudden_stop(credentials.status());
    }
  }
  place_.local_rank = place_.node_rank = 0;
  place_.local_size = place_.node_count = 1;
  place_.master_addr.clear();
  place_.master_port = 0;
  local_store_ = std::make_unique<LocalStore>();
  if (!config.text("store.torch_address").empty()) {
    const Wait wait{Deadline::after_ms(rendezvous_timeout_ms_), failed()};
    DT_TRY_VALUE(loop_, net::Loop::start());
    DT_TRY_VALUE(torch_, TorchMeeting::join(loop_.get(), config, place_, logger_, wait));
  }
  comm::Communicator::Options options;
  options.name = kWorldName;
  options.world_ranks = {0};
  const Wait limit{Deadline::after_ms(rendezvous_timeout_ms_), failed()};
  DT_TRY_VALUE(options.backend, on_devices(config, backend::create_self(kWorldName), limit));
  options.board = board_;
  options.recorder = tracer_->recorder();
  options.timeout_ms = collective_timeout_ms_;
  options.first_timeout_ms = first_timeout_ms();
  world_ = comm::Communicator::create(std::move(options));
  return {};
}

Status Job::start_together(const Config& config) {
  const Wait wait{Deadline::after_ms(rendezvous_timeout_ms_), failed()};
  const bool may_come = place_.exchange != launch::Exchange::kNone ||
                        place_.token_exchange != launch::Exchange::kNone;
  DT_TRY_VALUE(credentials_, launch::find_credentials(config, process_environment(), may_come));
  DT_TRY_VALUE(loop_, net::Loop::start());
  DT_TRY_VALUE(auto listener, shm::ArenaListener::create());
  DT_TRY(settle_store(config, wait));
  DT_TRY(launch::check_credentials(credentials_));
  if (place_.settles_ranks) DT_TRY(settle_rank(wait));
  DT_TRY(connect(config, wait));
  const HostLinks::Self self{place_.rank, host_name_, network_identity(), credentials_.security,
                             progress_processors_};
  // Of no matter if it fails where the job turns out to have one host; else the join fails.
  auto links = HostLinks::open(config, self, place_.master_addr, control_->client()->peer_host());
  const store::Reach reach = HostLinks::reach_of(links, self);
  if (links.ok()) links_ = std::move(links).value();
  DT_TRY_VALUE(verdict_, join(config, listener, reach, wait));
  const store::Verdict& verdict = verdict_;
  if (torch_.finds_store() && place_.rank == 0) torch_.withdraw(wait);
  place_.attempt = verdict.attempt;
  tracer_->joined(place_.rank, verdict.attempt, verdict.session);
  place_.local_rank = verdict.local_rank;
  place_.local_size = verdict.local_size;
  place_.node_rank = verdict.node_rank;
  place_.node_count = verdict.node_count;
  DT_TRY(connect_hosts(verdict, wait));
  DT_TRY(share_memory(config, verdict, std::move(listener), wait));
  watch_peers(verdict);
  observe_store();
  return board_->first();
}

Result<store::Verdict> Job::join(const Config& config, const shm::ArenaListener& listener,
                                 const store::Reach& reach, const Wait& wait) {
  store::JoinRecord record;
  record.rank = place_.rank;
  record.world_size = place_.world_size;
  record.host_id = host_id_;
  record.host_name = host_name_;
  record.pid = getpid();
  record.local_rank = place_.local_rank;
  record.node_rank = place_.node_rank;
  record.socket_name = listener.name();
  record.equal_config = config.equal_keys();
  record.reach = reach;
  record.limit_ms = rendezvous_timeout_ms_;
  return control_->client()->join(record, wait);
}

/// All ranks go on together, or fail with what the first one found.
Status Job::connect_hosts(const store::Verdict& verdict, const Wait& wait) {
  if (verdict.node_count == 1) {
    links_ = nullptr;
    return {};
  }
  // Equal on all ranks, so that all of them say it.
  if (by_caller_) {
    return Status(Code::kConfig,
                  format("rank %d (%s): host.progress = caller is for the ranks of one host, and "
                         "this job has %d: data of other hosts comes at any time; use "
                         "host.progress = thread",
                         place_.rank, host_name_.c_str(), verdict.node_count));
  }
  HostLinks::Store store;
  store.multi_get = [control = control_](
                        const std::vector<std::string>& keys,
                        const Wait& limit) -> Result<std::vector<std::optional<std::string>>> {
    const auto client = control->client();
    if (client == nullptr) return ended();
    return client->multi_get(keys, limit);
  };
  store.answers = [control = control_](int32_t rank, const Wait& limit) -> Result<bool> {
    const auto client = control->client();
    if (client == nullptr) return ended();
    return client->answers(rank, limit);
  };
  if (const Status status = links_->connect(verdict, std::move(store), wait); !status.ok()) {
    control_->report("", status);
    return status;
  }
  return control_->client()->barrier("dt.links", verdict.world_size, wait);
}

Status Job::share_memory(const Config& config, const store::Verdict& verdict,
                         shm::ArenaListener listener, const Wait& wait) {
  backend::HostEngine::Options options;
  options.leader_name = verdict.locals[0].socket_name;
  options.session = verdict.session;
  options.local_size = verdict.local_size;
  for (const store::LocalRecord& local : verdict.locals) {
    if (local.rank == place_.rank) options.local_rank = static_cast<int32_t>(options.pids.size());
    options.world_ranks.push_back(local.rank);
    options.pids.push_back(local.pid);
  }
  options.host = host_name_;
  options.spin_us = config.integer("host.spin_us");
  options.spin_adapts = config.boolean("host.spin_adapts");
  options.inline_bytes = config.integer("host.inline_bytes");
  options.slot_bytes = config.integer("host.slot_bytes");
  options.ring_bytes = config.integer("host.ring_bytes");
  options.thresholds = thresholds_of(config);
  options.by_caller = by_caller_;
  DT_TRY_VALUE(options.home, find_home(verdict));
  options.processors = progress_processors_;
  options.staging = staging_of(config.text("host.staging"));
  options.spread = config.boolean("host.spread");
  options.logger = logger_;
  options.meter = tracer_->meter();
  DT_TRY_VALUE(auto engine, backend::HostEngine::create(std::move(listener), options, wait));
  local_.with([&](LocalPeers& local) { local = {engine, verdict.locals, {}}; });

  backend::HostWorldOptions world;
  world.name = kWorldName;
  world.part = links_ != nullptr;
  tell_failures(&world);
  DT_TRY_VALUE(auto backend, backend::create_host_world(engine, world, wait));
  std::vector<int32_t> ranks(static_cast<size_t>(verdict.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (links_ != nullptr) {
    backend::MultihostOptions over_hosts = multihost_options(engine);
    over_hosts.roster.name = kWorldName;
    DT_TRY_VALUE(backend, links_->among(verdict, ranks, std::move(backend), std::move(over_hosts)));
  }
  DT_TRY_VALUE(backend, on_devices(config, std::move(backend), wait));
  world_ = comm::Communicator::create(options_of(kWorldName, ranks, std::move(backend)));
  return {};
}

comm::Communicator::Options Job::options_of(const std::string& name,
                                            const std::vector<int32_t>& ranks,
                                            std::shared_ptr<backend::Backend> backend) const {
  comm::Communicator::Options options;
  options.name = name;
  options.rank =
      static_cast<int32_t>(std::find(ranks.begin(), ranks.end(), place_.rank) - ranks.begin());
  options.world_ranks = ranks;
  options.backend = std::move(backend);
  options.board = board_;
  options.recorder = tracer_->recorder();
  options.timeout_ms = collective_timeout_ms_;
  options.first_timeout_ms = first_timeout_ms();
  return options;
}

void Job::tell_failures(backend::HostWorldOptions* options) const {
  options->on_broken = [control = control_](const std::string& communicator, const Status& status) {
    control->report_soon(communicator, status, [] {});
  };
}

backend::MultihostOptions Job::multihost_options(
    const std::shared_ptr<backend::HostEngine>& engine) {
  backend::MultihostOptions options;
  options.on_broken = [control = control_](const std::string& communicator, const Status& status,
                                           std::function<void()> handed_over) {
    control->report_soon(communicator, status, std::move(handed_over));
  };
  options.way = way_of(config_.text("network.algorithm"));
  options.meter = tracer_->meter();
  options.note_last = noting(*engine);
  return options;
}

Result<std::shared_ptr<backend::Backend>> Job::on_devices(const Config& config,
                                                          std::shared_ptr<backend::Backend> on_host,
                                                          const Wait& wait) {
  if (!wants_device(config)) return on_host;
  DeviceWorldOptions options;
  options.name = kWorldName;
  options.place = place_;
  options.host_name = host_name_;
  options.on_host = std::move(on_host);
  options.devices = devices_;
  options.order_book = order_book_;
  options.logger = logger_;
  options.on_broken = [control = control_](const std::string& communicator, const Status& status) {
    control->report_soon(communicator, status, [] {});
  };
  const LocalPeers local = local_.with([](const LocalPeers& mine) { return mine; });
  if (local.engine != nullptr) options.note_last = noting(*local.engine);
  return make_device_world(config, std::move(options), wait);
}

void Job::watch_peers(const store::Verdict& verdict) {
  const LocalPeers local = local_.with([](const LocalPeers& mine) { return mine; });
  const shm::HostArena& arena = *local.engine->arena();
  std::vector<PeerWatch::Peer> peers;
  for (size_t i = 0; i < verdict.locals.size(); ++i) {
    if (verdict.locals[i].pid == getpid()) continue;  // this rank, or a thread beside it
    const auto rank = static_cast<int32_t>(i);
    // Containers may share a network and not their processes: there the number means another
    // process or none, whose end says nothing about the peer.
    if (arena.header(rank).pid_namespace != arena.own_header().pid_namespace) continue;
    peers.push_back({rank, verdict.locals[i].pid});
  }
  peer_watch_ = std::make_unique<PeerWatch>(loop_.get(), peers,
                                            [this](int32_t local_rank) { peer_ended(local_rank); });
  if (world_->backend().device() == nullptr) return;
  DeviceWatch::Options watch;
  watch.self = format("rank %d (%s pid %d)", place_.rank, host_name_.c_str(), int{getpid()});
  watch.abort_timeout_ms = config_.integer("watchdog.abort_timeout_ms");
  const std::string& exit = config_.text("watchdog.exit");
  if (exit == "always" || (exit == "launched" && place_.launcher == "dt run")) {
    watch.end_process = devices_.end_process;
  }
  watch.logger = logger_;
  device_watch_ = std::make_unique<DeviceWatch>(loop_.get(), &world_->backend(), std::move(watch));
}

void Job::hear_of(const store::Failure& failure) {
  ErrorInfo info = failure.info;
  if (!failure.scope.empty()) {
    tracer_->failed(failure.scope, Status(info));
    tracer_->settle(kTraceMs);
    board_->communicator_failed(failure.scope, Status(std::move(info)));
    return;
  }
  if (info.code == Code::kPeerLost && !failure.silent) {
    const LocalPeers local = local_.with([](const LocalPeers& mine) { return mine; });
    for (const store::LocalRecord& record : local.records) {
      // Seen by pidfd or told: one text.
      if (record.rank == info.rank) return fail(lost(record), false, failure.store_gone);
    }
  }
  fail(Status(std::move(info)), failure.silent, failure.store_gone);
}

Status Job::lost(const store::LocalRecord& record) const {
  ErrorInfo info;
  info.code = Code::kPeerLost;
  info.rank = record.rank;
  info.host = host_name_;
  info.pid = record.pid;
  info.message = format(
      "rank %d (%s pid %lld) is gone: it ended, was killed, or dropped the job without dt_finalize",
      record.rank, host_name_.c_str(), static_cast<long long>(record.pid));
  add_last_operation(record.rank, &info);
  info.message += "; look at its log, then start the job again";
  return Status(std::move(info));
}

/// Blames before it tells: a caller may end this process as soon as its call returns. Without the
/// store nobody hears of deaths any more, so that also ends communicators without its rank.
void Job::fail(const Status& status, bool silent, bool store_gone) {
  const ErrorInfo& info = status.info();
  const bool lost = info.code == Code::kPeerLost && info.rank >= 0;
  // Heard of before it was shrunk away.
  if (lost && !store_gone && board_->forgiven(info.rank)) return;
  local_.with([&](const LocalPeers& local) {
    if (local.engine == nullptr) return;
    int32_t none = 0;
    local.engine->arena()->own_header().blames.compare_exchange_strong(
        none, lost && !silent ? info.rank + 1 : shm::SectionHeader::kStoreTells);
  });
  tracer_->failed({}, status);
  tracer_->settle(kTraceMs);
  if (lost && !store_gone) {
    board_->rank_lost(info.rank, status);
  } else {
    board_->job_failed(status);
  }
  meeting_.with([&](const Meeting& meeting) {
    const auto& ranks = meeting.ranks;
    const bool concerned =
        !lost || store_gone || std::find(ranks.begin(), ranks.end(), info.rank) != ranks.end();
    if (meeting.interrupt != nullptr && concerned) meeting.interrupt->fire(status);
  });
  failed()->fire(status);
}

void Job::peer_ended(int32_t local_rank) {
  const LocalPeers local = local_.with([](const LocalPeers& mine) { return mine; });
  if (local.engine == nullptr) return;
  const shm::SectionHeader& header = local.engine->arena()->header(local_rank);
  if (has_left(header)) return;
  auto culprit = local.records.begin() + local_rank;
  const int32_t blames = header.blames.load();
  if (blames != 0 && (blames < 0 || !board_->forgiven(blames - 1))) {
    // It ended because of another, of whom this rank has not heard yet. The store tells of those
    // that are not here, of an abort, and of silence.
    culprit = std::find_if(local.records.begin(), local.records.end(),
                           [&](const auto& record) { return record.rank + 1 == blames; });
    if (culprit == local.records.end() || culprit->rank == place_.rank) return;
  }
  // The store hears of it before anybody can end this process because of it: else this end may be
  // the first that it sees. What is posted runs before peer_watch_ is gone, so `this` lives. And a
  // call of the store that waits here ends because of it, not of a neighbour that ended for it.
  const Status status = lost(*culprit);
  const auto client = control_->client();
  if (client == nullptr) return fail(status);
  ErrorInfo seen = status.info();
  seen.operation.clear();  // a report without one is of a death, and the store has its own words
  seen.sequence = -1;
  client->report_failure_soon({}, seen, [this, status, client] {
    fail(status);
    if (!board_->forgiven(status.info().rank) && loop_->on_thread()) client->know(status.info());
  });
}

void Job::add_last_operation(int32_t world_rank, ErrorInfo* info) const {
  const LocalPeers local = local_.with([](const LocalPeers& mine) { return mine; });
  if (local.engine == nullptr) return;
  // In a smaller communicator, if it has entered one there.
  std::vector<std::shared_ptr<backend::HostEngine>> engines{local.engine};
  engines.insert(engines.end(), local.newer.begin(), local.newer.end());
  for (size_t age = engines.size(); age-- > 0;) {
    const auto& ranks = engines[age]->options().world_ranks;
    const auto found = std::find(ranks.begin(), ranks.end(), world_rank);
    if (found == ranks.end()) continue;
    const auto local_rank = static_cast<int32_t>(found - ranks.begin());
    const shm::LastOperation& last = engines[age]->arena()->header(local_rank).last;
    const int64_t kind = last.kind.load(std::memory_order_relaxed);
    const bool none = kind < 0 || kind >= kKindCount;
    if (none && age > 0) continue;
    if (none) {
      info->message += "; it had entered no operation yet";
      return;
    }
    info->operation = kind_name(static_cast<backend::Kind>(kind));
    info->sequence = last.sequence.load(std::memory_order_relaxed);
    info->message += format("; the last operation it entered was %s #%lld", info->operation.c_str(),
                            static_cast<long long>(info->sequence));
    return;
  }
}

void Job::Control::report(const std::string& communicator, const Status& status) {
  if (tracer_ != nullptr) tracer_->failed(communicator, status);
  std::lock_guard lock(reporting_);
  const auto connected = client();
  if (connected == nullptr) return;
  // Best effort: who does not hear of it meets the operation's own deadline.
  (void)connected->report_failure(communicator, status.info(),
                                  Wait{Deadline::after_ms(kReportMs), nullptr});
}

void Job::Control::report_soon(const std::string& communicator, const Status& status,
                               std::function<void()> handed_over) {
  if (tracer_ != nullptr) tracer_->failed(communicator, status);
  std::lock_guard lock(telling_);
  const auto connected = client();
  if (connected == nullptr) return handed_over();
  connected->report_failure_soon(communicator, status.info(), std::move(handed_over));
  reported_.fetch_add(1);
}

void Job::Control::settle() {
  const uint64_t reported = reported_.load();
  if (arrived_.load() >= reported) return;
  std::lock_guard lock(reporting_);
  if (arrived_.load() >= reported) return;
  // Answered after all that was sent before; a job that has failed needs no telling. Where there is
  // no answer, one wait is enough for all that hear of it.
  if (const auto connected = client()) {
    (void)connected->ping(Wait{Deadline::after_ms(kReportMs), nullptr});
  }
  arrived_.store(reported);
}

void Job::Control::disconnect() {
  std::scoped_lock lock(reporting_, telling_);
  connect(nullptr);
}

Status Job::ended() {
  return Status(Code::kInvalidState, "the job has ended: dt_finalize was called");
}

Result<std::shared_ptr<comm::Communicator>> Job::world() const {
  auto world = present_world();
  if (const Status status = world->broken(); status.code() == Code::kInvalidState) return status;
  return world;
}

Wait Job::store_wait(int64_t timeout_ms) const {
  return Wait{Deadline::after_ms(timeout_ms < 0 ? rendezvous_timeout_ms_ : timeout_ms), nullptr};
}

Status Job::abort(const std::string& message) {
  if (local_store_ == nullptr) {
    const auto client = control_->client();
    if (client == nullptr) return ended();
    aborted_.store(true);
    // Ranks often fail together: where another was faster, the job has failed all the same.
    const Status told = client->abort(message, Wait{Deadline::after_ms(kReportMs), nullptr});
    if (told.code() == Code::kInvalidArgument || told.code() == Code::kInvalidState) return told;
    // Where the store is gone or silent, the job fails at least on this rank.
    if (!told.ok() && told.code() != Code::kAborted) board_->job_failed(told);
    return {};
  }
  if (over_alone_.load(std::memory_order_acquire)) return ended();
  ErrorInfo info;
  info.code = Code::kAborted;
  info.rank = place_.rank;
  info.host = host_name_;
  info.pid = getpid();
  info.message = format("rank %d (%s pid %d) aborted the job: %s", place_.rank, host_name_.c_str(),
                        static_cast<int>(getpid()), message.c_str());
  const Status status(std::move(info));
  tracer_->failed({}, status);
  local_store_->close(status);
  board_->job_failed(status);
  failed()->fire(status);  // for calls that wait at the store of PyTorch
  return {};
}

Status Job::undrained() const {
  DT_TRY(board_->first());
  return Status(Code::kTimeout,
                format("dt_finalize on rank %d (%s): operations are still under way on its GPU; "
                       "they are aborted. Wait for them before, or give dt_finalize more time",
                       place_.rank, host_name_.c_str()));
}

/// What this rank has begun ends before it leaves, because others may need its part of it. An
/// operation may wait for one that its peer never makes, as a receive without a send. So ranks that
/// wait here for long count themselves at the store: once all that have not left, and were not lost
/// before a shrink, are counted, none of them begins anything more, and what does not move any more
/// is given up. A rank that was lost may have counted itself before. So the key of the count says
/// how many ranks the caller has forgiven, which is more than when the lost rank counted itself.
/// Ranks that have forgiven different numbers of ranks count apart, so these wait for longer. No
/// rank is forgiven during the wait: its loss has ended the wait before.
Status Job::finish_operations(const std::vector<std::shared_ptr<comm::Communicator>>& communicators,
                              const Wait& wait) {
  // What stands in an open group was never begun.
  const auto unfinished = [&] {
    return std::find_if(communicators.begin(), communicators.end(), [](const auto& each) {
      if (!each->broken().ok() || each->grouping()) return false;
      return each->use() == comm::Use::kForeground ? !each->backend().idle()
                                                   : each->use() == comm::Use::kUnfinished;
    });
  };
  const auto steps = [&] {
    uint64_t all = 0;
    for (const auto& each : communicators) all += each->backend().pulse().stamp;
    return all;
  };
  int64_t forgiven = 0;
  for (int32_t rank = 0; rank < place_.world_size; ++rank) forgiven += board_->forgiven(rank);
  const std::string key = format("%s%lld", kFinishingKey, static_cast<long long>(forgiven));
  const auto count = [&](int64_t change) {
    return control_->client()->add(
        key, change, Wait{wait.deadline.earlier(Deadline::after_ms(kReportMs)), wait.interrupt});
  };
  bool counted = false;
  bool all_here = false;
  uint64_t seen = steps();
  Deadline count_at = Deadline::after_ms(kCountMs);
  Deadline standstill = Deadline::never();
  auto late = unfinished();
  while (late != communicators.end() && !wait.interrupted() && !wait.deadline.passed() &&
         !standstill.passed()) {
    for (const auto& each : communicators) (void)each->backend().help();
    (void)Event().wait({Deadline::after_ms(kFinishMs), wait.interrupt});
    if (all_here && std::exchange(seen, steps()) != seen) {
      standstill = Deadline::after_ms(kStandstillMs);
    } else if (!all_here && count_at.passed()) {
      const auto waiting = count(counted ? 0 : 1);
      counted |= waiting.ok();
      all_here = waiting.ok() && waiting.value() + board_->gone() >= place_.world_size;
      count_at = Deadline::after_ms(kCountMs);
      if (all_here) standstill = Deadline::after_ms(kStandstillMs);
    }
    late = unfinished();
  }
  // Before the goodbye: who has left is counted by that.
  if (counted && !wait.interrupted()) (void)count(-1);
  if (late == communicators.end() || wait.interrupted() || standstill.passed()) return {};
  return Status(
      Code::kTimeout,
      format("dt_finalize on rank %d (%s): operations of this rank on comm \"%s\" have not "
             "ended; they are given up. Wait for them before, or give dt_finalize more "
             "time",
             place_.rank, host_name_.c_str(), (*late)->name().c_str()));
}

/// Behind job_failed(), which ends what they wait for. The process may exit as soon as dt_finalize
/// returns, and destroy what a thread still uses.
void Job::join_threads(Deadline deadline) {
  const Deadline soon = Deadline::after_ms(kJoinMs);
  threads_.join_all(Wait{deadline.before(soon) ? soon : deadline, nullptr});
}

Status Job::finalize(int64_t timeout_ms) {
  std::lock_guard lock(ending_);
  if (finalized_) return final_status_;
  finalized_ = true;
  final_status_ = seen(board_->first());
  const Deadline deadline = Deadline::after_ms(timeout_ms < 0 ? finalize_timeout_ms_ : timeout_ms);
  // What the GPU has not done yet is not lost, nor does it end as a failure.
  if (final_status_.ok() && !world_->backend().drain(Wait{deadline, failed()})) {
    final_status_ = undrained();
  }
  threads_.end_all();
  if (local_store_ != nullptr) {
    over_alone_.store(true, std::memory_order_release);
    local_store_->close(ended());
    board_->job_failed(ended());
    failed()->fire(ended());
    join_threads(deadline);
    end_metrics();
    // Its loop stays until the job goes: another thread may be inside a call of the client.
    (void)stop_news_.with([](StopNews& news) { return std::exchange(news.client, nullptr); });
    return final_status_;
  }
  const bool failed = !final_status_.ok();
  const auto communicators = board_->communicators();
  if (!failed) final_status_ = finish_operations(communicators, Wait{deadline, this->failed()});
  // What others still wait for ends because of its dt_abort then, of which the store tells them.
  const bool aborted = aborted_.load();
  local_.with([&](const LocalPeers& local) {
    std::vector<std::shared_ptr<backend::HostEngine>> engines{local.engine};
    engines.insert(engines.end(), local.newer.begin(), local.newer.end());
    for (const auto& engine : engines) {
      if (aborted) engine->arena()->quarantine();
      engine->say_goodbye();
    }
  });
  for (const auto& each : communicators) {
    if (!aborted) each->backend().leave();
  }
  if (!failed) {
    const bool in_time = final_status_.ok();
    Status left = control_->client()->goodbye(
        Wait{in_time ? deadline : Deadline::after_ms(kReportMs), nullptr});
    if (in_time) final_status_ = std::move(left);
  }
  board_->job_failed(ended());
  join_threads(deadline);
  end_metrics();
  peer_watch_ = nullptr;
  device_watch_ = nullptr;
  control_->disconnect();
  if (server_ != nullptr) {
    // Others must still hear the last word: go when they have gone.
    const Deadline last = failed ? deadline.earlier(Deadline::after_ms(kFarewellMs)) : deadline;
    (void)server_->wait_empty(Wait{last, nullptr});
    server_ = nullptr;
  }
  return final_status_;
}

}  // namespace dt::job
