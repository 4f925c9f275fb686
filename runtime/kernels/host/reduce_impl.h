// SPDX-License-Identifier: Apache-2.0
// The reduction, included once by each instruction set's file, which defines
//   DT_VECTOR_BYTES  width of a register: 16, 32 or 64
//   DT_HARDWARE_F16  1 where the processor converts f16
// Everything here has internal linkage and uses no library function: see isa.h.
//
// Words: a *vector* is one register of accumulators. A *quad* is four of them, what one turn of a
// loop works on. A *step* is the bytes of one source that fill a quad (for halves, half its size).
// A *carry* is quads kept between two passes when there are too many sources for one.
//
// No step depends on the width: lanes never meet, and each lane does the same IEEE operations in
// rank order, unfused (-ffp-contract=off). Hence equal bits.
#pragma once

#include <stdint.h>

#include "kernels/host/isa.h"
#if DT_HARDWARE_F16 && defined(__aarch64__)
#include <arm_neon.h>
#elif DT_HARDWARE_F16
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#define DT_INLINE inline __attribute__((always_inline))

namespace dt::kernels {
namespace {

constexpr int64_t kVectorBytes = DT_VECTOR_BYTES;
constexpr int64_t kQuadBytes = 4 * kVectorBytes;
constexpr uint64_t kLineBytes = 64;  // of a cache
/// More streams than this at once outrun the hardware prefetchers.
constexpr int32_t kSourcesPerPass = 8;
/// Stays in the first-level cache beside the sources; on the stack.
constexpr int64_t kCarryBytes = 8192;

using Byte = unsigned char;

template <class T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(DT_VECTOR_BYTES)));
};
using F32s = VectorOf<float>::Type;
using U32s = VectorOf<uint32_t>::Type;
using I32s = VectorOf<int32_t>::Type;
using F64s = VectorOf<double>::Type;
using I64s = VectorOf<int64_t>::Type;
#if DT_HARDWARE_F16
typedef uint16_t U16Halves __attribute__((vector_size(DT_VECTOR_BYTES / 2)));
#endif

template <class V>
struct Quad {
  V a, b, c, d;
};
template <class V>
struct Pair {
  V a, b;
};

template <class V>
DT_INLINE V load_vector(const Byte* from) {
  V vector;
  __builtin_memcpy(&vector, from, sizeof(vector));  // any alignment
  return vector;
}

template <class V>
DT_INLINE void store_vector(Byte* to, V vector) {
  __builtin_memcpy(to, &vector, sizeof(vector));
}

/// How a vector is written: past the caches, where the processor has such stores and the address is
/// a multiple of the vector's size, or as usual.
template <bool kStreaming>
struct Writer {
  template <class V>
  static DT_INLINE void write(Byte* to, V vector) {
    if constexpr (!kStreaming) {
      store_vector(to, vector);
#if DT_VECTOR_BYTES == 64
    } else if constexpr (sizeof(V) == 64) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)vector);
#endif
#if DT_VECTOR_BYTES >= 32
    } else if constexpr (sizeof(V) == 32) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)vector);
#endif
#if defined(__SSE2__)
    } else if constexpr (sizeof(V) == 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)vector);
#endif
    } else {
      store_vector(to, vector);
    }
  }
};

/// Before anybody may be told of what was written past the caches.
DT_INLINE void finish_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

template <class V>
DT_INLINE Quad<V> load_quad(const Byte* from) {
  return {load_vector<V>(from), load_vector<V>(from + kVectorBytes),
          load_vector<V>(from + 2 * kVectorBytes), load_vector<V>(from + 3 * kVectorBytes)};
}

template <bool kStreaming = false, class V>
DT_INLINE void write(Byte* to, const Quad<V>& quad) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(V));
  Writer<kStreaming>::write(to, quad.a);
  Writer<kStreaming>::write(to + kSize, quad.b);
  Writer<kStreaming>::write(to + 2 * kSize, quad.c);
  Writer<kStreaming>::write(to + 3 * kSize, quad.d);
}

