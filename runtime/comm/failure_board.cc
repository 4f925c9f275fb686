// SPDX-License-Identifier: Apache-2.0
#include "comm/failure_board.h"

#include <algorithm>

#include "comm/communicator.h"

namespace dt::comm {

std::vector<std::shared_ptr<Communicator>> FailureBoard::snapshot(State& state) {
  std::vector<std::shared_ptr<Communicator>> live;
  std::erase_if(state.communicators, [&](const std::weak_ptr<Communicator>& weak) {
    auto communicator = weak.lock();
    if (communicator == nullptr) return true;
    live.push_back(std::move(communicator));
    return false;
  });
  return live;
}

// Each function records first and tells afterwards, outside the lock. A communicator that enlists
// in between reads the record, one that enlisted before is in the snapshot: none is missed.

void FailureBoard::rank_lost(int32_t world_rank, const Status& status) {
  const auto live = state_.with([&](State& state) {
    state.lost.emplace_back(world_rank, status);
    state.all.emplace_back(world_rank, status);
    return snapshot(state);
  });
  for (const auto& communicator : live) {
    if (communicator->contains(world_rank)) communicator->interrupt(status);
  }
}

void FailureBoard::communicator_failed(const std::string& name, const Status& status) {
  const auto live = state_.with([&](State& state) {
    state.failed.emplace_back(name, status);
    return snapshot(state);
  });
  for (const auto& communicator : live) {
    if (communicator->name() == name) communicator->interrupt(status);
  }
}

void FailureBoard::job_failed(const Status& status) {
  const auto live = state_.with([&](State& state) {
    if (state.job.ok()) state.job = status;
    state.all.emplace_back(-1, status);
    return snapshot(state);
  });
  for (const auto& communicator : live) communicator->interrupt(status);
}

void FailureBoard::ranks_left(const std::vector<int32_t>& world_ranks) {
  const auto live = state_.with([&](State& state) {
    state.left.insert(state.left.end(), world_ranks.begin(), world_ranks.end());
    return snapshot(state);
  });
  for (const auto& communicator : live) tell_left(*communicator, world_ranks);
}

void FailureBoard::tell_left(Communicator& communicator, const std::vector<int32_t>& world_ranks) {
  const auto& members = communicator.world_ranks();
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (std::find(world_ranks.begin(), world_ranks.end(), members[rank]) != world_ranks.end()) {
      communicator.backend().peer_left(static_cast<int32_t>(rank));
    }
  }
}

std::vector<int32_t> FailureBoard::left() const {
  return state_.with([](const State& state) { return state.left; });
}

void FailureBoard::excuse(Communicator& communicator, const State& state) {
  int64_t until_ns = monotonic_ns();
  for (const auto& [rank, away_until_ns] : state.away_until_ns) {
    if (communicator.contains(rank)) until_ns = std::max(until_ns, away_until_ns);
  }
  communicator.excuse(until_ns);
}

// Under the lock, so that of two calls the later one counts. A backend stores the time and wakes
// the threads that wait.
void FailureBoard::rank_busy(int32_t world_rank, int64_t max_ms) {
  state_.with([&](State& state) {
    state.away_until_ns.erase(world_rank);
    if (max_ms > 0) state.away_until_ns[world_rank] = monotonic_ns() + max_ms * 1'000'000;
    auto live = snapshot(state);
    for (const auto& communicator : live) {
      if (communicator->contains(world_rank)) excuse(*communicator, state);
    }
    return live;  // so that none of them ends under the lock
  });
}

std::vector<std::shared_ptr<Communicator>> FailureBoard::communicators() {
  return state_.with([&](State& state) { return snapshot(state); });
}

Status FailureBoard::first() const {
  return state_.with([](const State& state) -> Status {
    for (const auto& [rank, status] : state.all) {
      if (state.forgiven.count(rank) == 0) return status;
    }
    return {};
  });
}

void FailureBoard::forgive(const std::vector<int32_t>& world_ranks) {
  state_.with([&](State& state) {
    for (const int32_t rank : world_ranks) state.forgiven.insert(rank);
  });
}

bool FailureBoard::forgiven(int32_t world_rank) const {
  return state_.with([&](const State& state) { return state.forgiven.count(world_rank) != 0; });
}

int64_t FailureBoard::gone() const {
  return state_.with([](const State& state) {
    std::set<int32_t> all = state.forgiven;
    all.insert(state.left.begin(), state.left.end());
    return static_cast<int64_t>(all.size());
  });
}

Status FailureBoard::concerning(const std::vector<int32_t>& world_ranks) const {
  return state_.with([&](const State& state) -> Status {
    if (!state.job.ok()) return state.job;
    for (const auto& [rank, status] : state.lost) {
      const auto found = std::find(world_ranks.begin(), world_ranks.end(), rank);
      if (found != world_ranks.end()) return status;
    }
    return {};
  });
}

void FailureBoard::enlist(const std::shared_ptr<Communicator>& communicator) {
  std::vector<std::shared_ptr<Communicator>> live;  // so that none of them ends under the lock
  const Status known = state_.with([&](State& state) -> Status {
    live = snapshot(state);
    state.communicators.push_back(communicator);
    if (!state.away_until_ns.empty()) excuse(*communicator, state);
    if (!state.job.ok()) return state.job;
    for (const auto& [rank, status] : state.lost) {
      if (communicator->contains(rank)) return status;
    }
    for (const auto& [name, status] : state.failed) {
      if (communicator->name() == name) return status;
    }
    return {};
  });
  if (!known.ok()) communicator->interrupt(known);
  tell_left(*communicator, left());
}

}  // namespace dt::comm
