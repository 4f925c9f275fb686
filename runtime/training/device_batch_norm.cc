// SPDX-License-Identifier: Apache-2.0
#include "training/device_batch_norm.h"

#include <algorithm>
#include <string>

#include "kernels/cuda/tensors.h"

namespace dt::training {
namespace {

constexpr int64_t kChannels = 4096;  // room for as many from the first call on

}  // namespace

DeviceBatchNorm::DeviceBatchNorm(std::shared_ptr<comm::Communicator> comm)
    : comm_(std::move(comm)),
      kernels_(comm_->backend().kernels()),
      marks_(comm_->backend().device()),
      slabs_(comm_) {}

DeviceBatchNorm::~DeviceBatchNorm() {
  const Deadline deadline = Deadline::after_ms(kLastStepMs);
  if (last_ == nullptr || await_event(*comm_, last_->event(), deadline, /*broken_too=*/true).ok()) {
    slabs_.give(block_);
  }
}

template <class Use>
Status DeviceBatchNorm::with_room(const char* call, int64_t channels, int64_t row,
                                  cuda::Stream stream, Use&& use) {
  DT_TRY(comm_->check_ungrouped(call));
  DT_TRY_VALUE(const bool capturing, comm_->backend().device()->is_capturing(stream));
  if (capturing) {
    return Status(
        Code::kInvalidArgument,
        format("%s on comm \"%s\": the stream records a CUDA graph, and dt cannot be part "
               "of one; end the capture before, or give another stream",
               call, comm_->name().c_str()));
  }
  std::lock_guard lock(mutex_);
  DT_TRY_VALUE(const Room room, take_room(channels, row, stream));
  const Status used = std::forward<Use>(use)(room);
  // Also of what failed on its way: some of it may run.
  auto mark = marks_.set(stream);
  if (!mark.ok()) {
    bytes_ = 0;  // nobody knows when the room is free
    last_ = nullptr;
    block_ = nullptr;
    return used.ok() ? mark.status() : used;
  }
  last_ = std::move(mark.value());
  return used;
}

Result<DeviceBatchNorm::Room> DeviceBatchNorm::take_room(int64_t channels, int64_t row,
                                                         cuda::Stream stream) {
  const int64_t scratch = kernels::batch_scratch(channels);
  const int64_t ranks = comm_->size();
  const int64_t bytes = (scratch + row * (1 + ranks)) * static_cast<int64_t>(sizeof(double));
  if (bytes > bytes_) {
    const int64_t least =
        (kernels::batch_scratch(1) + kernels::moments_row(kChannels) * (1 + ranks)) *
        static_cast<int64_t>(sizeof(double));
    const int64_t wanted = std::max(bytes, least);
    DT_TRY_VALUE(block_, slabs_.take(wanted));
    bytes_ = wanted;
  } else if (last_ != nullptr) {
    DT_TRY(marks_.wait(stream, *last_));
  }
  Room room;
  room.scratch = reinterpret_cast<double*>(block_);
  room.row = room.scratch + scratch;
  room.rows = room.row + row;
  return room;
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
  return comm_->run(collective).within(call);
}

Status DeviceBatchNorm::moments(const kernels::BatchView& view, double* mean, double* variance,
                                int64_t* count, cuda::Stream stream) {
  const char* const call = "dt_batch_moments";
  const int64_t row = kernels::moments_row(view.channels);
  return with_room(call, view.channels, row, stream, [&](const Room& room) -> Status {
    DT_TRY(kernels_->batch_moments(view, room.scratch, room.row, stream));
    DT_TRY(gather(call, view.dtype, room, row, stream));
    return kernels_->merge_moments(room.rows, comm_->size(), view.channels, mean, variance, count,
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
    return kernels_->merge_gradient_sums(room.rows, comm_->size(), view.channels, sum, product,
                                         stream);
  });
}

}  // namespace dt::training
