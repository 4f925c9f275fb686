// SPDX-License-Identifier: Apache-2.0
// Gradients in blocks of 8 bits: the arithmetic of kernels/host/error_feedback.cc and quantize.cc,
// bit for bit. A warp works on a block: lane i has the elements i and i + 32. The intrinsics round
// each result: nvcc would compile a * b + c to one instruction that rounds only once.
#include <cfloat>

#include "kernels/cuda/blocks.cuh"
#include "kernels/host/quantize.h"

namespace dt::kernels {
namespace {

constexpr int kBlock = static_cast<int>(kQuantBlock);
constexpr int kBlockBytes = static_cast<int>(quantized_bytes(1, 8));
constexpr int kHeaderBytes = static_cast<int>(sizeof(float));  // the scale
constexpr int kEach = kBlock / kWarp;                          // elements of a lane
constexpr int kWarps = kThreads / kWarp;
static_assert(kBlock % kWarp == 0);
static_assert(kBlockBytes % static_cast<int>(alignof(float)) == 0);

constexpr float kLargest = 127.0F;
constexpr float kRounds = 12582912.0F;  // 1.5 * 2^23, as the host's
constexpr uint32_t kMagnitudeBits = 0x7fffffff;
constexpr uint32_t kInfinityBits = 0x7f800000;
constexpr uint32_t kNanBits = 0x7fc00000;  // the host's

/// A lane's elements of a block.
struct Values {
  float at[kEach] = {};
};

/// Writes the block of all lanes' values, which then are what it lacks. False: it is not finite.
__device__ bool write_block(Values& values, char* block, int lane) {
  uint32_t largest = 0;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    largest = max(largest, __float_as_uint(values.at[e]) & kMagnitudeBits);
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    largest = max(largest, __shfl_xor_sync(0xffffffffU, largest, step));
  }
  const bool finite = largest < kInfinityBits;
  const float scale = __fdiv_rn(__uint_as_float(largest), kLargest);
  const bool is_zero = !finite || !(scale >= FLT_MIN);
  const float inverse = is_zero ? 0.0F : __fdiv_rn(1.0F, scale);
  const float kept = is_zero ? 0.0F : scale;
  if (lane == 0) *reinterpret_cast<uint32_t*>(block) = finite ? __float_as_uint(kept) : kNanBits;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const float shifted = __fadd_rn(__fmul_rn(values.at[e], inverse), kRounds);
    const auto element = static_cast<signed char>(is_zero ? 0U : __float_as_uint(shifted));
    block[kHeaderBytes + e * kWarp + lane] = element;
    values.at[e] = __fadd_rn(values.at[e], __fmul_rn(static_cast<float>(element), -kept));
  }
  return finite;
}

/// What the block says of the lane's elements, times `factor`.
__device__ Values read_block(const char* block, float factor, int lane) {
  const float times = __fmul_rn(*reinterpret_cast<const float*>(block), factor);
  Values values;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const auto element = static_cast<signed char>(block[kHeaderBytes + e * kWarp + lane]);
    values.at[e] =
        isnan(times) ? __uint_as_float(kNanBits) : __fmul_rn(static_cast<float>(element), times);
  }
  return values;
}

/// A block of a tensor.
struct Place {
  QuantizedTensor tensor;
  int64_t block;  ///< among the blocks of all tensors
  int64_t begin;  ///< the lane's first element, of the tensor's
  int lane;

  /// Calls function(e, i) of each of the lane's elements that the tensor has: e of the lane's, i of
  /// the tensor's.
  template <class Function>
  __device__ void for_each_element(Function function) const {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int64_t i = begin + e * kWarp;
      if (i < tensor.count) function(e, i);
    }
  }
};

