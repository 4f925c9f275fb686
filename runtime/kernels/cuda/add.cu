// SPDX-License-Identifier: Apache-2.0
// The sum of two flat buffers.
#include "kernels/cuda/elements.cuh"

namespace dt::kernels {
namespace {

template <class T>
__device__ T sum(T left, T right) {
  if constexpr (std::is_integral_v<T>) {
    using Bits = std::make_unsigned_t<T>;  // wraps
    return static_cast<T>(static_cast<Bits>(left) + static_cast<Bits>(right));
  } else {
    return cast<T>(cast<Accumulator<T>>(left) + cast<Accumulator<T>>(right));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) add(T* data, const T* from, int64_t count) {
  constexpr int kWidth = kPackElements<T>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const int behind = misplaced<T, kWidth>(data);
  if (behind != misplaced<T, kWidth>(from)) {  // no pack fits both
    for (int64_t i = first; i < count; i += stride) data[i] = sum(data[i], from[i]);
    return;
  }
  const int64_t head = min(count, static_cast<int64_t>((kWidth - behind) % kWidth));
  const int64_t packs = (count - head) / kWidth;
  const int64_t tail = head + packs * kWidth;
  if (first < head) data[first] = sum(data[first], from[first]);
  if (tail + first < count) data[tail + first] = sum(data[tail + first], from[tail + first]);
  auto* const to = reinterpret_cast<Pack<T, kWidth>*>(data + head);
  const auto* const in = reinterpret_cast<const Pack<T, kWidth>*>(from + head);
  for (int64_t i = first; i < packs; i += stride) {
    Pack<T, kWidth> both = to[i];
    const Pack<T, kWidth> other = in[i];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) both.values[e] = sum(both.values[e], other.values[e]);
    to[i] = both;
  }
}

/// Calls function.template operator()<T>() with the type of a dtype that kernels know.
template <class Function>
cudaError_t with_type(Dtype dtype, Function function) {
  switch (dtype) {
    case Dtype::kI8: return function.template operator()<int8_t>();
    case Dtype::kU8: return function.template operator()<uint8_t>();
    case Dtype::kI32: return function.template operator()<int32_t>();
    case Dtype::kU32: return function.template operator()<uint32_t>();
    case Dtype::kI64: return function.template operator()<int64_t>();
    case Dtype::kU64: return function.template operator()<uint64_t>();
    default: return with_float_type(dtype, function);
  }
}

}  // namespace

cudaError_t load_add() {
  for (const Dtype dtype :
       {Dtype::kI8, Dtype::kU8, Dtype::kI32, Dtype::kU32, Dtype::kI64, Dtype::kU64}) {
    const cudaError_t error = with_type(dtype, [&]<class T>() { return load(add<T>); });
    if (error != cudaSuccess) return error;
  }
  return with_each_float_type([&]<class T>() { return load(add<T>); });
}

cudaError_t launch_add(const Launch& launch, void* data, const void* from, Dtype dtype,
                       int64_t count) {
  return with_type(dtype, [&]<class T>() {
    const int64_t chunks = (count - 1) / kChunkElements + 1;
    add<<<blocks_for(chunks, launch.multiprocessors), kThreads, 0, launch.stream>>>(
        static_cast<T*>(data), static_cast<const T*>(from), count);
    return cudaGetLastError();
  });
}

}  // namespace dt::kernels
