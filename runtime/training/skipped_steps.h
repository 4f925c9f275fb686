// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/status.h"
#include "comm/communicator.h"
#include "kernels/optimizer_step.h"
#include "training/stream_marks.h"

namespace dt::training {

/// Which steps of an optimizer had gradients whose norm is not finite, and so changed nothing.
///
/// On GPUs the norm of a step is there. It is copied to a slot on the GPU, which the kernels of
/// this step and of the next ones read, and from there to the host, which so learns of a step when
/// the GPU has passed it. A step takes the slot of the one kSlots before it, of which the host
/// knows by then. Kernels that still read that slot are of steps in between, and the caller orders
/// steps, so they come before what fills it.
///
/// Threads: one at a time.
class SkippedSteps {
 public:
  /// Called when the host learns whether the step of a slot was skipped.
  using Learned = std::function<void(int slot, bool skipped)>;

  static Result<std::unique_ptr<SkippedSteps>> create(std::shared_ptr<comm::Communicator> comm,
                                                      Learned learned);
  ~SkippedSteps();
  SkippedSteps(const SkippedSteps&) = delete;
  SkippedSteps& operator=(const SkippedSteps&) = delete;

  /// A step over host memory.
  void add(bool skipped);
  /// A step over a GPU, where `norm` is. What it gives has no `earlier`. Waits where the host does
  /// not know of the step kSlots before.
  Result<kernels::StepGuard> add(const float* norm, cuda::Stream stream);
  /// Waits for the outcome of all steps except the last `behind`, less than kSlots; takes later
  /// outcomes, too, that are there already. TIMEOUT if the GPU has not finished these steps.
  Status learn(int64_t behind);
  /// The GPU may still use what is here, which stays with the communicator.
  void leave();
  /// How many were skipped before the last `behind` steps, less than kSlots.
  Result<int64_t> count(int64_t behind);

 private:
  static constexpr int kSlots = kernels::StepGuard::kSlots;
  struct Memory;

  explicit SkippedSteps(std::shared_ptr<comm::Communicator> comm, Learned learned);
  void know(bool skipped);

  const std::shared_ptr<comm::Communicator> comm_;
  const Learned learned_;
  std::shared_ptr<Memory> memory_;      // null: host memory
  std::array<MarkPtr, kSlots> marks_;   // behind the copies to the host
  std::array<bool, kSlots> skipped_{};  // of the last steps that are known
  int64_t steps_ = 0;
  int64_t known_ = 0;  // of these, the first so many
  int64_t count_ = 0;  // skipped, of those that are known
};

}  // namespace dt::training