template <bool kStreaming = false, class V>
DT_INLINE void write(Byte* to, const Pair<V>& pair) {
  Writer<kStreaming>::write(to, pair.a);
  Writer<kStreaming>::write(to + static_cast<int64_t>(sizeof(V)), pair.b);
}

// Which NaN an addition gives depends on the order of its operands, which compilers swap, and on
// the architecture. So every NaN result becomes the positive quiet one.
DT_INLINE F32s one_nan(F32s x) { return (F32s)(x != x ? I32s{} + 0x7fc00000 : (I32s)x); }
DT_INLINE F64s one_nan(F64s x) {
  return (F64s)(x != x ? I64s{} + INT64_C(0x7ff8000000000000) : (I64s)x);
}
template <class V>
DT_INLINE V one_nan(V integers) {
  return integers;
}

// How a dtype is loaded into accumulators, and packed for its stores.

template <class T>
struct Plain {
  using Element = T;
  using Scalar = T;
  using Vector = typename VectorOf<T>::Type;
  static constexpr int64_t kStepBytes = kQuadBytes;

  static DT_INLINE Quad<Vector> load(const Byte* from) { return load_quad<Vector>(from); }
  static DT_INLINE Quad<Vector> pack(const Quad<Vector>& quad) {
    return {one_nan(quad.a), one_nan(quad.b), one_nan(quad.c), one_nan(quad.d)};
  }
};

// Both halves of each 32-bit lane are converted where they stand: no shuffles. Where a lane's two
// elements sit in the quad does not matter, as load and store agree.
struct Bf16 {
  using Element = uint16_t;
  using Scalar = float;
  using Vector = F32s;
  static constexpr int64_t kStepBytes = kQuadBytes / 2;

  static DT_INLINE F32s low(U32s pair) { return (F32s)(pair << 16); }
  static DT_INLINE F32s high(U32s pair) { return (F32s)(pair & 0xffff0000U); }
  /// The result is in the upper half; the lower half is not clean.
  static DT_INLINE U32s round_to_nearest_even(F32s x) {
    const U32s bits = (U32s)one_nan(x);
    return bits + 0x7fffU + ((bits >> 16) & 1U);
  }
  static DT_INLINE U32s join(F32s low, F32s high) {
    return (round_to_nearest_even(low) >> 16) | (round_to_nearest_even(high) & 0xffff0000U);
  }

  static DT_INLINE Quad<F32s> load(const Byte* from) {
    const U32s first = load_vector<U32s>(from);
    const U32s second = load_vector<U32s>(from + kVectorBytes);
    return {low(first), high(first), low(second), high(second)};
  }
  static DT_INLINE Pair<U32s> pack(const Quad<F32s>& quad) {
    return {join(quad.a, quad.b), join(quad.c, quad.d)};
  }
};

#if DT_HARDWARE_F16
struct F16 {
  using Element = uint16_t;
  using Scalar = float;
  using Vector = F32s;
  static constexpr int64_t kStepBytes = kQuadBytes / 2;

#if defined(__aarch64__)
  using Halves = float16x4_t;
  static DT_INLINE F32s widen(Halves x) { return (F32s)vcvt_f32_f16(x); }
  static DT_INLINE Halves narrow(F32s x) { return vcvt_f16_f32((float32x4_t)one_nan(x)); }
#elif DT_VECTOR_BYTES == 64
  using Halves = __m256i;
  // With a mask of all lanes: gcc 12 warns about the undefined operand of the plain ones.
  static constexpr __mmask16 kAllLanes = 0xffff;
  static DT_INLINE F32s widen(Halves x) { return (F32s)_mm512_maskz_cvtph_ps(kAllLanes, x); }
  static DT_INLINE Halves narrow(F32s x) {
    return _mm512_maskz_cvtps_ph(kAllLanes, (__m512)one_nan(x), _MM_FROUND_TO_NEAREST_INT);
  }
#else
  using Halves = __m128i;
  static DT_INLINE F32s widen(Halves x) { return (F32s)_mm256_cvtph_ps(x); }
  static DT_INLINE Halves narrow(F32s x) {
    return _mm256_cvtps_ph((__m256)one_nan(x), _MM_FROUND_TO_NEAREST_INT);
  }
#endif

