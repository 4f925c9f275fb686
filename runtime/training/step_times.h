// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "cuda/runtime.h"

namespace dt::training {

/// How long the steps of a reducer took on the GPU, by timed events that nobody waits for.
///
/// A step takes one of a few sets of events: `began` and `ended` around the operation of each
/// bucket, on the communicator's stream, and `came`, where the caller's stream came to finish().
/// Its times are read once the last of them has passed. A step that finds no free set, because the
/// host is that many steps ahead of the GPU, has no times.
///
/// Threads: begin_step() to end_step() are for the thread of the step, began() and ended() for
/// whoever launches a bucket in it; take_passed() for any thread.
class StepTimes {
 public:
  static constexpr size_t kSteps = 8;  ///< that the GPU may be behind and still have times

  struct Times {
    int64_t communication_ns = 0;  ///< sum over the buckets
    int64_t exposed_ns = 0;        ///< from `came` to the last `ended`
  };

  explicit StepTimes(std::shared_ptr<cuda::Runtime> runtime) : runtime_(std::move(runtime)) {}
  ~StepTimes();
  StepTimes(const StepTimes&) = delete;
  StepTimes& operator=(const StepTimes&) = delete;

  /// Makes events for steps of that many buckets. Between steps.
  Status reserve(size_t buckets);

  void begin_step();
  /// Null: this step has no times.
  cuda::Event began(size_t bucket) const;
  cuda::Event ended(size_t bucket) const;
  Status record_came(cuda::Stream stream);
  /// True: its times will come. To be called when all events of the step are recorded: one that
  /// never was counts as passed.
  bool end_step(size_t buckets);

  /// Of the steps that have passed since the last call, oldest first.
  std::vector<Times> take_passed();

 private:
  struct Set {
    cuda::Event came = nullptr;
    std::vector<cuda::Event> began;
    std::vector<cuda::Event> ended;
    size_t buckets = 0;  // of the step that it holds
    bool under_way = false;
  };
  bool has_passed(const Set& set) const;
  Times read(const Set& set) const;

  const std::shared_ptr<cuda::Runtime> runtime_;
  mutable std::mutex mutex_;
  std::array<Set, kSteps> sets_;  // under mutex_, like the rest
  std::deque<Set*> under_way_;    // oldest first
  Set* current_ = nullptr;
};

}  // namespace dt::training
