// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/status.h"
#include "cuda/runtime.h"

namespace dt::kernels {

/// The error of a CUDA call on a device as a Status that names both.
Status checked(const char* call, int32_t device, cudaError_t error);

/// The plan of a list in one piece of device memory: its records, the tensor of each chunk, and
/// scratch memory. To be destroyed when no kernel reads it any more.
class DeviceRecords {
 public:
  /// May synchronise: the memory is written when it returns.
  static Result<DeviceRecords> upload(std::shared_ptr<cuda::Runtime> runtime,
                                      std::span<const std::byte> records,
                                      std::span<const int32_t> tensor_of_chunk,
                                      size_t scratch_bytes);
  ~DeviceRecords();
  DeviceRecords(DeviceRecords&& other) noexcept
      : runtime_(std::move(other.runtime_)),
        memory_(std::exchange(other.memory_, nullptr)),
        record_bytes_(other.record_bytes_),
        index_bytes_(other.index_bytes_) {}
  DeviceRecords& operator=(DeviceRecords&&) = delete;

  // All null for an empty list.
  const void* records() const { return memory_; }
  const int32_t* tensor_of_chunk() const { return static_cast<const int32_t*>(at(record_bytes_)); }
  void* scratch() const { return at(record_bytes_ + index_bytes_); }

 private:
  DeviceRecords(std::shared_ptr<cuda::Runtime> runtime, void* memory, size_t record_bytes,
                size_t index_bytes)
      : runtime_(std::move(runtime)),
        memory_(memory),
        record_bytes_(record_bytes),
        index_bytes_(index_bytes) {}
  void* at(size_t bytes) const {
    return memory_ == nullptr ? nullptr : static_cast<std::byte*>(memory_) + bytes;
  }

  std::shared_ptr<cuda::Runtime> runtime_;
  void* memory_;
  size_t record_bytes_;
  size_t index_bytes_;
};

}  // namespace dt::kernels