  static DT_INLINE F32s load_half(const Byte* from) {
    Halves halves;
    __builtin_memcpy(&halves, from, sizeof(halves));
    return widen(halves);
  }
  static DT_INLINE Quad<F32s> load(const Byte* from) {
    return {load_half(from), load_half(from + kVectorBytes / 2), load_half(from + kVectorBytes),
            load_half(from + kVectorBytes * 3 / 2)};
  }
  static DT_INLINE Quad<U16Halves> pack(const Quad<F32s>& quad) {
    return {(U16Halves)narrow(quad.a), (U16Halves)narrow(quad.b), (U16Halves)narrow(quad.c),
            (U16Halves)narrow(quad.d)};
  }
};
#else
// In each lane, exponent and fraction are moved to their place in an f32 and the exponent is
// re-biased (127 - 15 = 112). Comparisons are signed: SSE2 has no others.
struct F16 {
  using Element = uint16_t;
  using Scalar = float;
  using Vector = F32s;
  static constexpr int64_t kStepBytes = kQuadBytes / 2;

  static DT_INLINE F32s widen(U32s half) {
    const I32s magnitude = (I32s)((half & 0x7fffU) << 13);
    const I32s normal = magnitude + (112 << 23);
    const I32s infinite_or_nan = magnitude + (224 << 23);
    // 2^-14 * 1.fraction - 2^-14 * 1: exact, and never subnormal in f32.
    const I32s two_to_minus_14 = I32s{} + (113 << 23);
    const F32s subnormal = (F32s)(magnitude + (113 << 23)) - (F32s)two_to_minus_14;
    const I32s finite = magnitude < (1 << 23) ? (I32s)subnormal : normal;
    const I32s bits = magnitude >= (31 << 23) ? infinite_or_nan : finite;
    return (F32s)((U32s)bits | ((half & 0x8000U) << 16));
  }
  static DT_INLINE U32s narrow(F32s x) {
    const U32s sign = ((U32s)x >> 16) & 0x8000U;
    const I32s exact = (I32s)x & 0x7fffffff;
    const I32s overflow = I32s{} + (143 << 23);  // 65536, which becomes infinity
    const I32s magnitude = exact > overflow ? overflow : exact;
    // Rounds half to even; a carry out of the fraction goes rightly into the exponent.
    const I32s normal = (magnitude - (112 << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    // Adding 0.5, whose last place is 2^-24, lets the addition round to a multiple of 2^-24.
    const I32s half = I32s{} + (126 << 23);
    const I32s subnormal = (I32s)((F32s)magnitude + (F32s)half) - half;
    const I32s finite = magnitude < (113 << 23) ? subnormal : normal;
    return (U32s)(x != x ? I32s{} + 0x7e00 : (finite | (I32s)sign));
  }
  static DT_INLINE U32s join(F32s low, F32s high) { return narrow(low) | (narrow(high) << 16); }

  static DT_INLINE Quad<F32s> load(const Byte* from) {
    const U32s first = load_vector<U32s>(from);
    const U32s second = load_vector<U32s>(from + kVectorBytes);
    return {widen(first & 0xffffU), widen(first >> 16), widen(second & 0xffffU),
            widen(second >> 16)};
  }
  static DT_INLINE Pair<U32s> pack(const Quad<F32s>& quad) {
    return {join(quad.a, quad.b), join(quad.c, quad.d)};
  }
};
#endif

// Of equal values (two zeros) the earlier rank's stays; a NaN, once met, stays.
template <ReduceOp kOp, class V>
DT_INLINE V combine(V acc, V x) {
  if constexpr (kOp == ReduceOp::kProd) {
    return acc * x;
  } else if constexpr (kOp == ReduceOp::kMin) {
    const V least = x < acc ? x : acc;
    return x != x ? x : least;
  } else if constexpr (kOp == ReduceOp::kMax) {
    const V greatest = x > acc ? x : acc;
    return x != x ? x : greatest;
  } else {
    return acc + x;
  }
}

template <ReduceOp kOp, class V>
DT_INLINE Quad<V> combine(const Quad<V>& acc, const Quad<V>& x) {
  return {combine<kOp>(acc.a, x.a), combine<kOp>(acc.b, x.b), combine<kOp>(acc.c, x.c),
          combine<kOp>(acc.d, x.d)};
}

/// What one pass over memory is told.
struct Pass {
  Byte* const* destinations;
  int32_t destination_count;
  bool streaming;  // the destinations are multiples of a cache line at begin_bytes
  const Byte* const* sources;
  int32_t source_count;
  double scale;  // only for avg: 1/divisor, rounded to the accumulator's type
  int64_t begin_bytes, end_bytes;
  const Byte* carry_in;  // quads that come before the first source, or null
  Byte* carry_out;       // where the quads go instead of to the destinations, or null
};

template <class D, ReduceOp kOp>
DT_INLINE Quad<typename D::Vector> load_scaled(const Byte* from, double scale) {
  const auto quad = D::load(from);
  if constexpr (kOp == ReduceOp::kAvg) {
    const auto factor = typename D::Vector{} + static_cast<typename D::Scalar>(scale);
    return {quad.a * factor, quad.b * factor, quad.c * factor, quad.d * factor};
  } else {
    return quad;
  }
}

/// One step, `step_bytes` of it. A part of a step goes through `padded`, which holds a whole one,
/// so that no memory outside the buffers is touched.
template <class D, ReduceOp kOp, bool kWhole>
DT_INLINE void reduce_step(const Pass& pass, int64_t at, int64_t carry_at, Byte* padded,
                           uint64_t step_bytes) {
  using Vector = typename D::Vector;
  const auto load = [&](int32_t k) __attribute__((always_inline)) {
    const Byte* from = pass.sources[k] + at;
    if constexpr (!kWhole) {
      __builtin_memcpy(padded, from, step_bytes);
      from = padded;
    }
    return load_scaled<D, kOp>(from, pass.scale);
  };
  Quad<Vector> acc;
  int32_t next = 0;
  if (pass.carry_in != nullptr) {
    acc = load_quad<Vector>(pass.carry_in + carry_at);
  } else {
    acc = load(next++);
  }
  for (; next < pass.source_count; ++next) {
    acc = combine<kOp>(acc, load(next));
  }
  if (pass.carry_out != nullptr) {
    write(pass.carry_out + carry_at, acc);
    return;
  }
  const auto packed = D::pack(acc);
  if constexpr (!kWhole) write(padded, packed);
  for (int32_t k = 0; k < pass.destination_count; ++k) {
    Byte* const to = pass.destinations[k] + at;
    if constexpr (!kWhole) {
      __builtin_memcpy(to, padded, step_bytes);
    } else if (pass.streaming) {
      write<true>(to, packed);
    } else {
      write(to, packed);
    }
  }
}

/// Any number of sources, destinations and elements. `pass` is a copy, which stores cannot alias.
template <class D, ReduceOp kOp>
__attribute__((noinline)) void reduce_any(Pass pass) {
  int64_t carry_at = 0;
  int64_t at = pass.begin_bytes;
  for (; pass.end_bytes - at >= D::kStepBytes; at += D::kStepBytes, carry_at += kQuadBytes) {
    reduce_step<D, kOp, true>(pass, at, carry_at, nullptr, D::kStepBytes);
  }
  if (at < pass.end_bytes) {
    alignas(kVectorBytes) Byte padded[D::kStepBytes] = {};
    reduce_step<D, kOp, false>(pass, at, carry_at, padded,
                               static_cast<uint64_t>(pass.end_bytes - at));
  }
}

/// The usual counts, without inner loops: two sources, one destination or two.
template <class D, ReduceOp kOp, bool kBoth, bool kStreaming>
__attribute__((noinline)) void reduce_two(Pass pass) {
  const Byte* const first = pass.sources[0];
  const Byte* const second = pass.sources[1];
  Byte* const to = pass.destinations[0];
  Byte* const to_other = pass.destinations[kBoth ? 1 : 0];
  int64_t at = pass.begin_bytes;
  for (; pass.end_bytes - at >= D::kStepBytes; at += D::kStepBytes) {
    const auto acc = load_scaled<D, kOp>(first + at, pass.scale);
    const auto packed = D::pack(combine<kOp>(acc, load_scaled<D, kOp>(second + at, pass.scale)));
    write<kStreaming>(to + at, packed);
    if constexpr (kBoth) write<kStreaming>(to_other + at, packed);
  }
  pass.begin_bytes = at;
  reduce_any<D, kOp>(pass);
}

/// Too many sources for one pass: chunk by chunk, a few sources at a time, the rest carried. The
/// destinations' chunks are written last, as they may be among the sources.
template <class D, ReduceOp kOp>
__attribute__((noinline)) void reduce_many(const Pass& all) {
  alignas(kVectorBytes) Byte carry[kCarryBytes];
  constexpr int64_t kChunkBytes = kCarryBytes / kQuadBytes * D::kStepBytes;
  Pass pass = all;
  for (int64_t at = all.begin_bytes; at < all.end_bytes; at += kChunkBytes) {
    pass.begin_bytes = at;
    pass.end_bytes = all.end_bytes - at < kChunkBytes ? all.end_bytes : at + kChunkBytes;
    pass.carry_in = nullptr;
    for (int32_t k = 0; k < all.source_count; k += kSourcesPerPass) {
      const int32_t left = all.source_count - k;
      pass.sources = all.sources + k;
      pass.source_count = left < kSourcesPerPass ? left : kSourcesPerPass;
      pass.carry_out = left > kSourcesPerPass ? carry : nullptr;
      reduce_any<D, kOp>(pass);
      pass.carry_in = carry;
    }
  }
}

template <class D, ReduceOp kOp>
DT_INLINE void reduce_range(const Pass& pass) {
  if (pass.source_count > kSourcesPerPass) {
    reduce_many<D, kOp>(pass);
  } else if (pass.source_count != 2 || pass.destination_count > 2) {
    reduce_any<D, kOp>(pass);
  } else if (pass.streaming) {
    pass.destination_count == 2 ? reduce_two<D, kOp, true, true>(pass)
                                : reduce_two<D, kOp, false, true>(pass);
  } else {
    pass.destination_count == 2 ? reduce_two<D, kOp, true, false>(pass)
                                : reduce_two<D, kOp, false, false>(pass);
  }
}

/// Bytes up to the first line boundary of the destination.
DT_INLINE int64_t bytes_to_line(const Byte* to) {
  return static_cast<int64_t>(-reinterpret_cast<uintptr_t>(to) % kLineBytes);
}

/// Streams only where all destinations reach a line boundary together, between two elements.
template <class D, ReduceOp kOp>
void reduce_elements(Pass pass) {
  constexpr auto kElementBytes = static_cast<int64_t>(sizeof(typename D::Element));
  pass.begin_bytes *= kElementBytes;
  pass.end_bytes *= kElementBytes;
  const int64_t head = bytes_to_line(pass.destinations[0] + pass.begin_bytes);
  for (int32_t k = 0; k < pass.destination_count && pass.streaming; ++k) {
    pass.streaming = bytes_to_line(pass.destinations[k] + pass.begin_bytes) == head &&
                     head % kElementBytes == 0 && head < pass.end_bytes - pass.begin_bytes;
  }
  if (!pass.streaming) return reduce_range<D, kOp>(pass);
  Pass unaligned = pass;
  unaligned.streaming = false;
  unaligned.end_bytes = pass.begin_bytes + head;
  reduce_range<D, kOp>(unaligned);
  pass.begin_bytes += head;
  reduce_range<D, kOp>(pass);
  finish_streaming();
}

template <class D>
void reduce_floating(ReduceOp op, const Pass& pass) {
  switch (op) {
    case ReduceOp::kSum: return reduce_elements<D, ReduceOp::kSum>(pass);
    case ReduceOp::kAvg: return reduce_elements<D, ReduceOp::kAvg>(pass);
    case ReduceOp::kProd: return reduce_elements<D, ReduceOp::kProd>(pass);
    case ReduceOp::kMin: return reduce_elements<D, ReduceOp::kMin>(pass);
    case ReduceOp::kMax: return reduce_elements<D, ReduceOp::kMax>(pass);
  }
}

/// Sums and products wrap, so signed ones (T) are done as unsigned ones (U).
template <class T, class U>
void reduce_integers(ReduceOp op, const Pass& pass) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return reduce_elements<Plain<U>, ReduceOp::kSum>(pass);
    case ReduceOp::kProd: return reduce_elements<Plain<U>, ReduceOp::kProd>(pass);
    case ReduceOp::kMin: return reduce_elements<Plain<T>, ReduceOp::kMin>(pass);
    case ReduceOp::kMax: return reduce_elements<Plain<T>, ReduceOp::kMax>(pass);
  }
}

