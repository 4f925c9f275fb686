// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <dt/dt.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device.h"
#include "network.h"
#include "options.h"
#include "sharded.h"

namespace gpt {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

/// Trains one network on all ranks of a job. Throws dt::Error and std::runtime_error.
class Trainer {
 public:
  /// @param job borrowed. @param device its memory is that of the job's communicator.
  Trainer(const Options& options, dt::Job* job, std::unique_ptr<Device> device, std::string text);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  void run();
  /// Of the steps whose loss was read, in order.
  const std::vector<double>& losses() const { return losses_; }

 private:
  void compare_settings();
  void open_loss_log();
  void flush_loss_log();
  void make_parameters();
  void make_outer();
  void resume();
  std::string checkpoint_of(int64_t step) const;
  std::vector<int64_t> saved_steps() const;
  void save();
  bool save_and_ask();
  void train_step();
  void plan_buckets();
  int64_t taken_bytes() const;
  void measure_memory(int parameter);
  void read_loss();
  void print_interval();
  uint64_t hash_parameters();
  void compare_parameters();
  void print_memory();
  void say(const std::string& line) const;
  std::string key(const std::string& name) const;

  const Options options_;
  dt::Job* const job_;
  const dt::Place place_;
  const std::string text_;
  const int64_t part_batch_;  // sequences of this rank per backward pass

  const std::unique_ptr<Device> device_;
  dt::Comm comm_;
  std::optional<dt::Comm> group_;  // the reducer's, where it is not for all ranks
  std::unique_ptr<Network> network_;
  std::optional<ShardedParameters> sharded_;  // none: the network keeps its parameters
  std::optional<dt::Reducer> own_reducer_;    // where they are not sharded
  dt::Reducer* reducer_ = nullptr;            // the one in use
  std::optional<dt::Outer> outer_;            // between groups
  float* norm_ = nullptr;  // on the device: of the gradients, before they are clipped
  int64_t first_memory_ = 0, most_memory_ = 0;  // bytes: without a network, and in the last step
  int64_t step_ = 0;                            // done
  int64_t first_step_ = 0;                      // done by a former attempt
  bool met_ = false;                            // groups have come together in the last step
  std::vector<double> losses_;
  std::unique_ptr<std::FILE, CloseFile> loss_log_;
  std::chrono::steady_clock::time_point interval_begin_;
  int64_t interval_step_ = 0;
  int64_t interval_waited_ns_ = 0;  // for averaged gradients, before the interval
};

}  // namespace gpt
