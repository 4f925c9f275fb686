// SPDX-License-Identifier: Apache-2.0
#include "training/device_copies.h"

#include <sched.h>

#include "base/wait.h"

namespace dt::training {
namespace {

constexpr int64_t kLimitMs = 60'000;  // what a GPU was given before ends sooner, or hangs

}  // namespace

Result<std::unique_ptr<DeviceCopies>> DeviceCopies::create(std::shared_ptr<cuda::Runtime> runtime) {
  std::unique_ptr<DeviceCopies> made(new DeviceCopies(std::move(runtime)));
  DT_TRY_VALUE(made->stream_, made->runtime_->create_stream(cuda::StreamPriority::kNormal));
  DT_TRY_VALUE(made->passed_, made->runtime_->create_event(/*timed=*/false));
  DT_TRY_VALUE(void* const block, made->runtime_->allocate_pinned(kBlockBytes));
  made->block_ = static_cast<char*>(block);
  return made;
}

DeviceCopies::~DeviceCopies() {
  if (busy_) return;  // for ever, maybe: what it uses stays
  if (block_ != nullptr) (void)runtime_->release_pinned(block_);
  if (passed_ != nullptr) (void)runtime_->destroy_event(passed_);
  if (stream_ != nullptr) (void)runtime_->destroy_stream(stream_);
}

Status DeviceCopies::copy(void* to, const void* from, int64_t bytes) {
  DT_TRY(runtime_->copy(to, from, bytes, stream_));
  return await();
}

Status DeviceCopies::await() {
  busy_ = true;
  DT_TRY(runtime_->record(passed_, stream_));
  const Deadline deadline = Deadline::after_ms(kLimitMs);
  for (;;) {
    DT_TRY_VALUE(const bool passed, runtime_->passed(passed_));
    if (passed) break;
    if (deadline.passed()) {
      return Status(
          Code::kTimeout,
          format("%s is still busy after %lld s with what was enqueued before",
                 runtime_->device().name.c_str(), static_cast<long long>(kLimitMs / 1000)));
    }
    sched_yield();
  }
  busy_ = false;
  return {};
}

}  // namespace dt::training
