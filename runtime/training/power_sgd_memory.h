// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "comm/communicator.h"
#include "training/stream_marks.h"

namespace dt::training {

/// Numbers of f32 that PowerSGD works on, on the host or on the communicator's GPU. On a GPU they
/// stay with the communicator if the GPU still uses them when this is destroyed.
///
/// Threads: one call at a time.
class PowerSgdMemory {
 public:
  /// All are zero.
  static Result<std::unique_ptr<PowerSgdMemory>> create(std::shared_ptr<comm::Communicator> comm,
                                                        int64_t count);
  ~PowerSgdMemory();
  PowerSgdMemory(const PowerSgdMemory&) = delete;
  PowerSgdMemory& operator=(const PowerSgdMemory&) = delete;

  /// Null: there are none.
  float* data() const { return data_; }
  bool is_on_host() const { return runtime_ == nullptr; }
  /// Also from and to gradients.
  Status copy(float* to, const float* from, int64_t count, cuda::Stream stream);
  /// In pairs. Work that uses the memory is enqueued between the two.
  void begin_use() { ++in_use_; }
  Status end_use(cuda::Stream stream);

  /// Between steps, from and to memory of the host: the first `count`. Waits for the GPU, for the
  /// communicator's time-out.
  Status read(float* to, int64_t count) const;
  Status write(float* from, int64_t count);

 private:
  explicit PowerSgdMemory(std::shared_ptr<comm::Communicator> comm);
  Status transfer(float* host, int64_t count, bool up) const;

  const std::shared_ptr<comm::Communicator> comm_;
  const std::shared_ptr<cuda::Runtime> runtime_;  // null: host memory
  const std::unique_ptr<StreamMarks> marks_;      // likewise
  float* data_ = nullptr;
  int32_t in_use_ = 0;
  MarkPtr used_;  // on a GPU, behind the last use; null: there was none
};

}  // namespace dt::training
