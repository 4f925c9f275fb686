// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/runtime.h"
#include "kernels/cuda/tensors.h"

namespace dt::test {

/// Of a call without which nothing else makes sense: ends the program.
inline void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}
template <class T>
T must(Result<T> result) {
  must(result.status());
  return std::move(result).value();
}

using Bytes = std::vector<unsigned char>;

/// GPU 0 with a stream.
class Gpu {
 public:
  Gpu()
      : runtime(must(cuda::open_device(0))),
        kernels(must(kernels::cuda_tensor_kernels(runtime))),
        stream(must(runtime->create_stream(cuda::StreamPriority::kNormal))),
        end_(must(runtime->create_event(false))) {}

  /// Waits until the stream has done all that it was given.
  void finish() {
    must(runtime->record(end_, stream));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!must(runtime->passed(end_))) {
      if (std::chrono::steady_clock::now() > deadline) {
        must(Status(Code::kTimeout, "the GPU does not finish within a minute"));
      }
      std::this_thread::yield();
    }
  }

  const std::shared_ptr<cuda::Runtime> runtime;
  const std::shared_ptr<kernels::TensorKernels> kernels;
  const cuda::Stream stream;

 private:
  const cuda::Event end_;
};

/// Memory on the GPU.
class DeviceBytes {
 public:
  DeviceBytes(Gpu* gpu, size_t size)
      : gpu_(gpu), size_(size), data_(must(gpu->runtime->allocate(static_cast<int64_t>(size)))) {}
  DeviceBytes(Gpu* gpu, const Bytes& content) : DeviceBytes(gpu, content.size()) { write(content); }
  ~DeviceBytes() { must(gpu_->runtime->release(data_)); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  void write(const Bytes& content) {
    must(gpu_->runtime->copy(data_, content.data(), static_cast<int64_t>(content.size()),
                             gpu_->stream));
    gpu_->finish();
  }
  Bytes read() const {
    Bytes content(size_);
    must(gpu_->runtime->copy(content.data(), data_, static_cast<int64_t>(size_), gpu_->stream));
    gpu_->finish();
    return content;
  }
  /// The address `bytes` behind the start.
  void* at(int64_t bytes = 0) const { return static_cast<unsigned char*>(data_) + bytes; }

 private:
  Gpu* const gpu_;
  const size_t size_;
  void* const data_;
};

}  // namespace dt::test
