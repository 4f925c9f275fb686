// SPDX-License-Identifier: Apache-2.0
#include "cli/run/lost_ranks.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace dt::cli {

LostRanks::LostRanks() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void LostRanks::note(int attempt, int rank) {
  state_.with([&](State& state) {
    if (attempt < state.attempt) return;
    if (attempt > state.attempt) state = {attempt, {}};
    state.ranks.insert(rank);
  });
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

std::set<int> LostRanks::take(int attempt) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t bytes = read(wake_.get(), &count, sizeof count);
  return state_.with([&](State& state) {
    if (attempt < state.attempt) return std::set<int>();
    if (attempt > state.attempt) state = {attempt, {}};
    return std::exchange(state.ranks, {});
  });
}

}  // namespace dt::cli
