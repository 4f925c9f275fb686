// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/guarded.h"
#include "base/status.h"

namespace dt::comm {

class Communicator;

/// Carries what the control plane learns to the communicators it concerns, those of today and those
/// made later. One per job. Any thread; never blocks.
class FailureBoard {
 public:
  /// A world rank died: breaks every communicator that contains it.
  void rank_lost(int32_t world_rank, const Status& status);
  /// The communicator of this name failed on another rank.
  void communicator_failed(const std::string& name, const Status& status);
  /// The whole job is over: abort, lost store, finalize. The first status stays.
  void job_failed(const Status& status);

  /// These world ranks have left with dt_finalize; the store tells of failures before.
  void ranks_left(const std::vector<int32_t>& world_ranks);
  /// All that have.
  std::vector<int32_t> left() const;
  /// A rank is away on purpose for at most `max_ms` from now on, or with 0 back. Its communicators
  /// wait for the last of their ranks that are away: see Communicator::excuse().
  void rank_busy(int32_t world_rank, int64_t max_ms);
  /// Those that live.
  std::vector<std::shared_ptr<Communicator>> communicators();

  /// Survivors go on without these ranks: first() forgets what became of them.
  void forgive(const std::vector<int32_t>& world_ranks);
  bool forgiven(int32_t world_rank) const;
  /// How many ranks begin nothing any more: they have left, or survivors go on without them.
  int64_t gone() const;
  /// What ended the job, or one of these ranks; ok where nothing did.
  Status concerning(const std::vector<int32_t>& world_ranks) const;

  /// The first failure of the whole job or of any rank, but those forgiven; ok while there is
  /// none.
  Status first() const;

  /// From now on `communicator` hears of failures; those already known reach it at once.
  void enlist(const std::shared_ptr<Communicator>& communicator);

 private:
  struct State {
    std::vector<std::weak_ptr<Communicator>> communicators;
    std::vector<std::pair<int32_t, Status>> lost;
    std::vector<std::pair<std::string, Status>> failed;
    Status job;
    std::set<int32_t> forgiven;
    std::vector<int32_t> left;
    std::vector<std::pair<int32_t, Status>> all;  // in order; rank -1: of the job
    std::map<int32_t, int64_t> away_until_ns;     // by rank
  };

  static void excuse(Communicator& communicator, const State& state);
  static void tell_left(Communicator& communicator, const std::vector<int32_t>& world_ranks);
  /// Live communicators; forgets the others.
  std::vector<std::shared_ptr<Communicator>> snapshot(State& state);

  mutable Guarded<State> state_;
};

}  // namespace dt::comm
