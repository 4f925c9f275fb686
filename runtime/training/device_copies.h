// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "base/status.h"
#include "cuda/runtime.h"

namespace dt::training {

/// Copies between a GPU and host memory that are waited for: of checkpoints. In the order of a
/// stream of its own.
///
/// Threads: one at a time.
class DeviceCopies {
 public:
  static constexpr int64_t kBlockBytes = 4 << 20;  ///< that one copy may have

  static Result<std::unique_ptr<DeviceCopies>> create(std::shared_ptr<cuda::Runtime> runtime);
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  cuda::Stream stream() const { return stream_; }
  /// Memory of the host that copies fastest, of kBlockBytes.
  char* block() const { return block_; }
  /// Between the block and the GPU, either way; waits until it is there. TIMEOUT where the stream
  /// does not come to it.
  Status copy(void* to, const void* from, int64_t bytes);
  /// Waits for what the stream has.
  Status await();

 private:
  explicit DeviceCopies(std::shared_ptr<cuda::Runtime> runtime) : runtime_(std::move(runtime)) {}

  const std::shared_ptr<cuda::Runtime> runtime_;
  cuda::Stream stream_ = nullptr;
  cuda::Event passed_ = nullptr;
  char* block_ = nullptr;
  bool busy_ = false;  // the stream may still use the block
};

}  // namespace dt::training
