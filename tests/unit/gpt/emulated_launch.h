// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs CUDA kernels on this processor, block after block. The threads of a block are coroutines
// that take turns at each __syncthreads(), so a kernel that forgets one computes something else
// here too.

#define GPT_LAUNCH_CUH  // in place of the example's launch.cuh

#include <cuda_runtime.h>

#include <functional>

#undef __global__
#undef __shared__
#define __global__
#define __shared__ static

namespace gpt::kernels {

struct Index {
  unsigned x = 0, y = 0;
};
extern Index threadIdx, blockIdx, blockDim;
void __syncthreads();

// Small, for speed; each loop over a block's threads still has several turns.
constexpr int kBlock = 4;
constexpr int kTileRows = 2;
constexpr int kTileColumns = 3;

void run_blocks(dim3 blocks, dim3 threads, const std::function<void()>& body);

template <class... Parameters, class... Arguments>
void launch(dim3 blocks, dim3 threads, cudaStream_t, void (*kernel)(Parameters...),
            Arguments... arguments) {
  run_blocks(blocks, threads, [=] { kernel(arguments...); });
}

}  // namespace gpt::kernels
