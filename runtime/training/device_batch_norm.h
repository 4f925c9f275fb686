// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "comm/communicator.h"
#include "cuda/runtime.h"
#include "kernels/batch.h"
#include "training/stream_marks.h"

namespace dt::kernels {
class TensorKernels;
}

namespace dt::training {

/// Statistics of a batch that is spread over GPUs: as batch_norm.h has them, enqueued on the
/// caller's stream.
///
/// Calls share one block of memory for sums and rows; the stream of each waits for the end of the
/// call before. Where the block is too small a larger one is allocated. Blocks go with the
/// communicator, since the GPU may use them until then.
///
/// Threads: any; one call at a time.
class DeviceBatchNorm {
 public:
  /// The one of a communicator over GPUs. The first call makes it; it lives as long as `comm`.
  static std::shared_ptr<DeviceBatchNorm> of(comm::Communicator& comm);

  explicit DeviceBatchNorm(comm::Communicator& comm);
  DeviceBatchNorm(const DeviceBatchNorm&) = delete;
  DeviceBatchNorm& operator=(const DeviceBatchNorm&) = delete;

  /// Collective; all but `view.input` is written in the order of `stream`.
  Status moments(const kernels::BatchView& view, double* mean, double* variance, int64_t* count,
                 cuda::Stream stream);
  Status gradient_sums(const kernels::BatchView& view, const kernels::BatchScale& scale,
                       double* sum, double* product, cuda::Stream stream);

 private:
  struct Room {
    double* scratch = nullptr;
    double* row = nullptr;
    double* rows = nullptr;
  };
  /// Calls use(room), and records an event behind it.
  template <class Use>
  Status with_room(const char* call, int64_t channels, int64_t row, cuda::Stream stream, Use&& use);
  /// For rows of so many numbers. The stream is behind what used it before.
  Result<Room> take_room(int64_t channels, int64_t row, cuda::Stream stream);
  Status gather(const char* call, Dtype dtype, const Room& room, int64_t row, cuda::Stream stream);

  comm::Communicator& comm_;
  const std::shared_ptr<kernels::TensorKernels> kernels_;
  std::mutex mutex_;  // held by a call; what follows is guarded by it
  StreamMarks marks_;
  MarkPtr last_;  // the end of the call before; null: none
  double* block_ = nullptr;
  int64_t numbers_ = 0;  // that fit into it
};

}  // namespace dt::training
