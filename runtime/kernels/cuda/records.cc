// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/records.h"

#include "cuda/device_scope.h"
#include "cuda/failure.h"

namespace dt::kernels {
namespace {

/// Waits until it is there: streams of others do not wait for each other.
cudaError_t write(std::span<const std::byte> records, std::span<const int32_t> tensor_of_chunk,
                  void* memory, cudaStream_t stream) {
  cudaError_t error =
      cudaMemcpyAsync(memory, records.data(), records.size(), cudaMemcpyHostToDevice, stream);
  if (error != cudaSuccess) return error;
  error = cudaMemcpyAsync(static_cast<std::byte*>(memory) + records.size(), tensor_of_chunk.data(),
                          tensor_of_chunk.size_bytes(), cudaMemcpyHostToDevice, stream);
  const cudaError_t end = cudaStreamSynchronize(stream);
  return error != cudaSuccess ? error : end;
}

}  // namespace

Status checked(const char* call, int32_t device, cudaError_t error) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // the host program must not find it
  return cuda::failed({call, device, static_cast<int32_t>(error), cudaGetErrorName(error),
                       cudaGetErrorString(error)});
}

Result<DeviceRecords> DeviceRecords::upload(std::shared_ptr<cuda::Runtime> runtime,
                                            std::span<const std::byte> records,
                                            std::span<const int32_t> tensor_of_chunk,
                                            size_t scratch_bytes) {
  // Scratch memory begins at a multiple of 8 bytes, as the records do.
  const size_t index_bytes = (tensor_of_chunk.size_bytes() + 7) / 8 * 8;
  const size_t total = records.size() + index_bytes + scratch_bytes;
  DT_TRY_VALUE(void* memory, runtime->allocate(static_cast<int64_t>(total)));
  DeviceRecords made(runtime, memory, records.size(), index_bytes);
  if (memory == nullptr) return made;
  DT_TRY_VALUE(const cuda::Stream stream, runtime->create_stream(cuda::StreamPriority::kNormal));
  const int32_t device = runtime->device().index;
  const cuda::DeviceScope scope(device);
  const Status written =
      scope.status().ok()
          ? checked("cudaMemcpyAsync", device,
                    write(records, tensor_of_chunk, memory, reinterpret_cast<cudaStream_t>(stream)))
          : scope.status();
  const Status destroyed = runtime->destroy_stream(stream);
  DT_TRY(written);
  DT_TRY(destroyed);
  return made;
}

DeviceRecords::~DeviceRecords() {
  if (memory_ != nullptr) static_cast<void>(runtime_->release(memory_));
}

}  // namespace dt::kernels
