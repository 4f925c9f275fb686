// SPDX-License-Identifier: Apache-2.0
// What the agents of a job tell each other while it runs.
#include "cli/run/fleet.h"

#include <unistd.h>

#include <utility>

#include "base/number.h"
#include "base/thread.h"
#include "cli/run/fleet_words.h"
#include "store/text.h"

namespace dt::cli {
namespace {

constexpr int64_t kTellMs = 2'000;     // the agent hears no signal while it tells
constexpr int64_t kRenewMs = 200;      // how long a loss may stay unnoticed by a wait
constexpr int64_t kAnswerMs = 10'000;  // for a store that has answered before
constexpr int64_t kSlackMs = 2'000;    // node 0 decides first, then the others give up
constexpr int64_t kGoodbyeMs = 10'000;
constexpr int64_t kFarewellMs = 3'000;       // node 0 stays that long for the others to hear it
constexpr const char* kStopped = "stop";     // in the place of the rank that failed first
constexpr const char* kRegroup = "regroup";  // likewise

std::string attempt_key(int attempt, const char* what) {
  return format("attempt/%d/%s", attempt, what);
}

std::string ends_key(int attempt, int node) { return format("attempt/%d/ends/%d", attempt, node); }

Wait within(int64_t timeout_ms) { return {Deadline::after_ms(timeout_ms), nullptr}; }

}  // namespace

Fleet::~Fleet() {
  state_.with([](State& state) { state.closing = true; });
  if (settling_.joinable()) settling_.join();
  member_.reset();
  keys_.reset();
  if (server_ != nullptr) (void)server_->wait_empty(within(kFarewellMs));
}

// ---- news ----

void Fleet::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

/// `all`: also the ranks that go on without those that failed, for as long as they like.
void Fleet::expect_end(State& state, bool all) const {
  if (options_.others_go_on && !all) return;
  state.settle_until = state.settle_until.earlier(Deadline::after_ms(options_.settle_timeout_ms));
}

void Fleet::report_nonsense(const std::string& text) const {
  if (options_.logger == nullptr) return;
  options_.logger->log(LogLevel::kError,
                       "another agent says %s, which makes no sense here and is ignored; use the "
                       "same release of dt on all nodes",
                       store::quoted(text).c_str());
}

/// The others go on without this node when they have lost it, too: without node 0, or with fewer
/// than a majority, nobody knows whether they do.
void Fleet::note_lost(State& state, const store::Failure& failure) const {
  const int node = failure.info.rank;
  state.lost.insert(node);
  if (failure.silent) state.silent.insert(node);
  state.news.lost = true;
  // Of node 0 only the connection is known.
  if (failure.silent || node == 0) state.lost_in_silence = true;
  const int left = options_.node.node_count - static_cast<int>(state.lost.size());
  const bool minority = 2 * left <= options_.node.node_count && !options_.allow_minority;
  if (options_.elastic && (node == 0 || minority)) state.news.fence = true;
  look_for_ranks(state);
}

void Fleet::note_ranks_ended(State& state, int attempt, int node) const {
  if (attempt < state.ended_attempt) return;
  if (attempt > state.ended_attempt) state.ended.clear();
  state.ended_attempt = attempt;
  state.ended.insert(node);
  look_for_ranks(state);
}

/// A lost node never says that its ranks have ended, and without node 0 nobody hears it.
void Fleet::look_for_ranks(State& state) const {
  bool all = true;
  for (int node = 0; node < options_.node.node_count; ++node) {
    const bool ended = state.ended_attempt == state.attempt && state.ended.count(node) != 0;
    all = all && (ended || state.lost.count(node) != 0);
  }
  if (all || state.disowned || state.lost.count(0) != 0) state.news.ranks_ended = true;
}

void Fleet::hear(const store::Failure& failure) {
  const std::optional<Word> word = parse_word(failure.scope);
  if (!word && !failure.scope.empty()) return report_nonsense(failure.scope);
  if (word && word->silent_attempt) {
    if (options_.lost_ranks != nullptr) {
      options_.lost_ranks->note(*word->silent_attempt, word->silent_rank);
    }
    return;
  }
  state_.with([&](State& state) {
    if (failure.scope.empty() && failure.info.code == Code::kPeerLost) {
      note_lost(state, failure);
      expect_end(state);
    } else if (failure.scope.empty() && failure.info.code == Code::kAborted) {
      // Node 0's farewell, whose end comes next.
      state.disowned = state.news.lost = true;
      state.news.fence = options_.elastic;
      look_for_ranks(state);
      expect_end(state, true);
    } else if (word && word->failed_attempt) {
      // This agent may be the last to begin the attempt.
      state.failed_attempt = *word->failed_attempt;
      if (state.failed_attempt != state.attempt) return;
      state.news.failed = true;
      expect_end(state);
    } else if (word && word->heeding_attempt) {
      state.heeding_attempt = *word->heeding_attempt;
    } else if (word && word->server_attempt) {
      state.server_attempt = *word->server_attempt;
      if (state.server_attempt != state.attempt) return;
      state.news.server_failed = true;
      expect_end(state, true);
    } else if (word && word->ended_attempt) {
      note_ranks_ended(state, *word->ended_attempt, word->ended_node);
    } else if (word && word->regroup_attempt) {
      state.regroup_attempt = *word->regroup_attempt;
      state.news.regroup = state.regroup_attempt == state.attempt;
    } else if (word) {
      state.news.stop_signal = word->signal;
      if (word->count < 2) return;
      state.news.kill = true;
      expect_end(state, true);
    }
  });
  wake();
}

/// Node 0, on the loop's thread. False: the failure says something else, for all.
bool Fleet::hear_end(const store::Failure& failure) {
  const std::optional<Word> word = parse_word(failure.scope);
  if (!word || !word->gone_attempt) return false;
  const ErrorInfo& info = failure.info;
  state_.with([&](State& state) {
    if (*word->gone_attempt != state.attempt) return;  // one that is over
    state.news.ended.push_back({{info.rank, info.host, info.pid}, info.message});
  });
  wake();
  return true;
}

FleetNews Fleet::take_news() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t bytes = read(wake_.get(), &count, sizeof count);
  return state_.with([](State& state) { return std::exchange(state.news, {}); });
}