DT_INLINE void reduce_here(const Reduction& reduction, const Targets& targets,
                           const void* const* sources, int32_t source_count, int64_t first,
                           int64_t count) {
  // Rounded as the accumulator's type divides; a float survives the way through a double.
  const bool is_f64 = reduction.dtype == Dtype::kF64;
  const double scale = is_f64 ? 1.0 / reduction.divisor
                              : static_cast<double>(1.0F / static_cast<float>(reduction.divisor));
  const Pass pass = {reinterpret_cast<Byte* const*>(targets.destinations),
                     targets.count,
                     targets.stores == Stores::kStreaming,
                     reinterpret_cast<const Byte* const*>(sources),
                     source_count,
                     scale,
                     first,
                     first + count,
                     nullptr,
                     nullptr};
  switch (reduction.dtype) {
    case Dtype::kI8: return reduce_integers<int8_t, uint8_t>(reduction.op, pass);
    case Dtype::kU8: return reduce_integers<uint8_t, uint8_t>(reduction.op, pass);
    case Dtype::kI32: return reduce_integers<int32_t, uint32_t>(reduction.op, pass);
    case Dtype::kU32: return reduce_integers<uint32_t, uint32_t>(reduction.op, pass);
    case Dtype::kI64: return reduce_integers<int64_t, uint64_t>(reduction.op, pass);
    case Dtype::kU64: return reduce_integers<uint64_t, uint64_t>(reduction.op, pass);
    case Dtype::kF16: return reduce_floating<F16>(reduction.op, pass);
    case Dtype::kBf16: return reduce_floating<Bf16>(reduction.op, pass);
    case Dtype::kF32: return reduce_floating<Plain<float>>(reduction.op, pass);
    case Dtype::kF64: return reduce_floating<Plain<double>>(reduction.op, pass);
  }
}

/// Copies with stores past the caches.
DT_INLINE void copy_here(void* destination, const void* source, int64_t bytes) {
  auto* to = static_cast<Byte*>(destination);
  const auto* from = static_cast<const Byte*>(source);
  const int64_t to_line = bytes_to_line(to);
  int64_t at = to_line < bytes ? to_line : bytes;
  __builtin_memcpy(to, from, static_cast<uint64_t>(at));
  for (; bytes - at >= kQuadBytes; at += kQuadBytes) {
    write<true>(to + at, load_quad<U32s>(from + at));
  }
  __builtin_memcpy(to + at, from + at, static_cast<uint64_t>(bytes - at));
  finish_streaming();
}

}  // namespace
}  // namespace dt::kernels
