// SPDX-License-Identifier: Apache-2.0
// Casts, and sums of squares, included once by each instruction set's file; see reduce_impl.h.
#pragma once

#include <stdint.h>

#include "kernels/host/isa.h"
#include "kernels/host/vectors.h"

namespace dt::kernels {
namespace {

constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(float));
typedef uint16_t U16s __attribute__((vector_size(DT_VECTOR_BYTES / 2)));

// How a dtype comes into a vector of f32, in the order of memory, and out of it.

struct SingleLanes {
  static constexpr int64_t kBytes = 4;
  static DT_INLINE F32s load(const Byte* from) { return load_vector<F32s>(from); }
  static DT_INLINE void store(Byte* to, F32s x) { store_vector(to, one_nan(x)); }
};

struct Bf16Lanes {
  static constexpr int64_t kBytes = 2;
  static DT_INLINE F32s load(const Byte* from) {
    return (F32s)(__builtin_convertvector(load_vector<U16s>(from), U32s) << 16);
  }
  static DT_INLINE void store(Byte* to, F32s x) {
    store_vector(to, __builtin_convertvector(Bf16::round_to_nearest_even(x) >> 16, U16s));
  }
};

struct F16Lanes {
  static constexpr int64_t kBytes = 2;
#if DT_HARDWARE_F16
  static DT_INLINE F32s load(const Byte* from) { return F16::load_half(from); }
  static DT_INLINE void store(Byte* to, F32s x) { store_vector(to, F16::narrow(x)); }
#else
  static DT_INLINE F32s load(const Byte* from) {
    return F16::widen(__builtin_convertvector(load_vector<U16s>(from), U32s));
  }
  static DT_INLINE void store(Byte* to, F32s x) {
    store_vector(to, __builtin_convertvector(F16::narrow(x), U16s));
  }
#endif
};

template <class From, class To>
DT_INLINE void cast_lanes(const Byte* from, Byte* to, int64_t count, float scale) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    To::store(to + i * To::kBytes, From::load(from + i * From::kBytes) * scale);
  }
  if (i == count) return;
  Byte in[kLanes * From::kBytes] = {};
  Byte out[kLanes * To::kBytes];
  __builtin_memcpy(in, from + i * From::kBytes, static_cast<uint64_t>((count - i) * From::kBytes));
  To::store(out, From::load(in) * scale);
  __builtin_memcpy(to + i * To::kBytes, out, static_cast<uint64_t>((count - i) * To::kBytes));
}

template <class From>
DT_INLINE void cast_from(const Byte* from, Dtype to_dtype, Byte* to, int64_t count, float scale) {
  switch (to_dtype) {
    case Dtype::kF16: return cast_lanes<From, F16Lanes>(from, to, count, scale);
    case Dtype::kBf16: return cast_lanes<From, Bf16Lanes>(from, to, count, scale);
    case Dtype::kF32: return cast_lanes<From, SingleLanes>(from, to, count, scale);
    default: return;
  }
}

DT_INLINE void scale_doubles(const Byte* from, Byte* to, int64_t count, double scale) {
  constexpr auto kElement = static_cast<int64_t>(sizeof(double));
  constexpr int64_t kDoubles = kVectorBytes / kElement;
  int64_t i = 0;
  for (; i + kDoubles <= count; i += kDoubles) {
    store_vector(to + i * kElement, one_nan(load_vector<F64s>(from + i * kElement) * scale));
  }
  if (i == count) return;
  F64s last = {};
  __builtin_memcpy(&last, from + i * kElement, static_cast<uint64_t>((count - i) * kElement));
  last = one_nan(last * scale);
  __builtin_memcpy(to + i * kElement, &last, static_cast<uint64_t>((count - i) * kElement));
}

DT_INLINE void cast_here(Dtype from_dtype, const void* source, Dtype to_dtype, void* destination,
                         int64_t count, double scale) {
  const auto* from = static_cast<const Byte*>(source);
  auto* to = static_cast<Byte*>(destination);
  const auto single = static_cast<float>(scale);
  switch (from_dtype) {
    case Dtype::kF16: return cast_from<F16Lanes>(from, to_dtype, to, count, single);
    case Dtype::kBf16: return cast_from<Bf16Lanes>(from, to_dtype, to, count, single);
    case Dtype::kF32: return cast_from<SingleLanes>(from, to_dtype, to, count, single);
    case Dtype::kF64:
      if (to_dtype == Dtype::kF64) scale_doubles(from, to, count, scale);
      return;
    default: return;
  }
}

// Sums in 16 lanes whatever the registers are: element i goes to lane i % 16.
constexpr int64_t kSums = 16;
constexpr int64_t kDoublesEach = kVectorBytes / 8;  // of a register

struct SquareSums {
  F64s lanes[kSums / kDoublesEach] = {};

  /// The squares of kSums elements.
  template <class From>
  DT_INLINE void add(const Byte* from) {
#pragma GCC unroll 4
    for (int64_t k = 0; k < kSums / kLanes; ++k) {
      const F32s singles = From::load(from + k * kLanes * From::kBytes);
      VectorOf<float, DT_VECTOR_BYTES / 2>::Type halves[2];
      __builtin_memcpy(halves, &singles, sizeof(singles));
      add_square(2 * k, __builtin_convertvector(halves[0], F64s));
      add_square(2 * k + 1, __builtin_convertvector(halves[1], F64s));
    }
  }
  DT_INLINE void add_doubles(const Byte* from) {
#pragma GCC unroll 8
    for (int64_t k = 0; k < kSums / kDoublesEach; ++k) {
      add_square(k, load_vector<F64s>(from + k * kVectorBytes));
    }
  }
  DT_INLINE void add_square(int64_t k, F64s x) { lanes[k] += x * x; }
  DT_INLINE double total() const {
    double each[kSums];
    __builtin_memcpy(each, lanes, sizeof(lanes));
    double sum = 0;
    for (const double lane : each) sum += lane;
    return sum;
  }
};

/// add(at) takes kSums elements of kBytes each; the last block is padded with zeros.
template <int64_t kBytes, class Add>
DT_INLINE void for_each_block(const Byte* from, int64_t count, Add add) {
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) add(from + i * kBytes);
  if (i == count) return;
  Byte rest[kSums * kBytes] = {};
  __builtin_memcpy(rest, from + i * kBytes, static_cast<uint64_t>((count - i) * kBytes));
  add(rest);
}

template <class From>
DT_INLINE double squares_of(const Byte* from, int64_t count) {
  SquareSums sums;
  for_each_block<From::kBytes>(
      from,
      count, [&](const Byte* at) __attribute__((always_inline)) { sums.template add<From>(at); });
  return sums.total();
}

DT_INLINE double squares_of_doubles(const Byte* from, int64_t count) {
  SquareSums sums;
  for_each_block<8>(
      from, count, [&](const Byte* at) __attribute__((always_inline)) { sums.add_doubles(at); });
  return sums.total();
}

DT_INLINE double squared_norm_here(Dtype dtype, const void* data, int64_t count) {
  const auto* from = static_cast<const Byte*>(data);
  switch (dtype) {
    case Dtype::kF16: return squares_of<F16Lanes>(from, count);
    case Dtype::kBf16: return squares_of<Bf16Lanes>(from, count);
    case Dtype::kF32: return squares_of<SingleLanes>(from, count);
    case Dtype::kF64: return squares_of_doubles(from, count);
    default: return 0;
  }
}

}  // namespace
}  // namespace dt::kernels
