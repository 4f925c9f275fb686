// SPDX-License-Identifier: Apache-2.0
// What all kernels on chunks share: dtypes, wide accesses, the loop over chunks.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/launch.h"

namespace dt::kernels {

inline constexpr int kThreads = 256;  // of a block; 8 blocks fill a multiprocessor
/// Accesses of 16 bytes that a thread has under way at once.
inline constexpr int kBatch = 4;
/// Blocks for each multiprocessor: many times what it holds, so that a fast one takes more of them.
/// What is left over, the blocks do in turns.
inline constexpr int64_t kBlocksPerMultiprocessor = 64;

inline unsigned blocks_for(int64_t chunks, int32_t multiprocessors) {
  return static_cast<unsigned>(
      std::min(chunks, kBlocksPerMultiprocessor * std::max(multiprocessors, 1)));
}

template <class A, class B = A>
using Accumulator =
    std::conditional_t<std::is_same_v<A, double> || std::is_same_v<B, double>, double, float>;

template <class To, class From>
__device__ To cast(From value) {
  if constexpr (std::is_same_v<From, __half>) {
    return static_cast<To>(__half2float(value));
  } else if constexpr (std::is_same_v<From, __nv_bfloat16>) {
    return static_cast<To>(__bfloat162float(value));
  } else if constexpr (std::is_same_v<To, __half>) {
    if constexpr (std::is_same_v<From, double>) {
      return __double2half(value);
    } else {
      return __float2half_rn(value);
    }
  } else if constexpr (std::is_same_v<To, __nv_bfloat16>) {
    if constexpr (std::is_same_v<From, double>) {
      return __double2bfloat16(value);
    } else {
      return __float2bfloat16_rn(value);
    }
  } else {
    return static_cast<To>(value);
  }
}

/// `kWidth` neighbours that one instruction loads or stores.
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T values[kWidth];
};

/// Elements of an access: 16 bytes of the larger dtype.
template <class A, class B = A>
inline constexpr int kPackElements = 16 / static_cast<int>(std::max(sizeof(A), sizeof(B)));

/// How many elements `pointer` lies behind a whole pack.
template <class T, int kWidth>
__device__ int misplaced(const T* pointer) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(pointer) / sizeof(T) % kWidth);
}

/// to[i] = function(from[i]) for i in [0, count), by all threads of the block. `to` may equal
/// `from`.
template <class From, class To, class Function>
__device__ void transform(const From* from, To* to, int count, Function function) {
  constexpr int kWidth = kPackElements<From, To>;
  const int thread = static_cast<int>(threadIdx.x);
  const int behind = misplaced<From, kWidth>(from);
  if (behind != misplaced<To, kWidth>(to)) {  // no pack fits both
#pragma unroll 4
    for (int i = thread; i < count; i += kThreads) to[i] = function(from[i]);
    return;
  }
  const int head = min(count, (kWidth - behind) % kWidth);
  const int packs = (count - head) / kWidth;
  if (thread < head) to[thread] = function(from[thread]);
  const int tail = head + packs * kWidth + thread;
  if (tail < count) to[tail] = function(from[tail]);

  const auto* in = reinterpret_cast<const Pack<From, kWidth>*>(from + head);
  auto* out = reinterpret_cast<Pack<To, kWidth>*>(to + head);
  for (int begin = thread; begin < packs; begin += kThreads * kBatch) {
    Pack<From, kWidth> loaded[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (begin + b * kThreads < packs) loaded[b] = in[begin + b * kThreads];
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      Pack<To, kWidth> stored;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) stored.values[i] = function(loaded[b].values[i]);
      if (begin + b * kThreads < packs) out[begin + b * kThreads] = stored;
    }
  }
}

/// function(from[i]) for i in [0, count), by all threads of the block. Which thread calls it for
/// which elements, and in which order, depends on `count` alone: ranks whose gradients lie at other
/// addresses get the same bits.
template <class From, class Function>
__device__ void for_each(const From* from, int count, Function function) {
  constexpr int kWidth = kPackElements<From>;
  const int thread = static_cast<int>(threadIdx.x);
  const int packs = count / kWidth;
  const int tail = packs * kWidth + thread;
  if (tail < count) function(from[tail]);
  if (misplaced<From, kWidth>(from) != 0) {
    for (int pack = thread; pack < packs; pack += kThreads) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) function(from[pack * kWidth + i]);
    }
    return;
  }
  const auto* in = reinterpret_cast<const Pack<From, kWidth>*>(from);
  for (int begin = thread; begin < packs; begin += kThreads * kBatch) {
    Pack<From, kWidth> loaded[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (begin + b * kThreads < packs) loaded[b] = in[begin + b * kThreads];
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (begin + b * kThreads >= packs) continue;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) function(loaded[b].values[i]);
    }
  }
}

/// One part of one tensor.
struct Chunk {
  void* data;      ///< of the tensor
  int64_t begin;   ///< element of the tensor
  int64_t offset;  ///< of the tensor in the flat buffer, elements
  int count;
};

__device__ inline Chunk chunk_at(const DeviceChunks& list, int64_t index) {
  const TensorRecord tensor = list.tensors[list.tensor_of_chunk[index]];
  // Of a pointer that it loads, the compiler does not know it, and would use slower instructions.
  __builtin_assume(__isGlobal(tensor.data));
  const int64_t begin = (index - tensor.first_chunk) * kChunkElements;
  const int64_t count = min(static_cast<int64_t>(kChunkElements), tensor.count - begin);
  return {tensor.data, begin, tensor.offset, static_cast<int>(count)};
}

inline constexpr Dtype kFloatDtypes[] = {Dtype::kF16, Dtype::kBf16, Dtype::kF32, Dtype::kF64};

template <class... Parameters>
cudaError_t load(void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
}

/// Calls function.template operator()<T>() with the type of a floating-point dtype.
template <class Function>
cudaError_t with_float_type(Dtype dtype, Function function) {
  switch (dtype) {
    case Dtype::kF16: return function.template operator()<__half>();
    case Dtype::kBf16: return function.template operator()<__nv_bfloat16>();
    case Dtype::kF32: return function.template operator()<float>();
    case Dtype::kF64: return function.template operator()<double>();
    default: return cudaErrorInvalidValue;
  }
}

/// The same with each type, until one fails.
template <class Function>
cudaError_t with_each_float_type(Function function) {
  for (const Dtype dtype : kFloatDtypes) {
    const cudaError_t error = with_float_type(dtype, function);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace dt::kernels
