// SPDX-License-Identifier: Apache-2.0
// The norm from a maximum and from sums of whole numbers: both are exact, so neither the order of
// the blocks nor the split of the elements over ranks changes a bit. The roundings are those of
// training/reducer_clip.cc.
#include <math_constants.h>

#include <cfloat>
#include <cmath>

#include "kernels/cuda/blocks.cuh"

namespace dt::kernels {
namespace {

constexpr int kLowBits = 28;  // of sum[1]
constexpr uint64_t kLowMask = (uint64_t{1} << kLowBits) - 1;

using Atomic = unsigned long long;  // what CUDA has atomic functions for

__device__ bool has_powers(const double* largest) {
  return largest[0] > 0 && largest[1] == 0 && largest[2] == 0;
}

template <class T>
__global__ void __launch_bounds__(kThreads) find_largest(DeviceChunks list, double* out) {
  using Float = Accumulator<T>;
  constexpr auto kMost = static_cast<Float>(std::is_same_v<Float, double> ? DBL_MAX : FLT_MAX);
  Float largest = 0;
  bool infinite = false;
  bool nan = false;
  for (int64_t index = blockIdx.x; index < list.chunks; index += gridDim.x) {
    const Chunk chunk = chunk_at(list, index);
    for_each(static_cast<const T*>(chunk.data) + chunk.begin, chunk.count, [&](T element) {
      const auto magnitude = fabs(cast<Float>(element));
      if (magnitude <= kMost) {
        largest = max(largest, magnitude);
      } else if (isnan(magnitude)) {
        nan = true;
      } else {
        infinite = true;
      }
    });
  }
  if (infinite) out[1] = 1;  // each writes the same
  if (nan) out[2] = 1;
  const auto of_block = static_cast<double>(block_reduce<kThreads, Maximum>(largest));
  // The bits of numbers that are not negative are in the order of the numbers.
  if (threadIdx.x == 0 && of_block > 0) {
    atomicMax(reinterpret_cast<Atomic*>(out), static_cast<Atomic>(__double_as_longlong(of_block)));
  }
}

/// Squares in units of 2^-56 of that of a power of two just above the largest magnitude, other
/// powers in units of 2^-56 of that of the largest magnitude.
template <bool kSquares>
class Units {
 public:
  __device__ Units(double largest, double type) : type_(type), largest_(largest) {
    int exponent = 0;
    static_cast<void>(frexp(largest, &exponent));
    // Two factors, since one alone may be more than a double can hold.
    const int half = -exponent / 2;
    first_ = ldexp(1.0, half);
    second_ = ldexp(1.0, -exponent - half);
  }
  /// At most 2^56.
  __device__ uint64_t of(double x) const {
    double power;
    if constexpr (kSquares) {
      const double ratio = __dmul_rn(__dmul_rn(x, first_), second_);
      power = __dmul_rn(ratio, ratio);
    } else {
      power = pow(__ddiv_rn(fabs(x), largest_), type_);
    }
    return static_cast<uint64_t>(__double2ll_rz(__dadd_rn(__dmul_rn(power, 0x1p56), 0.5)));
  }