void Fleet::tell_failure(int attempt, int rank) {
  state_.with([this](State& state) { expect_end(state); });
  // The message is what wakes the others, the key what they agree on. Whoever misses the message
  // because the store does not answer hears of the lost node 0.
  if (rank >= 0) {
    (void)keys_->compare_set(attempt_key(attempt, "first"), std::nullopt, std::to_string(rank),
                             within(kTellMs));
  }
  (void)member_->report_failure(format("end/%d", attempt), {}, within(kTellMs));
}

void Fleet::tell_end(int attempt, const store::Member& rank, const std::string& how) {
  ErrorInfo info;
  info.rank = rank.rank;
  info.host = rank.host;
  info.pid = rank.pid;
  info.message = how;
  member_->report_failure_soon(format("gone/%d", attempt), info, [] {});
}

void Fleet::tell_ranks_ended(int attempt) {
  state_.with([&](State& state) { note_ranks_ended(state, attempt, node_rank()); });
  wake();
  (void)member_->report_failure(format("ended/%d/%d", attempt, node_rank()), {}, within(kTellMs));
}

void Fleet::tell_server_failure(int attempt) {
  state_.with([this](State& state) { expect_end(state, true); });
  (void)member_->report_failure(format("server/%d", attempt), {}, within(kTellMs));
}

void Fleet::tell_heed(int attempt) {
  state_.with([&](State& state) { state.heeding_attempt = attempt; });
  member_->report_failure_soon(format("heed/%d", attempt), {}, [] {});
}

