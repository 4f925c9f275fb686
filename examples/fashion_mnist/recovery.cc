// SPDX-License-Identifier: Apache-2.0
//
// What outlives a failure: checkpoints in the middle of an epoch, and going on from them. The other
// half of Trainer.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <utility>
#include <vector>

#include "trainer.h"

namespace fashion {
namespace {

constexpr int64_t kMostSavingMs =
    600'000;  // a shared disk that hangs longer than this is a failure

}  // namespace

void Trainer::collect_state() {
  state_.parameters = network_.parameters();
  state_.optimizer_state = optimizer_.state();
}

void Trainer::adopt(Checkpoint&& state) {
  network_.parameters() = state.parameters;
  optimizer_.state() = state.optimizer_state;
  state_ = std::move(state);
}

/// Rank 0 writes, and the checkpoint counts when all ranks know that it did. Without room on the
/// disk the former one stays, and training goes on.
void Trainer::save() {
  if (options_.save.empty() || saved_step_ == state_.step) return;
  progress_.pause();
  if (rank_ == 0) {
    collect_state();
    job_.busy_begin("checkpoint", kMostSavingMs);
    save_error_ = save_checkpoint(options_.save, state_);
    job_.busy_end();
  }
  const bool written = save_error_.empty();
  if (reducer_ ? job_.agree(written) : written) {
    saved_step_ = state_.step;
  } else if (rank_ == 0) {
    const std::string former =
        saved_step_ < 0 ? "there is none yet" : "it is of step " + std::to_string(saved_step_);
    std::fprintf(stderr,
                 "fashion_mnist: rank 0: step %lld: %s; training goes on, the last one: %s\n",
                 static_cast<long long>(state_.step), save_error_.c_str(), former.c_str());
  }
  progress_.resume();
}

void Trainer::resume() {
  const bool absent = access(options_.resume.c_str(), F_OK) != 0 && errno == ENOENT;
  if (!(absent && options_.resume == options_.save)) {
    Checkpoint loaded;
    const Error error = load_checkpoint(options_.resume, state_.shape, &loaded);
    if (!error.empty()) throw std::runtime_error(error);
    if (loaded.batch != state_.batch || loaded.seed != state_.seed ||
        loaded.optimizer != state_.optimizer) {
      throw std::runtime_error("checkpoint " + options_.resume + " was made with --batch " +
                               std::to_string(loaded.batch) + " --seed " +
                               std::to_string(loaded.seed) + " --optimizer " +
                               optimizer_name(loaded.optimizer) + "; give the same");
    }
    if (loaded.position >= steps_per_epoch_ ||
        loaded.step != loaded.epoch * steps_per_epoch_ + loaded.position) {
      throw std::runtime_error("checkpoint " + options_.resume +
                               " was made from other training images; give the same --data");
    }
    adopt(std::move(loaded));
    if (options_.resume == options_.save) saved_step_ = state_.step;
  }
  if (reducer_) check_equal();  // also when some rank found no file
  progress_.say("resumed at step " + std::to_string(state_.step));
}

// A rank changes its state at the end of a step at once, so each rank's state is that of a whole
// step: of the last one that all have ended, or of the next one where some had ended it, too.
void Trainer::take_over(Trainer* former) {
  const Checkpoint& own = former->state_;
  const int64_t done[3] = {own.step, static_cast<int64_t>(own.evaluations.size()), own.epoch};
  std::vector<std::array<int64_t, 3>> all(static_cast<size_t>(world_size_));
  comm_.allgather(done, {all.front().data(), 3 * all.size()});
  const auto furthest =
      static_cast<int32_t>(std::max_element(all.begin(), all.end()) - all.begin());

  std::vector<char> bytes;
  if (rank_ == furthest) {
    former->collect_state();
    bytes = pack_checkpoint(own);
  }
  int64_t head[2] = {static_cast<int64_t>(bytes.size()), former->saved_step_};
  comm_.broadcast(head, furthest);
  bytes.resize(static_cast<size_t>(head[0]));
  comm_.broadcast({bytes.data(), head[0], DT_U8}, furthest);
  Checkpoint state;
  const Error error = unpack_checkpoint(bytes, "from another rank", state_.shape, &state);
  if (!error.empty()) throw std::runtime_error(error);
  adopt(std::move(state));
  saved_step_ = head[1];
}

std::unique_ptr<Trainer> Trainer::of_survivors(Trainer* former, std::string why) {
  Options options = former->options_;
  options.resume.clear();  // the survivors know more than the file
  for (int32_t most_lost = former->world_size_;; --most_lost) {
    try {
      // From here on it is the job's communicator of all ranks. If one more is lost before all are
      // ready, this one is shrunk, by those that are, too.
      former->comm_ = former->comm_.shrink();
      const int32_t left = former->comm_.size();
      const Error error =
          check_batch(options.batch, left, former->train_.count(), options.accumulate);
      if (!error.empty()) throw std::runtime_error(error);
      auto trainer =
          std::make_unique<Trainer>(options, &former->job_, former->train_, former->test_);
      trainer->take_over(former);
      if (trainer->rank_ == 0) {
        std::fprintf(stderr, "fashion_mnist: rank %d: %s; %d go on after step %lld\n",
                     trainer->job_.place().rank, why.c_str(), left,
                     static_cast<long long>(trainer->state_.step));
      }
      return trainer;
    } catch (const dt::Error& error) {
      if (error.status() != DT_ERR_PEER_LOST || most_lost == 0) throw;
      why = error.what();
    }
  }
}

}  // namespace fashion
