// SPDX-License-Identifier: Apache-2.0
// The average after a sum, in one flat buffer.
#include "kernels/cuda/elements.cuh"

namespace dt::kernels {
namespace {

template <class T, class Function>
__device__ void transform_flat(T* data, int64_t count, Function function) {
  for (int64_t begin = static_cast<int64_t>(blockIdx.x) * kChunkElements; begin < count;
       begin += static_cast<int64_t>(gridDim.x) * kChunkElements) {
    const int64_t here = min(static_cast<int64_t>(kChunkElements), count - begin);
    transform(data + begin, data + begin, static_cast<int>(here), function);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    multiply(T* data, int64_t count, Accumulator<T> factor) {
  transform_flat(data, count,
                 [factor](T value) { return cast<T>(cast<Accumulator<T>>(value) * factor); });
}

/// Wide holds T and every divisor, so that nothing overflows.
template <class T, class Wide>
__global__ void __launch_bounds__(kThreads) divide(T* data, int64_t count, Wide divisor) {
  transform_flat(data, count,
                 [divisor](T value) { return static_cast<T>(static_cast<Wide>(value) / divisor); });
}

unsigned blocks_of(const Launch& launch, int64_t count) {
  return blocks_for((count - 1) / kChunkElements + 1, launch.multiprocessors);
}

template <class T, class Wide>
cudaError_t launch_integers(const Launch& launch, void* data, int64_t count, int32_t divisor) {
  divide<T, Wide><<<blocks_of(launch, count), kThreads, 0, launch.stream>>>(
      static_cast<T*>(data), count, static_cast<Wide>(divisor));
  return cudaGetLastError();
}

}  // namespace

cudaError_t load_divide() {
  for (const cudaError_t error :
       {load(divide<int8_t, int32_t>), load(divide<uint8_t, uint32_t>),
        load(divide<int32_t, int32_t>), load(divide<uint32_t, uint32_t>),
        load(divide<int64_t, int64_t>), load(divide<uint64_t, uint64_t>)}) {
    if (error != cudaSuccess) return error;
  }
  return with_each_float_type([&]<class T>() { return load(multiply<T>); });
}

cudaError_t launch_divide(const Launch& launch, void* data, Dtype dtype, int64_t count,
                          int32_t divisor) {
  switch (dtype) {
    case Dtype::kI8: return launch_integers<int8_t, int32_t>(launch, data, count, divisor);
    case Dtype::kU8: return launch_integers<uint8_t, uint32_t>(launch, data, count, divisor);
    case Dtype::kI32: return launch_integers<int32_t, int32_t>(launch, data, count, divisor);
    case Dtype::kU32: return launch_integers<uint32_t, uint32_t>(launch, data, count, divisor);
    case Dtype::kI64: return launch_integers<int64_t, int64_t>(launch, data, count, divisor);
    case Dtype::kU64: return launch_integers<uint64_t, uint64_t>(launch, data, count, divisor);
    default: break;
  }
  return launch_multiply(launch, data, dtype, count, 1.0 / divisor);
}

cudaError_t launch_multiply(const Launch& launch, void* data, Dtype dtype, int64_t count,
                            double factor) {
  return with_float_type(dtype, [&]<class T>() {
    multiply<T><<<blocks_of(launch, count), kThreads, 0, launch.stream>>>(
        static_cast<T*>(data), count, static_cast<Accumulator<T>>(factor));
    return cudaGetLastError();
  });
}

}  // namespace dt::kernels
