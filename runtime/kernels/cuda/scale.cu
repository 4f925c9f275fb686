// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/elements.cuh"

namespace dt::kernels {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads)
    scale_chunks(DeviceChunks list, float scale, const float* device_scale) {
  if (device_scale != nullptr) scale *= *device_scale;
  if (scale == 1) return;
  const auto factor = static_cast<Accumulator<T>>(scale);
  for (int64_t index = blockIdx.x; index < list.chunks; index += gridDim.x) {
    const Chunk chunk = chunk_at(list, index);
    T* part = static_cast<T*>(chunk.data) + chunk.begin;
    transform(part, part, chunk.count,
              [factor](T value) { return cast<T>(cast<Accumulator<T>>(value) * factor); });
  }
}

}  // namespace

cudaError_t load_scale() {
  return with_each_float_type([&]<class T>() { return load(scale_chunks<T>); });
}

cudaError_t launch_scale(const Launch& launch, Dtype dtype, float scale,
                         const float* device_scale) {
  return with_float_type(dtype, [&]<class T>() {
    scale_chunks<T>
        <<<blocks_for(launch.list.chunks, launch.multiprocessors), kThreads, 0, launch.stream>>>(
            launch.list, scale, device_scale);
    return cudaGetLastError();
  });
}

}  // namespace dt::kernels
