// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace fashion {

/// What a line shows.
struct ProgressState {
  int64_t epoch = 0;  // from 0
  int64_t epochs = 0;
  int64_t step = 0;  // done in this epoch
  int64_t steps = 0;
  int64_t remaining_steps = 0;  // until the program ends
  double loss = 0;              // mean of the recent steps
  double accuracy = 0;
  double waited_seconds = -1;  // for averaged gradients, since the program started; < 0: alone
  double test_accuracy = -1;   // < 0: not evaluated
};

/// One live line on a terminal; one line per epoch in a file. Only rank 0 has one that is enabled.
class Progress {
 public:
  Progress(bool enabled, int64_t images_per_step);

  /// After a step; a terminal is redrawn at most ten times a second.
  void step(const ProgressState& state);
  /// Ends the epoch's line, also of an epoch that was cut short.
  void epoch_end(const ProgressState& state);
  /// Prints a whole line above or after the live one.
  void say(const std::string& line);
  /// Time spent evaluating or saving does not count as training.
  void pause();
  void resume();

 private:
  using Clock = std::chrono::steady_clock;
  double trained_seconds() const;
  /// The share of the training time in which this rank waited for gradients.
  std::string waited(const ProgressState& state) const;
  void draw(const std::string& line, bool end);

  const bool enabled_;
  const bool live_;
  const int64_t images_per_step_;
  Clock::time_point started_;  // of the running stretch of training
  Clock::time_point last_drawn_{};
  double earlier_seconds_ = 0;  // of the stretches before
  bool running_ = false;
  int64_t steps_ = 0;  // since the program started
  bool line_open_ = false;
};

/// "1:05", "2:03:09".
std::string format_seconds(double seconds);

}  // namespace fashion
