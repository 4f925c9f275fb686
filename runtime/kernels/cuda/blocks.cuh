// SPDX-License-Identifier: Apache-2.0
// Sums and maxima over the threads of a block.
#pragma once

#include "kernels/cuda/elements.cuh"

namespace dt::kernels {

inline constexpr int kWarp = 32;

struct Plus {
  template <class T>
  __device__ T operator()(T left, T right) const {
    return left + right;
  }
};

struct Maximum {
  template <class T>
  __device__ T operator()(T left, T right) const {
    return max(left, right);
  }
};

/// Of all threads of the block, in a fixed order; valid in thread 0. All threads must call it. Zero
/// is an identity of Combine for all values.
template <int kBlockThreads, class Combine, class T>
__device__ T block_reduce(T value) {
  constexpr int kWarps = kBlockThreads / kWarp;
  __shared__ T of_warp[kWarps];
  const Combine combine;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = combine(value, __shfl_down_sync(0xffffffffU, value, static_cast<unsigned>(step)));
  }
  __syncthreads();  // of_warp may still be read for the call before
  if (lane == 0) of_warp[warp] = value;
  __syncthreads();
  if (warp != 0) return value;
  value = lane < kWarps ? of_warp[lane] : T(0);
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = combine(value, __shfl_down_sync(0xffffffffU, value, static_cast<unsigned>(step)));
  }
  return value;
}

}  // namespace dt::kernels
