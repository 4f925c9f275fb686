// SPDX-License-Identifier: Apache-2.0
//
// What outlives a failure: checkpoints in the middle of an epoch, and going on from them. The other
// half of Trainer.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <utility>

#include "trainer.h"

namespace fashion {
namespace {

constexpr int64_t kMostSavingMs =
    600'000;  // a shared disk that hangs longer than this is a failure

}  // namespace

/// Rank 0 writes, and the checkpoint counts when all ranks know that it did. Without room on the
/// disk the former one stays, and training goes on.
void Trainer::save() {
  if (options_.save.empty() || saved_step_ == state_.step) return;
  progress_.pause();
  if (rank_ == 0) {
    state_.parameters = network_.parameters();
    state_.optimizer_state = optimizer_.state();
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
    network_.parameters() = loaded.parameters;
    optimizer_.state() = loaded.optimizer_state;
    state_ = std::move(loaded);
    if (options_.resume == options_.save) saved_step_ = state_.step;
  }
  if (reducer_) compare_parameters();  // also when some rank found no file
  progress_.say("resumed at step " + std::to_string(state_.step));
}

}  // namespace fashion
