// SPDX-License-Identifier: Apache-2.0
// Tensors into a flat buffer and back.
#include "kernels/cuda/elements.cuh"

namespace dt::kernels {
namespace {

template <class From, class To, bool kGather, class Flat>
__global__ void __launch_bounds__(kThreads) copy(DeviceChunks list, Flat* flat, float scale) {
  const auto factor = static_cast<Accumulator<From, To>>(scale);
  const auto scaled = [factor](From value) {
    return cast<To>(cast<Accumulator<From, To>>(value) * factor);
  };
  for (int64_t index = blockIdx.x; index < list.chunks; index += gridDim.x) {
    const Chunk chunk = chunk_at(list, index);
    Flat* part = flat + chunk.offset + chunk.begin;
    if constexpr (kGather) {
      transform(static_cast<const From*>(chunk.data) + chunk.begin, part, chunk.count, scaled);
    } else {
      transform(part, static_cast<To*>(chunk.data) + chunk.begin, chunk.count, scaled);
    }
  }
}

}  // namespace

cudaError_t load_copy() {
  return with_each_float_type([&]<class From>() {
    return with_each_float_type([&]<class To>() {
      const cudaError_t error = load(copy<From, To, true, To>);
      return error != cudaSuccess ? error : load(copy<From, To, false, const From>);
    });
  });
}

cudaError_t launch_gather(const Launch& launch, Dtype from, void* flat, Dtype to, float scale) {
  return with_float_type(from, [&]<class From>() {
    return with_float_type(to, [&]<class To>() {
      copy<From, To, true>
          <<<blocks_for(launch.list.chunks, launch.multiprocessors), kThreads, 0, launch.stream>>>(
              launch.list, static_cast<To*>(flat), scale);
      return cudaGetLastError();
    });
  });
}

cudaError_t launch_scatter(const Launch& launch, Dtype to, const void* flat, Dtype from,
                           float scale) {
  return with_float_type(from, [&]<class From>() {
    return with_float_type(to, [&]<class To>() {
      copy<From, To, false>
          <<<blocks_for(launch.list.chunks, launch.multiprocessors), kThreads, 0, launch.stream>>>(
              launch.list, static_cast<const From*>(flat), scale);
      return cudaGetLastError();
    });
  });
}

}  // namespace dt::kernels
