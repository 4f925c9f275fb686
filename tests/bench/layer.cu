// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "layer.h"

namespace dt::test {
namespace {

constexpr int kThreads = 256;

/// Nanoseconds of the GPU's clock, which runs on while others have the GPU; in steps of some 32 ns
/// to 1 us (PTX ISA, %globaltimer).
__device__ int64_t globaltimer() {
  uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return static_cast<int64_t>(now);
}

/// Spins rather than sleeps: its multiprocessors are taken, as in a real layer.
__global__ void __launch_bounds__(kThreads) spend(Layer layer) {
  const int64_t end = globaltimer() + layer.duration_ns;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < layer.count;
       i += step) {
    layer.gradient[i] = layer.value;
  }
  while (globaltimer() < end) {
  }
}

}  // namespace

int32_t launch_layer(const Layer& layer, int32_t device, void* stream, int32_t blocks) {
  const cudaError_t error = cudaSetDevice(device);
  if (error != cudaSuccess) return error;
  spend<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(layer);
  return cudaGetLastError();
}

}  // namespace dt::test
