// SPDX-License-Identifier: Apache-2.0
#include "training/device_batch_norm.h"

#include <algorithm>
#include <string>

#include "kernels/cuda/tensors.h"
#include "training/device_step.h"

namespace dt::training {
namespace {

constexpr int64_t kChannels = 1024;  // room for as many from the first call on

}  // namespace

std::shared_ptr<DeviceBatchNorm> DeviceBatchNorm::of(comm::Communicator& comm) {
  return comm.attached<DeviceBatchNorm>();
}

DeviceBatchNorm::DeviceBatchNorm(comm::Communicator& comm)
    : comm_(comm), kernels_(comm.backend().kernels()), marks_(comm.backend().device()) {}

template <class Use>
Status DeviceBatchNorm::with_room(const char* call, int64_t channels, int64_t row,
                                  cuda::Stream stream, Use&& use) {
  DT_TRY(comm_.check_ungrouped(call));
  const Result<bool> capturing = comm_.backend().device()->is_capturing(stream);
  if (capturing.ok() && capturing.value()) {
    return DeviceStep::capture_refused(format("%s on comm \"%s\"", call, comm_.name().c_str()));
  }
  std::lock_guard lock(mutex_);
  DT_TRY(comm_.broken());  // else each further call would take a block
  const Result<Room> room =
      capturing.ok() ? take_room(channels, row, stream) : Result<Room>(capturing.status());
  Status status = room.ok() ? std::forward<Use>(use)(room.value()) : room.status();
  if (status.ok()) {
    auto mark = marks_.set(stream);
    if (mark.ok()) last_ = std::move(mark.value());
    status = mark.status();
  }
  if (status.ok()) return {};
  numbers_ = 0;  // the GPU may still use the block, and the stream does not say until when
  if (comm_.broken().ok()) comm_.backend().fail(status.within(call));  // the other ranks wait
  return status;
}

Result<DeviceBatchNorm::Room> DeviceBatchNorm::take_room(int64_t channels, int64_t row,
                                                         cuda::Stream stream) {
  const auto numbers_of = [ranks = int64_t{comm_.size()}](int64_t scratch, int64_t numbers) {
    return scratch + numbers * (1 + ranks);
  };
  const int64_t scratch = kernels::batch_scratch(channels);
  const int64_t needed = numbers_of(scratch, row);
  if (needed > numbers_) {
    const int64_t numbers =
        std::max(needed, numbers_of(kernels::batch_scratch(1), kernels::moments_row(kChannels)));
    const auto gpu = comm_.backend().device();
    DT_TRY_VALUE(void* const block, gpu->allocate(numbers * static_cast<int64_t>(sizeof(double))));
    comm_.backend().keep(std::shared_ptr<void>(
        block, [gpu](void* memory) { static_cast<void>(gpu->release(memory)); }));
    block_ = static_cast<double*>(block);
    numbers_ = numbers;
  } else if (last_ != nullptr) {
    // Also if the handle is the same: each thread has a default stream of its own under one.
    DT_TRY(marks_.wait(stream, *last_));
  }
  return Room{block_, block_ + scratch, block_ + scratch + row};
}

/// The name of the operation says what ranks must agree on.
Status DeviceBatchNorm::gather(const char* call, Dtype dtype, const Room& room, int64_t row,
                               cuda::Stream stream) {
  backend::Collective collective;
  collective.kind = backend::Kind::kAllgather;
  collective.dtype = Dtype::kF64;
  collective.send = room.row;
  collective.recv = room.rows;
  collective.count = row;
  collective.stream = stream;
  collective.name = std::string(call) + " of " + dtype_name(dtype);
  return comm_.run(collective).within(call);
}

Status DeviceBatchNorm::moments(const kernels::BatchView& view, double* mean, double* variance,
                                int64_t* count, cuda::Stream stream) {
  const char* const call = "dt_batch_moments";
  const int64_t row = kernels::moments_row(view.channels);
  return with_room(call, view.channels, row, stream, [&](const Room& room) -> Status {
    DT_TRY(kernels_->batch_moments(view, room.scratch, room.row, stream));
    DT_TRY(gather(call, view.dtype, room, row, stream));
    return kernels_->merge_moments(room.rows, comm_.size(), view.channels, mean, variance, count,
                                   stream);
  });
}

Status DeviceBatchNorm::gradient_sums(const kernels::BatchView& view,
                                      const kernels::BatchScale& scale, double* sum,
                                      double* product, cuda::Stream stream) {
  const char* const call = "dt_batch_gradient_sums";
  const int64_t row = kernels::gradient_row(view.channels);
  return with_room(call, view.channels, row, stream, [&](const Room& room) -> Status {
    DT_TRY(kernels_->batch_gradient_sums(view, scale, room.scratch, room.row, stream));
    DT_TRY(gather(call, view.dtype, room, row, stream));
    return kernels_->merge_gradient_sums(room.rows, comm_.size(), view.channels, sum, product,
                                         stream);
  });
}

}  // namespace dt::training