void Fleet::tell_silent(int attempt, int rank) {
  member_->report_failure_soon(format("silent/%d/%d", attempt, rank), {}, [] {});
}

bool Fleet::heeded(int attempt) const {
  return state_.with([&](const State& state) { return state.heeding_attempt == attempt; });
}

void Fleet::tell_stop(int attempt, int signal, int count) {
  if (count == 1) {
    (void)keys_->compare_set(attempt_key(attempt, "first"), std::nullopt, kStopped,
                             within(kTellMs));
  }
  if (count > 1) state_.with([this](State& state) { expect_end(state, true); });
  (void)member_->report_failure(format("stop/%d/%d", signal, count), {}, within(kTellMs));
}

bool Fleet::tell_regroup(int attempt) {
  const auto first =
      keys_->compare_set(attempt_key(attempt, "first"), std::nullopt, kRegroup, within(kTellMs));
  if (!first.ok()) return false;
  // A call before this one may have set it, although its answer came too late.
  if (!first.value().swapped && first.value().current != kRegroup) return true;
  if (!member_->report_failure(format("regroup/%d", attempt), {}, within(kTellMs)).ok()) {
    return false;
  }
  state_.with([&](State& state) {
    state.regroup_attempt = attempt;
    state.news.regroup = state.attempt == attempt;
  });
  wake();
  return true;
}

std::set<int> Fleet::lost() const {
  return state_.with([](const State& state) { return state.lost; });
}

bool Fleet::lost_in_silence() const {
  return state_.with([](const State& state) { return state.lost_in_silence; });
}

// ---- attempts ----

void Fleet::begin(int attempt) {
  if (settling_.joinable()) settling_.join();  // it has given its outcome
  state_.with([&](State& state) {
    state.attempt = attempt;
    state.outcome.reset();
    state.settle_until = Deadline::never();
    state.news.failed = state.failed_attempt == attempt;
    state.news.ended.clear();
    state.news.lost = !state.lost.empty();  // perhaps too late for the attempt before
    state.news.regroup = state.regroup_attempt == attempt;
    state.news.server_failed = state.server_attempt == attempt;
    state.news.ranks_ended = false;
    look_for_ranks(state);
    if (state.news.server_failed) expect_end(state, true);
    if (state.news.failed || state.news.lost) expect_end(state);
  });
}

Status Fleet::publish(const Endpoints& endpoints) {
  begin(endpoints.attempt);
  return keys_->set(attempt_key(endpoints.attempt, "endpoints"), encode(endpoints),
                    within(kAnswerMs));
}

Result<Endpoints> Fleet::await_endpoints(int attempt, const Wait& wait) {
  begin(attempt);
  const Result<std::string> value = keys_->get(attempt_key(attempt, "endpoints"), wait);
  if (!value.ok() && value.status().code() == Code::kPeerLost) {
    return Status(Code::kPeerLost, lost_text(0));
  }
  DT_TRY(value.status());
  Endpoints endpoints;
  if (!decode(value.value(), &endpoints) || endpoints.attempt != attempt) {
    return Status(Code::kInternal, "node 0 gives addresses that make no sense");
  }
  endpoints.store_host = host_seen_here(endpoints.store_host);
  endpoints.master_host = host_seen_here(endpoints.master_host);
  return endpoints;
}

