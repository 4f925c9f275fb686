// SPDX-License-Identifier: Apache-2.0
// Compiled while meson configures: does this toolkit, with this C++ compiler, do what dt needs?
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <concepts>

static_assert(CUDART_VERSION >= 12050, "dt needs CUDA 12.5 or newer");  // entry points by version

template <std::floating_point T>
__global__ void probe(T* to) {
  to[threadIdx.x] *= 2;
}

cudaError_t launch_probe(float* to) {
  probe<<<1, 32>>>(to);
  return cudaGetLastError();
}
