// SPDX-License-Identifier: Apache-2.0
// Attempt after attempt of an elastic job. Between two of them the agents come to the lobby of one
// of them, the lead, which decides who makes the next attempt (roster.h) and serves it; they meet
// for it as the agents of any job do (fleet.h).
#include "cli/run/rounds.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "base/thread.h"
#include "cli/run/lobby.h"
#include "cli/run/roster.h"
#include "store/text.h"

namespace dt::cli {
namespace {

constexpr int64_t kLookMs = 200;        // how often the lead looks who is there
constexpr int64_t kProbeMs = 2'000;     // how often it looks for another lead
constexpr int64_t kFirstVisitMs = 500;  // for one address; doubles
constexpr int64_t kLastVisitMs = 4'000;
constexpr int64_t kTakeoverMs = 5'000;  // by each agent that should lead before this one
// All are there, and a moment ago they answered: twice heartbeat.timeout_ms within these bounds.
constexpr int64_t kMeetMinMs = 2'000;
constexpr int64_t kMeetMaxMs = 20'000;
constexpr int64_t kPlaceMs = 2'000;  // for the lobby that was found
constexpr int64_t kRemindMs = 15'000;
// Until the ranks of a node that was cut off are dead: kFenceMs of ending.cc and some more.
constexpr int64_t kFencedMs = 2'000;

/// Waits a moment; false when interrupted.
bool pause_for(int64_t ms, const Wait& wait) {
  Event nothing;
  nothing.wait({Deadline::after_ms(ms).earlier(wait.deadline), wait.interrupt});
  return !wait.interrupted();
}

class Rounds {
 public:
  Rounds(Agent* agent, Signals* signals, Guardian* guardian);
  Result<int> run();

 private:
  Result<Offer> gather();
  Result<std::optional<Offer>> next_of(const Wait& wait);
  Result<std::unique_ptr<Lobby>> enter(const Wait& wait);
  Result<std::optional<Offer>> lead(const Wait& wait);
  Result<std::optional<Offer>> follow(const Wait& wait);
  Status refuse_doubles(std::vector<Presence>* there);
  bool yields_to_another(const Wait& wait);
  Presence next_presence();
  Standing standing(const std::vector<Presence>& there) const;
  std::string nobody_text(const Status& last) const;
  Status nobody_found(const Status& last) const;
  Status meet(const Roster& roster);
  Status try_again(const Roster& roster, const Status& failed);
  Result<AttemptEnd> attempt();
  void watch_arrivals(Fleet* running, Event& over);
  bool has_node(int node) const;
  void note_losses();
  void tell_end(const AttemptEnd& end);
  Fleet* fleet() const { return agent_->fleet.get(); }
  int own_address() const;
  RosterRules rules() const;
  template <class F>
  auto stoppable(int64_t timeout_ms, F&& function) {
    return while_stoppable(agent_, signals_, timeout_ms, std::forward<F>(function));
  }