std::string Fleet::lost_text(int node) const {
  const State now = state_.with([](const State& state) { return state; });
  const int others = options_.node.node_count - 1;
  const bool all_silent = others > 1 && now.silent.size() >= static_cast<size_t>(others);
  // Node 0 may lose the way to its own address, too.
  if (node_rank() == 0 && (all_silent || node == 0 || now.disowned)) return cut_off_text();
  if (now.disowned) return disowned_text();
  const NodeRecord& record = nodes_[static_cast<size_t>(node)];
  std::string why = "its agent was killed, or its machine or network is down";
  if (now.silent.count(node) != 0) {
    why = format(
        "it gave no sign of life for %s: its agent is stopped, or its machine or network "
        "is down",
        store::seconds_text(keys_->welcome().heartbeat_timeout_ms).c_str());
    // Nobody else was asked.
    if (node == 0 || others == 1) why += ", or the network of this machine (" + own_text() + ") is";
  }
  std::vector<int32_t> ranks;
  for (int i = 0; i < record.local_size; ++i) ranks.push_back(record.first_rank + i);
  return format("node %d (host %s, dt run pid %lld) is gone: %s; it held %s; %s", node,
                record.host.c_str(), static_cast<long long>(record.pid), why.c_str(),
                store::ranks_text(ranks).c_str(),
                options_.elastic ? "the other nodes start again without it"
                                 : "look at its log, then start the job again");
}

std::string Fleet::own_text() const {
  return format("node %d, host %s", node_rank(), options_.host_name.c_str());
}

/// Node 0's word when all are silent: what they have in common is that it does not hear them.
std::string Fleet::cut_off_text() const {
  std::vector<std::string> others;
  for (int node = 1; node < options_.node.node_count; ++node) {
    others.push_back(format("%d (host %s)", node, nodes_[static_cast<size_t>(node)].host.c_str()));
  }
  return format(
      "this machine (%s) hears none of the other nodes for %s: %s; its own network is down, or "
      "theirs; look at the network of host %s first, %s",
      own_text().c_str(), store::seconds_text(keys_->welcome().heartbeat_timeout_ms).c_str(),
      store::item_list(others).c_str(), options_.host_name.c_str(),
      options_.elastic ? "the others may start again without it" : "then start the job again");
}

std::string Fleet::disowned_text() const {
  return format(
      "the other nodes heard nothing of this one (%s, dt run pid %lld) for %s and go on without "
      "it: it was stopped, or its machine or network was down; %s",
      own_text().c_str(), static_cast<long long>(options_.pid),
      store::seconds_text(keys_->welcome().heartbeat_timeout_ms).c_str(),
      options_.elastic ? "it looks for them" : "start the job again");
}

std::string Fleet::silent_text(int node) const {
  const NodeRecord& record = nodes_[static_cast<size_t>(node)];
  return format(
      "node %d (host %s, dt run pid %lld) does not say how its ranks ended, %s after a failure; "
      "look "
      "at its log for processes that do not die, or for a network that is down",
      node, record.host.c_str(), static_cast<long long>(record.pid),
      store::seconds_text(options_.settle_timeout_ms).c_str());
}

Status Fleet::settle(int attempt, NodeEnds mine, FirstTold first_told) {
  DT_TRY_VALUE(settling_,
               start_thread("asks the other nodes how they ended",
                            [this, attempt, mine = std::move(mine), told = std::move(first_told)] {
                              Outcome agreed = agree(attempt, mine, told);
                              state_.with([&](State& state) { state.outcome = std::move(agreed); });
                              wake();
                            }));
  return {};
}

std::optional<Outcome> Fleet::outcome() {
  return state_.with([](State& state) { return std::exchange(state.outcome, std::nullopt); });
}