/// Calls function(place) of each block, with all lanes of a warp.
template <class Function>
__device__ void for_each_block(const DeviceQuantized& list, Function function) {
  constexpr int64_t kBlocks = kChunkElements / kBlock;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int64_t index = blockIdx.x; index < list.chunks; index += gridDim.x) {
    const QuantizedRecord record = list.tensors[list.tensor_of_chunk[index]];
    // Of pointers that it loads, the compiler does not know it, and would use slower instructions.
    __builtin_assume(__isGlobal(record.tensor.data));
    const int64_t first = (index - record.first_chunk) * kBlocks;
    const int64_t last = min(first + kBlocks, (record.tensor.count - 1) / kBlock + 1);
    for (int64_t block = first + warp; block < last; block += kWarps) {
      function(Place{record.tensor, record.tensor.block + block, block * kBlock + lane, lane});
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    quantize_tensors(DeviceQuantized list, float factor, char* blocks) {
  for_each_block(list, [&](const Place& at) {
    float* const errors = at.tensor.errors;
    Values values;
    if (errors != nullptr) {
      at.for_each_element([&](int e, int64_t i) {
        values.at[e] = __fadd_rn(__fmul_rn(at.tensor.data[i], factor), errors[i]);
      });
    }
    const bool finite = write_block(values, blocks + at.block * kBlockBytes, at.lane);
    if (errors == nullptr || !finite) return;
    at.for_each_element([&](int e, int64_t i) { errors[i] = values.at[e]; });
  });
}

__global__ void __launch_bounds__(kThreads)
    sum_blocks(DeviceQuantized list, QuantizedPart part, float factor, char* to) {
  for_each_block(list, [&](const Place& at) {
    const int64_t block = at.block - part.first;
    if (block < 0 || block >= part.count) return;
    const char* from = static_cast<const char*>(part.blocks) + block * kBlockBytes;
    Values sums = read_block(from, factor, at.lane);
#pragma unroll 4
    for (int32_t rank = 1; rank < part.ranks; ++rank) {
      const Values more = read_block(from + rank * part.stride, factor, at.lane);
#pragma unroll
      for (int e = 0; e < kEach; ++e) sums.at[e] = __fadd_rn(sums.at[e], more.at[e]);
    }
    Values values;  // zeros behind the tensor's last element
    at.for_each_element([&](int e, int64_t) { values.at[e] = sums.at[e]; });
    const bool finite = write_block(values, to + block * kBlockBytes, at.lane);
    float* const errors = at.tensor.errors;
    if (errors == nullptr || !finite) return;
    at.for_each_element([&](int e, int64_t i) {
      errors[i] = __fadd_rn(errors[i], __fdiv_rn(values.at[e], factor));
    });
  });
}

__global__ void __launch_bounds__(kThreads)
    dequantize_tensors(DeviceQuantized list, const char* blocks, float factor) {
  for_each_block(list, [&](const Place& at) {
    const Values values = read_block(blocks + at.block * kBlockBytes, factor, at.lane);
    at.for_each_element([&](int e, int64_t i) { at.tensor.data[i] = values.at[e]; });
  });
}

unsigned blocks_of(const QuantizedLaunch& launch) {
  return blocks_for(launch.list.chunks, launch.multiprocessors);
}

}  // namespace

cudaError_t load_quantize() {
  for (const cudaError_t error :
       {load(quantize_tensors), load(sum_blocks), load(dequantize_tensors)}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t launch_quantize(const QuantizedLaunch& launch, float factor, void* blocks) {
  quantize_tensors<<<blocks_of(launch), kThreads, 0, launch.stream>>>(launch.list, factor,
                                                                      static_cast<char*>(blocks));
  return cudaGetLastError();
}

cudaError_t launch_sum_parts(const QuantizedLaunch& launch, const QuantizedPart& part, float factor,
                             void* to) {
  sum_blocks<<<blocks_of(launch), kThreads, 0, launch.stream>>>(launch.list, part, factor,
                                                                static_cast<char*>(to));
  return cudaGetLastError();
}

cudaError_t launch_dequantize(const QuantizedLaunch& launch, const void* blocks, float factor) {
  dequantize_tensors<<<blocks_of(launch), kThreads, 0, launch.stream>>>(
      launch.list, static_cast<const char*>(blocks), factor);
  return cudaGetLastError();
}

}  // namespace dt::kernels