  Agent* const agent_;
  Signals* const signals_;
  Guardian* const guardian_;
  LobbyOptions options_;
  std::unique_ptr<Lobby> lobby_;   // null: to be looked for
  std::vector<Presence> invited_;  // the lead: whom it has chosen for the next attempt
  // Written by the main thread between and before attempts. While an attempt runs, watch_arrivals()
  // reads `last` of it on another thread, which starts after these writes and ends before the next.
  Presence self_;
  std::set<uint64_t> gone_;  // nonces of agents that are known to be lost
  int preferred_ = -1;       // address to look at first
  int lost_lead_ = -1;       // and last
  Deadline fenced_at_ = Deadline::after_ms(0);
  bool told_minority_ = false;
  std::set<uint64_t> failed_agents_;    // whose meeting has failed last
  std::optional<Deadline> give_up_at_;  // since their first one that failed; absent: none has
};

Rounds::Rounds(Agent* agent, Signals* signals, Guardian* guardian)
    : agent_(agent), signals_(signals), guardian_(guardian) {
  options_.node = agent->node;
  options_.host_name = agent->plan.host;
  options_.pid = getpid();
  options_.bind_address = agent->config.text("store.bind");
  options_.security = agent->credentials.security;
  options_.logger = agent->logger;
  const int64_t silence_ms = agent->config.integer("heartbeat.timeout_ms");
  if (silence_ms > 0) options_.answer_ms = silence_ms;
  self_.seat.node = agent->node.node_rank;
  self_.seat.host = agent->plan.host;
  self_.seat.pid = getpid();
}

int Rounds::own_address() const {
  const NodePlace& node = agent_->node;
  return node.node_rank < static_cast<int>(node.addresses.size()) ? node.node_rank : -1;
}

RosterRules Rounds::rules() const {
  RosterRules rules;
  rules.node_count = agent_->node.node_count;
  rules.min_nodes = agent_->node.min_nodes;
  rules.allow_minority =
      agent_->options.allow_minority || agent_->config.boolean("run.allow_minority");
  return rules;
}

Presence Rounds::next_presence() {
  ++self_.serial;
  return self_;
}

// ---- finding the lead ----

/// Everybody looks at the addresses in the same order. Whoever has one serves there when those
/// before it do not; of two leads all but one give way later (yields_to_another).
Result<std::unique_ptr<Lobby>> Rounds::enter(const Wait& wait) {
  const int own = own_address();
  const std::vector<int> order =
      seek_order(static_cast<int>(agent_->node.addresses.size()), preferred_, lost_lead_);
  const auto turn = std::find(order.begin(), order.end(), own) - order.begin();
  const bool fresh = self_.last.attempt < 0;
  const int64_t patience_ms = fresh ? agent_->config.integer("run.elastic_wait_ms") : kTakeoverMs;
  const Deadline serve_at = Deadline::after_ms(patience_ms * turn);
  Status last(Code::kTimeout, "no address was tried");
  int64_t visit_ms = kFirstVisitMs;
  for (bool first = true;; first = false, visit_ms = std::min(2 * visit_ms, kLastVisitMs)) {
    for (const int address : order) {
      if (address == own) {
        // An agent that comes back may find the others in the middle of their work.
        const bool look_around = fresh && first && order.size() > 1;
        if (serve_at.passed() && !look_around) {
          return Lobby::open(agent_->loop.get(), options_, wait);
        }
        continue;
      }
      const Wait visit{Deadline::after_ms(visit_ms).earlier(wait.deadline), wait.interrupt};
      auto found = Lobby::visit(agent_->loop.get(), options_, address, visit);
      if (found.ok() || wait.interrupted()) return found;
      if (found.status().code() == Code::kConfig) return found;
      last = found.status();
      if (wait.deadline.passed()) return nobody_found(last);
    }
    if (first && !fresh) {
      options_.logger->log(LogLevel::kWarning,
                           "node %d found no agent that serves the next attempt %s; it goes on "
                           "looking for %s",
                           self_.seat.node, nobody_text(last).c_str(),
                           store::seconds_text(wait.deadline.remaining_ms()).c_str());
    }
    if (!pause_for(kLookMs, wait)) return wait.interrupt->status();
    if (wait.deadline.passed()) return nobody_found(last);
  }
}

/// "at a:1, b:1; it is 1 of the 3 agents of attempt 0, ...; the last try: ..."
std::string Rounds::nobody_text(const Status& last) const {
  std::vector<std::string> addresses;
  for (const net::HostPort& each : agent_->node.addresses) {
    addresses.push_back(net::host_port_text(each.host, each.port));
  }
  const size_t agents = self_.begun.seats.size();
  const std::string alone =
      agents < 2 ? std::string()
                 : format(
                       "; it is 1 of the %zu agents of attempt %d, and the next attempt needs "
                       "%zu of them",
                       agents, self_.begun.attempt, agents / 2 + 1);
  return format("at %s%s; the last try: %s", store::item_list(addresses).c_str(), alone.c_str(),
                last.message().c_str());
}

Status Rounds::nobody_found(const Status& last) const {
  return Status(
      Code::kTimeout,
      format("node %d (host %s pid %lld) found no agent that serves the job within %s %s",
             self_.seat.node, self_.seat.host.c_str(), static_cast<long long>(self_.seat.pid),
             store::seconds_text(agent_->config.integer("rendezvous.timeout_ms")).c_str(),
             nobody_text(last).c_str()));
}

/// Another lead that has come further, or would have been before this one.
bool Rounds::yields_to_another(const Wait& wait) {
  const int own = own_address();
  const auto waiting = lobby_->waiting(wait);
  if (!waiting.ok()) return false;
  const Standing mine = standing(waiting.value());
  const int addresses = static_cast<int>(agent_->node.addresses.size());
  for (int address = 0; address < addresses; ++address) {
    if (address == own) continue;
    const Wait look{Deadline::after_ms(kFirstVisitMs).earlier(wait.deadline), wait.interrupt};
    const auto other = Lobby::standing_of(agent_->loop.get(), options_, address, look);
    if (!other) continue;
    const auto rank = [](const Standing& each, int at) {
      return std::tuple(each.attempt, each.agents, -at);
    };
    if (rank(*other, address) < rank(mine, own)) continue;
    preferred_ = address;
    return true;
  }
  return false;
}

// ---- the wait for the next attempt ----

Result<Offer> Rounds::gather() {
  return stoppable(agent_->config.integer("rendezvous.timeout_ms"),
                   [&](const Wait& wait) -> Result<Offer> {
                     for (;;) {
                       DT_TRY_VALUE(auto offer, next_of(wait));
                       if (offer) return *std::move(offer);
                     }
                   });
}

/// Absent: the lead is gone, or this is no lead any more.
Result<std::optional<Offer>> Rounds::next_of(const Wait& wait) {
  if (lobby_ == nullptr) {
    DT_TRY_VALUE(lobby_, enter(wait));
    preferred_ = lost_lead_ = -1;
  }
  return lobby_->leads() ? lead(wait) : follow(wait);
}

Result<std::optional<Offer>> Rounds::follow(const Wait& wait) {
  const Presence presence = next_presence();
  const Status told = lobby_->present(presence, wait);
  auto offer = told.ok() ? lobby_->await_offer(presence, wait) : Result<Offer>(told);
  if (offer.ok()) {
    const Roster& roster = offer.value().roster;
    const bool fits = offer.value().end_code >= 0 ||
                      (roster.attempt > self_.last.attempt && roster.rank_of(self_.seat.nonce) > 0);
    if (fits) return std::optional(std::move(offer).value());
    return Status(Code::kInternal, "the agent at " + lobby_->address() +
                                       " offers an attempt that makes no sense; use the same "
                                       "release of dt on all nodes");
  }
  if (wait.interrupted()) return wait.interrupt->status();
  if (wait.deadline.passed() && offer.status().code() == Code::kTimeout) {
    const std::string why = lobby_->lead_text();
    return Status(
        Code::kTimeout,
        format("no attempt has begun at %s within %s: %s", lobby_->address().c_str(),
               store::seconds_text(agent_->config.integer("rendezvous.timeout_ms")).c_str(),
               why.empty() ? "the agent there does not say why" : why.c_str()));
  }
  lobby_.reset();
  return std::optional<Offer>();
}

Standing Rounds::standing(const std::vector<Presence>& there) const {
  Standing standing;
  standing.attempt = self_.begun.attempt;
  standing.agents = static_cast<int>(there.size());
  return standing;
}

/// Two agents that say they are the same node.
Status Rounds::refuse_doubles(std::vector<Presence>* there) {
  for (const Presence& each : take_doubles(there)) {
    const auto other = std::find_if(there->begin(), there->end(), [&](const Presence& kept) {
      return kept.seat.node == each.seat.node;
    });
    Offer offer;
    offer.end_code = 1;
    offer.end_text = format(
        "node rank %d is taken by another agent (host %s pid %lld); this one (host %s pid %lld) is "
        "refused; give every node its own --node-rank",
        each.seat.node, other->seat.host.c_str(), static_cast<long long>(other->seat.pid),
        each.seat.host.c_str(), static_cast<long long>(each.seat.pid));
    if (each.seat.nonce == self_.seat.nonce) return Status(Code::kConfig, offer.end_text);
    DT_TRY(lobby_->answer({each}, offer));
  }
  return {};
}

Result<std::optional<Offer>> Rounds::lead(const Wait& wait) {
  DT_TRY(lobby_->present(next_presence(), wait));
  const Deadline patience = Deadline::after_ms(agent_->config.integer("run.elastic_wait_ms"));
  const bool several = agent_->node.addresses.size() > 1;
  Deadline probe_at = Deadline::after_ms(0);
  Deadline remind_at = Deadline::after_ms(kRemindMs);
  for (;;) {
    DT_TRY_VALUE(std::vector<Presence> there, lobby_->waiting(wait));
    DT_TRY(refuse_doubles(&there));
    const Judgement judged = judge(rules(), there, gone_, !patience.passed());
    lobby_->tell(judged.why, standing(there));
    if (judged.go && fenced_at_.passed()) {
      Offer offer;
      offer.roster = next_roster(there, self_.seat.node);
      if (offer.roster.attempt == 0) {
        offer.roster.job_id = agent_->plan.place.job_id;
        offer.roster.max_restarts = agent_->options.max_restarts;
      }
      invited_ = std::move(there);
      return std::optional(std::move(offer));
    }
    if (wait.interrupted()) return wait.interrupt->status();
    if (wait.deadline.passed()) {
      return Status(
          Code::kTimeout,
          format(
              "no attempt can begin at %s within %s: %s; start dt run on the missing nodes, with "
              "the same --rendezvous and --nnodes%s",
              lobby_->address().c_str(),
              store::seconds_text(agent_->config.integer("rendezvous.timeout_ms")).c_str(),
              judged.why.c_str(),
              judged.minority ? ", after those here have ended; or give --allow-minority where "
                                "the missing ones are known to be dead"
                              : ", or raise rendezvous.timeout_ms"));
    }
    const bool tell_minority = judged.minority && !std::exchange(told_minority_, judged.minority);
    if (!judged.go && (tell_minority || remind_at.passed())) {
      remind_at = Deadline::after_ms(kRemindMs);
      options_.logger->log(LogLevel::kWarning, "%s", judged.why.c_str());
    }
    if (several && !judged.go && probe_at.passed()) {
      if (yields_to_another(wait)) {
        lobby_.reset();
        return std::optional<Offer>();
      }
      probe_at = Deadline::after_ms(kProbeMs);
    }
    pause_for(kLookMs, wait);
  }
}

// ---- one attempt ----

/// The agents of the roster join as those of a job with so many nodes.
Status Rounds::meet(const Roster& roster) {
  FleetOptions options = fleet_options(*agent_);
  options.node.node_rank = roster.rank_of(self_.seat.nonce);
  options.node.node_count = static_cast<int>(roster.seats.size());
  options.node.job_id = roster.job_id;
  options.job_id = roster.job_id;
  options.max_restarts = roster.max_restarts;
  options.restarts = roster.restarts;
  options.timeout_ms = options.heartbeat_timeout_ms == 0
                           ? kMeetMaxMs
                           : std::clamp(2 * options.heartbeat_timeout_ms, kMeetMinMs, kMeetMaxMs);
  options.elastic = true;
  options.allow_minority = rules().allow_minority;
  options.node.host = roster.host;
  options.node.port = static_cast<uint16_t>(roster.port);
  if (lobby_->leads()) {
    options.node.host = agent_->node.addresses[static_cast<size_t>(own_address())].host;
    options.node.port = 0;
    options.bind_address = lobby_->bound_address();
    options.on_served = [&](const std::string& host, uint16_t port) {
      self_.last.host = host;
      self_.last.port = port;
      Offer offer;
      offer.roster = self_.last;
      return lobby_->answer(invited_, offer);
    };
  }
  self_.last = roster;  // agreed: no other attempt of this number or an earlier one
  const std::vector<Roster> unsure_before = self_.unsure;
  options.on_join = [this] { note_joined(&self_); };
  // Written on the loop's thread, read when Fleet::meet() has returned. Lives as long as the fleet.
  const auto decided = std::make_shared<std::atomic<bool>>(false);
  options.on_verdict = [decided] { decided->store(true); };
  // A lead serves the lobby for as long as it lives. Once it is gone nobody answers at the meeting,
  // where a follower would otherwise try until the time-out.
  Interrupt ended;
  if (!lobby_->leads()) {
    lobby_->on_lost([&] {
      ended.fire(
          Status(Code::kPeerLost,
                 roster.seats.front().text() +
                     ", which serves it, is gone: its agent has ended or was killed (look at "
                     "its log), or its machine or network is down; the others meet again"));
    });
  }
  auto met = while_stoppable(agent_, signals_, options.timeout_ms, &ended, [&](const Wait& wait) {
    return Fleet::meet(agent_->loop.get(), options, wait);
  });
  // Only the lead's own server could have begun the attempt. It is gone, so none of them ever
  // begins it, and this agent need not ask for a majority of them.
  if (!met.ok() && lobby_->leads() && !decided->load()) self_.unsure = unsure_before;
  if (!lobby_->leads()) lobby_->on_lost({});
  if (!met.ok() && ended.fired() && agent_->stopped_by == 0) {
    lost_lead_ = roster.lead_node();
    gone_.insert(roster.seats.front().nonce);  // the next lead does not wait for it
    lobby_.reset();
  }
  DT_TRY(met.status());
  note_begun(&self_);
  take_fleet(agent_, std::move(met).value());
  SupervisorPlan& plan = agent_->plan;
  plan.place.attempt = roster.attempt;
  plan.ask_to_stop = nullptr;
  plan.process_ended = nullptr;
  plan.first_failure = [] { return store::FirstFailure(); };
  if (fleet()->node_rank() != 0) return {};
  const int nodes = plan.place.node_count;
  DT_TRY(cannot_start(agent_, raise_open_files(plan.open_files, plan.place.local_size,
                                               plan.place.world_size + 2 * kFdsPerNode * nodes,
                                               files_for_guests(*agent_))));
  if (agent_->master.port != 0) return {};
  auto master = reserve_port();
  DT_TRY(cannot_start(agent_, master.status()));
  if (master.ok()) agent_->master = std::move(master).value();
  return {};
}

/// Ok: the next meeting may do better. Meetings of the same agents are not repeated for longer than
/// agents wait for each other at all.
Status Rounds::try_again(const Roster& roster, const Status& failed) {
  if (agent_->stopped_by != 0) return failed;
  failed_agents_ = roster.nonces();
  const int64_t limit_ms = agent_->config.integer("rendezvous.timeout_ms");
  if (!give_up_at_) give_up_at_ = Deadline::after_ms(limit_ms);
  if (give_up_at_->passed()) {
    return failed.within(
        format("no attempt of the same agents has begun within %s of their first meeting that "
               "failed",
               store::seconds_text(limit_ms).c_str()));
  }
  options_.logger->log(LogLevel::kWarning, "attempt %d has not begun: %s", roster.attempt,
                       failed.message().c_str());
  return {};
}

/// The lead, on a thread of its own: a node that comes during the attempt ends it.
void Rounds::watch_arrivals(Fleet* running, Event& over) {
  const int attempt = self_.last.attempt;
  const Wait patient{Deadline::never(), nullptr};
  while (!over.wait({Deadline::after_ms(kLookMs)})) {
    const auto there = lobby_->waiting(patient);
    if (!there.ok()) continue;  // no answer in time on a busy machine is no reason to give up
    // One in the place of a node that takes part has to wait for the end of that.
    const bool come = std::any_of(there.value().begin(), there.value().end(),
                                  [&](const Presence& each) { return !has_node(each.seat.node); });
    if (come && running->tell_regroup(attempt)) return;
  }
}

bool Rounds::has_node(int node) const {
  return std::any_of(self_.last.seats.begin(), self_.last.seats.end(),
                     [&](const Seat& seat) { return seat.node == node; });
}

Result<AttemptEnd> Rounds::attempt() {
  Event over;
  std::thread watcher;
  if (lobby_->leads()) {
    Standing running;
    running.attempt = self_.last.attempt;
    running.agents = static_cast<int>(self_.last.seats.size());
    lobby_->tell(format("attempt %d runs, and is asked to end", running.attempt), running);
    Fleet* const running_fleet = fleet();
    DT_TRY_VALUE(watcher, start_thread("looks for nodes that come", [this, running_fleet, &over] {
                   watch_arrivals(running_fleet, over);
                 }));
  }
  auto end = run_attempt(agent_, signals_, guardian_);
  over.set();
  if (watcher.joinable()) watcher.join();
  return end;
}

void Rounds::note_losses() {
  gone_.clear();
  for (const int rank : fleet()->lost()) {
    const Seat& seat = self_.last.seats[static_cast<size_t>(rank)];
    gone_.insert(seat.nonce);
    if (rank != 0) continue;
    lost_lead_ = seat.node;
    lobby_.reset();
  }
  if (gone_.empty()) return;
  int64_t fence_ms = kFencedMs;
  // The two sides of a broken network find it out at most so far apart.
  if (fleet()->lost_in_silence()) {
    fence_ms += 2 * agent_->config.integer("heartbeat.interval_ms");
  }
  fenced_at_ = Deadline::after_ms(fence_ms);
}

void Rounds::tell_end(const AttemptEnd& end) {
  if (lobby_ == nullptr || !lobby_->leads()) return;
  const auto there = lobby_->waiting({Deadline::after_ms(kPlaceMs), nullptr});
  if (!there.ok() || there.value().empty()) return;
  Offer offer;
  offer.end_code = end.exit_code;
  offer.end_text =
      format("the job has ended with code %d before this node could take part", end.exit_code);
  (void)lobby_->answer(there.value(), offer);
}

Result<int> Rounds::run() {
  DT_TRY_VALUE(agent_->loop, net::Loop::start("dt-agents"));
  uint64_t nonce = 0;
  if (getrandom(&nonce, sizeof nonce, 0) != static_cast<ssize_t>(sizeof nonce)) {
    return Status(Code::kSystem, "no random number for the agent: " + errno_text(errno));
  }
  self_.seat.nonce = options_.nonce = nonce;
  for (;;) {
    DT_TRY_VALUE(const Offer offer, gather());
    if (offer.end_code >= 0) {
      fprintf(stderr, "dt run: %s\n", offer.end_text.c_str());
      return offer.end_code;
    }
    if (offer.roster.nonces() != failed_agents_) give_up_at_.reset();
    const Status met = meet(offer.roster);
    if (!met.ok()) {
      DT_TRY(try_again(offer.roster, met));
      continue;
    }
    give_up_at_.reset();
    told_minority_ = false;
    const auto end = attempt();
    const Status begun = end.status();
    if (!begun.ok() && begun.code() != Code::kPeerLost && begun.code() != Code::kTimeout) {
      return begun;
    }
    const bool again = !begun.ok() || end.value().outcome.restart || end.value().outcome.regroup;
    if (begun.ok() && end.value().outcome.restart) ++self_.last.restarts;
    if (!again) tell_end(end.value());
    fleet()->leave();
    note_losses();
    agent_->plan.fleet = nullptr;
    agent_->fleet.reset();
    if (!again) return end.value().exit_code;
  }
}

}  // namespace

Result<int> run_rounds(Agent* agent, Signals* signals, Guardian* guardian) {
  return Rounds(agent, signals, guardian).run();
}

}  // namespace dt::cli