 private:
  double type_, largest_, first_, second_;
};

/// No overflow with fewer than 2^35 elements, of all calls that add to `sum`:
///   units: a thread has at most kChunkElements / kThreads + 2 = 18 elements of a chunk, so at most
///          18 * 2^56 < 2^61;
///   high:  at most 2^28 for each element, so less than 2^63 in sum[0];
///   low:   less than 2^28 for each chunk of a thread, so less than 2^63 in a block;
///   sum[1]: less than 2^28 for each block, of which a call has at least one element each.
template <class T, bool kSquares>
__global__ void __launch_bounds__(kThreads)
    add_powers(DeviceChunks list, const double* largest, double type, int64_t* sum) {
  if (!has_powers(largest)) return;
  static_assert(kChunkElements / kThreads + 2 < 32);
  const Units<kSquares> units_of(largest[0], type);
  uint64_t high = 0;
  uint64_t low = 0;
  for (int64_t index = blockIdx.x; index < list.chunks; index += gridDim.x) {
    const Chunk chunk = chunk_at(list, index);
    uint64_t units = 0;
    for_each(static_cast<const T*>(chunk.data) + chunk.begin, chunk.count,
             [&](T element) { units += units_of.of(cast<double>(element)); });
    high += units >> kLowBits;
    low += units & kLowMask;
  }
  high = block_reduce<kThreads, Plus>(high);
  low = block_reduce<kThreads, Plus>(low);
  if (threadIdx.x != 0) return;
  atomicAdd(reinterpret_cast<Atomic*>(sum), static_cast<Atomic>(high + (low >> kLowBits)));
  atomicAdd(reinterpret_cast<Atomic*>(sum + 1), static_cast<Atomic>(low & kLowMask));
}

__device__ double norm_of(const double* largest, const int64_t* sum, double type) {
  if (largest[2] != 0) return CUDART_NAN;
  if (largest[1] != 0) return CUDART_INF;
  if (!(largest[0] > 0)) return 0;
  if (isinf(type)) return largest[0];
  int exponent = 0;
  static_cast<void>(frexp(largest[0], &exponent));
  const int64_t high = sum[0] + (sum[1] >> kLowBits);
  const auto low = static_cast<int64_t>(static_cast<uint64_t>(sum[1]) & kLowMask);
  const double total = __dadd_rn(ldexp(static_cast<double>(high), -kLowBits),
                                 ldexp(static_cast<double>(low), -2 * kLowBits));
  if (type != 2) return __dmul_rn(largest[0], pow(total, __ddiv_rn(1, type)));
  return ldexp(__dsqrt_rn(total), exponent);
}

__global__ void clip_factor_of_powers(const double* largest, const int64_t* sum, double type,
                                      double max_norm, double tiny, float* norm, float* factor) {
  const double found = norm_of(largest, sum, type);
  const double wanted = __ddiv_rn(max_norm, __dadd_rn(found, tiny));
  const auto reported = static_cast<float>(found);
  if (norm != nullptr) *norm = reported;
  *factor = isfinite(reported) && wanted < 1 ? static_cast<float>(wanted) : 1.0F;
}

}  // namespace

cudaError_t load_powers() {
  const cudaError_t error = load(clip_factor_of_powers);
  if (error != cudaSuccess) return error;
  return with_each_float_type([&]<class T>() {
    for (const cudaError_t each :
         {load(find_largest<T>), load(add_powers<T, true>), load(add_powers<T, false>)}) {
      if (each != cudaSuccess) return each;
    }
    return cudaSuccess;
  });
}

cudaError_t launch_largest(const Launch& launch, Dtype dtype, double* out) {
  return with_float_type(dtype, [&]<class T>() {
    find_largest<T>
        <<<blocks_for(launch.list.chunks, launch.multiprocessors), kThreads, 0, launch.stream>>>(
            launch.list, out);
    return cudaGetLastError();
  });
}

cudaError_t launch_powers(const Launch& launch, Dtype dtype, const double* largest, double type,
                          int64_t* sum) {
  const int blocks = blocks_for(launch.list.chunks, launch.multiprocessors);
  return with_float_type(dtype, [&]<class T>() {
    if (type == 2) {
      add_powers<T, true><<<blocks, kThreads, 0, launch.stream>>>(launch.list, largest, type, sum);
    } else {
      add_powers<T, false><<<blocks, kThreads, 0, launch.stream>>>(launch.list, largest, type, sum);
    }
    return cudaGetLastError();
  });
}

cudaError_t launch_clip_factor_of_powers(const Launch& launch, const double* largest,
                                         const int64_t* sum, double type, double max_norm,
                                         double tiny, float* norm, float* factor) {
  clip_factor_of_powers<<<1, 1, 0, launch.stream>>>(largest, sum, type, max_norm, tiny, norm,
                                                    factor);
  return cudaGetLastError();
}

}  // namespace dt::kernels