Outcome Fleet::agree(int attempt, const NodeEnds& mine, const FirstTold& first_told) {
  const bool lost0 =
      state_.with([](const State& state) { return state.disowned || state.lost.count(0) != 0; });
  const Status told =
      lost0 ? Status(Code::kPeerLost, lost_text(0))
            : keys_->set(ends_key(attempt, node_rank()), encode(mine), within(kAnswerMs));
  if (told.ok() && node_rank() == 0) {
    Outcome outcome = gather(attempt, mine, first_told);
    (void)keys_->set(attempt_key(attempt, "outcome"), encode(outcome), within(kAnswerMs));
    return outcome;
  }
  bool gave_up = false;
  while (told.ok()) {
    const Result<std::string> value = keys_->get(attempt_key(attempt, "outcome"), within(kRenewMs));
    Outcome outcome;
    if (value.ok() && decode(value.value(), &outcome)) return outcome;
    gave_up = state_.with([](const State& state) {
      return state.closing || state.settle_until.plus_ms(kSlackMs).passed();
    });
    if (value.ok() || value.status().code() != Code::kTimeout || gave_up) break;
  }
  const bool silent =
      told.ok() && (gave_up || keys_->ping(within(kRenewMs)).code() == Code::kTimeout);
  state_.with([](State& state) {
    state.lost.insert(0);
    state.lost_in_silence = true;
  });
  OutcomeFacts facts;
  facts.node_count = options_.node.node_count;
  facts.elastic = options_.elastic;
  facts.lost_node = silent ? silent_text(0) : lost_text(0);
  return decide({mine}, facts);
}

Outcome Fleet::gather(int attempt, const NodeEnds& mine, const FirstTold& first_told) {
  std::map<int, NodeEnds> told;
  told[0] = mine;
  collect(attempt, &told);
  OutcomeFacts facts;
  facts.node_count = options_.node.node_count;
  facts.attempt = options_.elastic ? options_.restarts : attempt;
  facts.elastic = options_.elastic;
  const std::set<int> lost = state_.with([](const State& state) { return state.lost; });
  facts.max_restarts = lost.empty() ? max_restarts_ : 0;
  facts.others_go_on = options_.others_go_on;
  facts.note_told(first_told());
  const auto first = keys_->multi_get({attempt_key(attempt, "first")}, within(kAnswerMs));
  if (first.ok() && first.value()[0]) {
    facts.stopped_first = *first.value()[0] == kStopped;
    facts.regroup_first = *first.value()[0] == kRegroup;
    const auto rank = parse_number<int>(*first.value()[0]);
    if (rank) facts.first_recorded = *rank;
    if (!rank && !facts.stopped_first && !facts.regroup_first) report_nonsense(*first.value()[0]);
  }
  std::vector<NodeEnds> all;
  for (int node = 0; node < facts.node_count; ++node) {
    const auto found = told.find(node);
    if (found != told.end()) {
      all.push_back(found->second);
      continue;
    }
    if (facts.lost_node.empty()) {
      facts.lost_node = lost.count(node) != 0 ? lost_text(node) : silent_text(node);
    }
    state_.with([&](State& state) {
      if (state.lost.insert(node).second) state.lost_in_silence = true;
    });
  }
  return decide(all, facts);
}

void Fleet::collect(int attempt, std::map<int, NodeEnds>* told) {
  for (;;) {
    const State now = state_.with([](const State& state) { return state; });
    std::vector<int> missing;
    std::vector<std::string> keys;
    for (int node = 0; node < options_.node.node_count; ++node) {
      if (told->count(node) != 0 || now.lost.count(node) != 0) continue;
      missing.push_back(node);
      keys.push_back(ends_key(attempt, node));
    }
    if (missing.empty() || now.closing || now.settle_until.passed()) return;
    (void)keys_->wait_for(keys, within(kRenewMs));
    const auto values = keys_->multi_get(keys, within(kAnswerMs));
    if (!values.ok()) return;
    for (size_t i = 0; i < missing.size(); ++i) {
      const std::optional<std::string>& value = values.value()[i];
      NodeEnds ends;
      if (!value || !decode(*value, &ends)) continue;
      const NodeRecord& record = nodes_[static_cast<size_t>(missing[i])];
      const bool fits = ends.first_rank == record.first_rank &&
                        ends.ends.size() <= static_cast<size_t>(record.local_size);
      if (fits) (*told)[missing[i]] = std::move(ends);
    }
  }
}

void Fleet::leave() {
  if (settling_.joinable()) settling_.join();
  (void)member_->goodbye(within(kGoodbyeMs));
}

}  // namespace dt::cli
