// SPDX-License-Identifier: Apache-2.0
// What a job tells of itself while it runs, and hears of the others: heartbeats and long pauses.
#include "job/job.h"

namespace dt::job {
namespace {

constexpr int64_t kDefaultGraceMs = 30 * 60 * 1000;
constexpr int64_t kHeedMs = 5000;  // telling the store that this program ends when asked to

/// What is new in the ledgers, for the store; or how far each of them has come.
std::vector<store::Orders> orders_of(backend::OrderBook& book, bool all) {
  std::vector<store::Orders> told;
  for (const auto& ledger : book.ledgers()) {
    store::Orders orders{ledger->communicator(), ledger->size(), {}};
    for (const backend::Ledger::Entry& entry : ledger->take(all)) {
      const bool whole = entry.sequence > 0;
      orders.news.push_back(
          {entry.position, entry.chain, entry.sequence, whole ? entry.call() : ""});
    }
    if (all || !orders.news.empty()) told.push_back(std::move(orders));
  }
  return told;
}

}  // namespace

int64_t Job::first_timeout_ms() const {
  const int64_t wanted_ms = config_.integer("collective.first_timeout_ms");
  if (wanted_ms >= 0) return wanted_ms;
  const bool chosen = config_.source_of("collective.timeout_ms").kind != SourceKind::kDefault;
  return chosen ? 0 : kDefaultGraceMs;
}

/// After the world communicator is made. The heartbeats have begun with the join; from here on they
/// say what this rank does.
void Job::observe_store() {
  store::Client::Observers observers;
  observers.activity = [this] { return activity(); };
  observers.busy = [this](const store::Busy& busy) { board_->rank_busy(busy.rank, busy.max_ms); };
  observers.departed = [this](const std::vector<int32_t>& ranks) { hear_of_leavers(ranks); };
  observers.stop = [this] { stop_.store(true, std::memory_order_release); };
  observers.notice = [logger = logger_](const std::string& text) {
    logger->log(LogLevel::kWarning, "%s", text.c_str());
  };
  observers.orders = [book = order_book_](bool all) { return orders_of(*book, all); };
  control_->client()->observe(std::move(observers));
}

/// The store tells of a failure before it tells that a rank has left because of it.
void Job::hear_of_leavers(const std::vector<int32_t>& ranks) {
  board_->ranks_left(ranks);
  const LocalPeers local = local_.with([](const LocalPeers& mine) { return mine; });
  if (local.engine != nullptr) local.engine->peers_left(ranks);
  for (const auto& engine : local.newer) engine->peers_left(ranks);
}

/// On the I/O thread.
store::Activity Job::activity() {
  comm::Observer::Activity seen = observer_.look(monotonic_ns());
  store::Activity told;
  told.refused = refused_.with([&](Refusal& refusal) {
    if (std::exchange(refusal.fresh, false)) refusal.stamp = seen.pulse.stamp;
    // It has gone on since.
    if (seen.pulse.inside || refusal.stamp != seen.pulse.stamp) refusal.why.clear();
    return refusal.why;
  });
  if (seen.communicator.empty()) return told;
  told.inside = seen.pulse.inside;
  told.stalled = told.inside && stall_warn_ms_ > 0 && seen.age_ms >= stall_warn_ms_;
  told.communicator = std::move(seen.communicator);
  told.operation = kind_name(seen.pulse.kind);
  told.sequence = seen.pulse.sequence;
  told.label = std::move(seen.pulse.label);
  told.age_ms = seen.age_ms;
  if (!told.stalled) return told;
  told.members = std::move(seen.members);
  // Each operation once, however long it takes.
  std::pair<std::string, uint64_t> stall(told.communicator, seen.pulse.stamp);
  if (stall == counted_stall_) return told;
  counted_stall_ = std::move(stall);
  tracer_->meter()->stalled();
  return told;
}

Result<int32_t> Job::vote(int32_t mine, ReduceOp op, const char* name) {
  int32_t result = mine;
  backend::Collective collective;
  collective.kind = backend::Kind::kAllreduce;
  collective.dtype = Dtype::kI32;
  collective.op = op;
  collective.send = &mine;
  collective.recv = &result;
  collective.count = 1;
  collective.name = name;
  const auto world = present_world();
  DT_TRY(world->check_ungrouped(name));
  DT_TRY(world->run_on_host(collective));
  return result;
}

bool Job::told_to_stop() {
  if (!heeds_stop_.exchange(true)) heed_stop();
  return stop_.load(std::memory_order_acquire);
}

/// Best effort: otherwise a stop comes as a signal.
void Job::heed_stop() {
  const Wait wait{Deadline::after_ms(kHeedMs), failed()};
  const auto client = local_store_ == nullptr
                          ? Result<std::shared_ptr<store::Client>>(control_->client())
                          : connect_to_launcher(wait);
  Status heeded = client.status();
  if (client.ok() && client.value() != nullptr) heeded = client.value()->heed_stop(wait);
  // A job that has failed or ended says so by itself.
  if (!heeded.ok() && !wait.interrupted()) warn_of_sudden_stop(heeded);
}

void Job::warn_of_sudden_stop(const Status& why) const {
  logger_->log(LogLevel::kWarning,
               "rank %d (%s): a stop of dt run comes as SIGTERM without notice, and "
               "dt_stop_requested does not tell of it: %s",
               place_.rank, host_name_.c_str(), why.message().c_str());
}

/// For a job of one rank, whose store is its own: only to hear there when to stop. It joins
/// nothing, so its end is no death. Null: dt run did not start this rank, or the job has ended.
/// The store itself is dialled, because a relay takes ranks only.
Result<std::shared_ptr<store::Client>> Job::connect_to_launcher(const Wait& wait) {
  if (!launcher_store_.has_value() || !board_->concerning({}).ok()) {
    return std::shared_ptr<store::Client>();
  }
  StopNews news;
  DT_TRY_VALUE(news.loop, net::Loop::start());
  auto client = store::Client::connect(news.loop.get(), *launcher_store_, wait);
  if (!client.ok() && config_.integer("job.store_relay_port") != 0) {
    return client.status().within(
        "the store must be reachable from this host without the relay of dt run");
  }
  DT_TRY_VALUE(news.client, std::move(client));
  store::Client::Observers observers;
  observers.stop = [this] { stop_.store(true, std::memory_order_release); };
  news.client->observe(std::move(observers));
  const std::shared_ptr<store::Client> connected = news.client;
  stop_news_.with([&](StopNews& mine) { mine = std::move(news); });
  return connected;
}

Status Job::busy(const std::string& what, int64_t max_ms) {
  if (local_store_ != nullptr) return {};
  const auto client = control_->client();
  if (client == nullptr) return ended();
  return client->busy(what, max_ms, store_wait(-1));
}

}  // namespace dt::job
