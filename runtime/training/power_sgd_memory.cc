// SPDX-License-Identifier: Apache-2.0
#include "training/power_sgd_memory.h"

#include <cstdlib>
#include <cstring>

#include "training/device_pipe.h"

namespace dt::training {

PowerSgdMemory::PowerSgdMemory(std::shared_ptr<comm::Communicator> comm)
    : comm_(std::move(comm)),
      runtime_(comm_->backend().device()),
      marks_(runtime_ != nullptr ? std::make_unique<StreamMarks>(runtime_) : nullptr) {}

Result<std::unique_ptr<PowerSgdMemory>> PowerSgdMemory::create(
    std::shared_ptr<comm::Communicator> comm, int64_t count) {
  std::unique_ptr<PowerSgdMemory> made(new PowerSgdMemory(std::move(comm)));
  if (count == 0) return made;
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  if (!made->is_on_host()) {
    DT_TRY_VALUE(void* const memory, made->comm_->backend().allocate(bytes));
    made->data_ = static_cast<float*>(memory);
    return made;
  }
  // Not of the backend, which may have little shared memory. calloc leaves pages that no step has
  // written to the system.
  made->data_ = static_cast<float*>(std::calloc(static_cast<size_t>(count), sizeof(float)));
  if (made->data_ != nullptr) return made;
  return Status(Code::kOutOfMemory, format("no memory for the %lld bytes that PowerSGD works on",
                                           static_cast<long long>(bytes)));
}

PowerSgdMemory::~PowerSgdMemory() {
  if (is_on_host()) {
    std::free(data_);
    return;
  }
  if (in_use_ != 0) return;  // a step failed, and the GPU may still use it
  if (used_ != nullptr) {
    const Deadline deadline = Deadline::after_ms(kLastStepMs);
    if (!await_event(*comm_, used_->event(), deadline, /*broken_too=*/true).ok()) return;
  }
  (void)comm_->backend().release(data_);
}

Status PowerSgdMemory::copy(float* to, const float* from, int64_t count, cuda::Stream stream) {
  if (count == 0) return {};
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  if (!is_on_host()) return runtime_->copy(to, from, bytes, stream);
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return {};
}

Status PowerSgdMemory::end_use(cuda::Stream stream) {
  if (!is_on_host()) {
    DT_TRY_VALUE(used_, marks_->set(stream));
  }
  --in_use_;
  return {};
}

Status PowerSgdMemory::read(float* to, int64_t count) const {
  return transfer(to, count, /*up=*/false);
}

Status PowerSgdMemory::write(float* from, int64_t count) {
  return transfer(from, count, /*up=*/true);
}

Status PowerSgdMemory::transfer(float* host, int64_t count, bool up) const {
  if (count == 0) return {};
  const auto bytes = count * static_cast<int64_t>(sizeof(float));
  if (is_on_host()) {
    std::memcpy(up ? data_ : host, up ? host : data_, static_cast<size_t>(bytes));
    return {};
  }
  DT_TRY_VALUE(const std::unique_ptr<DevicePipe> pipe, DevicePipe::create(comm_));
  if (used_ != nullptr) DT_TRY(marks_->wait(pipe->stream(), *used_));
  const DevicePipe::Mirror all{data_, host, bytes};
  return pipe->transfer({&all, 1}, up);
}

}  // namespace dt::training
