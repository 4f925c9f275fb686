// SPDX-License-Identifier: Apache-2.0
// Tensors into a flat buffer and back, and a flat buffer into another.
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

template <class From, class To>
__global__ void __launch_bounds__(kThreads) cast_all(const From* from, To* to, int64_t count) {
  for (int64_t begin = static_cast<int64_t>(blockIdx.x) * kChunkElements; begin < count;
       begin += static_cast<int64_t>(gridDim.x) * kChunkElements) {
    const int64_t here = min(static_cast<int64_t>(kChunkElements), count - begin);
    transform(from + begin, to + begin, static_cast<int>(here),
              [](From value) { return cast<To>(cast<Accumulator<From, To>>(value)); });
  }
}

}  // namespace

cudaError_t load_copy() {
  return with_each_float_type([&]<class From>() {
    return with_each_float_type([&]<class To>() {
      for (const cudaError_t error :
           {load(copy<From, To, true, To>), load(copy<From, To, false, const From>),
            load(cast_all<From, To>)}) {
        if (error != cudaSuccess) return error;
      }
      return cudaSuccess;
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

cudaError_t launch_cast(const Launch& launch, const void* from, Dtype from_dtype, void* to,
                        Dtype to_dtype, int64_t count) {
  return with_float_type(from_dtype, [&]<class From>() {
    return with_float_type(to_dtype, [&]<class To>() {
      const int64_t chunks = (count - 1) / kChunkElements + 1;
      cast_all<<<blocks_for(chunks, launch.multiprocessors), kThreads, 0, launch.stream>>>(
          static_cast<const From*>(from), static_cast<To*>(to), count);
      return cudaGetLastError();
    });
  });
}

}  // namespace dt::kernels
