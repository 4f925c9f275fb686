// SPDX-License-Identifier: Apache-2.0
#include "training/skipped_steps.h"

#include <algorithm>
#include <cmath>

namespace dt::training {

struct SkippedSteps::Memory {
  explicit Memory(std::shared_ptr<cuda::Runtime> of) : runtime(of), marks(std::move(of)) {}
  ~Memory() {
    if (on_device != nullptr) (void)runtime->release(on_device);
    if (on_host != nullptr) (void)runtime->release_pinned(on_host);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  const std::shared_ptr<cuda::Runtime> runtime;
  StreamMarks marks;
  float* on_device = nullptr;  // [kSlots]
  float* on_host = nullptr;    // [kSlots], pinned
};

SkippedSteps::SkippedSteps(std::shared_ptr<comm::Communicator> comm, Learned learned)
    : comm_(std::move(comm)), learned_(std::move(learned)) {}

Result<std::unique_ptr<SkippedSteps>> SkippedSteps::create(std::shared_ptr<comm::Communicator> comm,
                                                           Learned learned) {
  std::unique_ptr<SkippedSteps> made(new SkippedSteps(std::move(comm), std::move(learned)));
  const std::shared_ptr<cuda::Runtime> runtime = made->comm_->backend().device();
  if (runtime == nullptr) return made;
  made->memory_ = std::make_shared<Memory>(runtime);
  DT_TRY_VALUE(void* const on_device, runtime->allocate(kSlots * sizeof(float)));
  made->memory_->on_device = static_cast<float*>(on_device);
  DT_TRY_VALUE(void* const on_host, runtime->allocate_pinned(kSlots * sizeof(float)));
  made->memory_->on_host = static_cast<float*>(on_host);
  return made;
}

SkippedSteps::~SkippedSteps() {
  if (memory_ == nullptr) return;
  const Deadline deadline = Deadline::after_ms(kLastStepMs);
  for (const MarkPtr& mark : marks_) {
    if (mark == nullptr || await_event(*comm_, mark->event(), deadline, true).ok()) continue;
    leave();
    return;
  }
}

void SkippedSteps::leave() {
  if (memory_ != nullptr) comm_->backend().keep(std::move(memory_));
}

void SkippedSteps::know(bool skipped) {
  const auto slot = static_cast<size_t>(known_++ % kSlots);
  skipped_[slot] = skipped;
  if (skipped) ++count_;
  learned_(static_cast<int>(slot), skipped);
}

void SkippedSteps::add(bool skipped) {
  ++steps_;
  know(skipped);
}

Result<kernels::StepGuard> SkippedSteps::add(const float* norm, cuda::Stream stream) {
  DT_TRY(learn(kSlots - 1));
  const int64_t slot = steps_ % kSlots;
  float* const place = memory_->on_device + slot;
  DT_TRY(memory_->runtime->copy(place, norm, sizeof(float), stream));
  DT_TRY(memory_->runtime->copy(memory_->on_host + slot, place, sizeof(float), stream));
  DT_TRY_VALUE(marks_[static_cast<size_t>(slot)], memory_->marks.set(stream));
  ++steps_;
  return kernels::StepGuard{memory_->on_device, static_cast<uint32_t>(slot), 0};
}

Status SkippedSteps::learn(int64_t behind) {
  const Deadline deadline = comm_->deadline();
  while (known_ < steps_) {
    const auto slot = static_cast<size_t>(known_ % kSlots);
    const cuda::Event event = marks_[slot]->event();
    if (known_ < steps_ - behind) {
      DT_TRY(await_event(*comm_, event, deadline, /*broken_too=*/false));
    } else {
      DT_TRY_VALUE(const bool passed, memory_->runtime->passed(event));
      if (!passed) break;
    }
    know(!std::isfinite(memory_->on_host[slot]));
  }
  return {};
}

Result<int64_t> SkippedSteps::count(int64_t behind) {
  DT_TRY(learn(behind));
  int64_t count = count_;
  for (int64_t step = std::max<int64_t>(steps_ - behind, 0); step < known_; ++step) {
    if (skipped_[static_cast<size_t>(step % kSlots)]) --count;
  }
  return count;
}

}  // namespace dt::training
