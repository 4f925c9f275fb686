// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <dt/dt.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint.h"
#include "data.h"
#include "model.h"
#include "optimizer.h"
#include "options.h"
#include "progress.h"

namespace fashion {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

/// Trains one network on all ranks of a job. Throws dt::Error and std::runtime_error.
class Trainer {
 public:
  /// @param job, train, test are borrowed.
  Trainer(const Options& options, dt::Job* job, const Dataset& train, const Dataset& test);

  /// The trainer of the ranks that are left when run() of `former` threw PEER_LOST, because of
  /// `why`. It goes on with the state of the one that came furthest. Collective over those ranks.
  static std::unique_ptr<Trainer> of_survivors(Trainer* former, std::string why);

  /// Once a rank or dt run asks to stop, all finish the same step, save, and return.
  void run();

 private:
  void resume();
  void adopt(Checkpoint&& state);
  void take_over(Trainer* former);
  void train_epoch();
  void train_step(const int64_t* indices);
  void make_reducer();
  void read_gradient_pointers();
  void evaluate();
  void finish_step();
  void finish_epoch();
  void collect_state();
  void save();
  void write_curves();
  void open_loss_log();
  void log_loss(int64_t step, float loss);
  void check_equal();

  bool is_over() const;
  ProgressState progress_state(int64_t window) const;

  const Options options_;
  const Dataset &train_, &test_;
  dt::Job& job_;
  dt::Comm comm_;  // of all ranks that are left
  const int32_t rank_, world_size_;
  const int64_t local_batch_;      // images of this rank per step
  const int64_t pass_images_;      // of these, in each backward pass
  const int64_t steps_per_epoch_;  // whole global batches; the rest of an epoch is left out

  Network network_;
  Optimizer optimizer_;
  dt::Sampler sampler_;
  std::optional<dt::Reducer> reducer_;  // none with --compute-only
  std::vector<float> own_gradients_;    // with --compute-only or --accumulate
  std::vector<float*> gradients_;       // where backward() writes, per parameter
  double totals_[2] = {};               // loss, correct
  int64_t steps_here_ = 0;              // done by this process
  bool stopped_ = false;
  int64_t saved_step_ = -1;  // of the checkpoint that all ranks know of; -1: none
  Error save_error_;         // on rank 0: why the last one could not be written

  Checkpoint state_;  // its parameters are filled in when it is saved
  Progress progress_;
  std::unique_ptr<std::FILE, CloseFile> loss_log_;
};

}  // namespace fashion
