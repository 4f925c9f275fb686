// SPDX-License-Identifier: Apache-2.0
// Registers of the instruction set, and how each dtype is loaded into them and packed again. For
// reduce_impl.h only, under its rules.
#pragma once

#include <stdint.h>

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

using Byte = unsigned char;

template <class T, int kBytes = DT_VECTOR_BYTES>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kBytes)));
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

/// A word holds the first elements of a vector, in the order of memory.
constexpr int64_t kWordBytes = 8;
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

/// `bytes` of a word, at most all; the rest is zero.
DT_INLINE uint64_t read_word(const Byte* from, int64_t bytes) {
  uint64_t word = 0;
  if (bytes == kWordBytes) {
    __builtin_memcpy(&word, from, kWordBytes);
    return word;
  }
  int shift = 0;
  const auto append = [&](auto part) __attribute__((always_inline)) {
    __builtin_memcpy(&part, from, sizeof(part));
    word |= static_cast<uint64_t>(part) << shift;
    from += sizeof(part);
    shift += 8 * static_cast<int>(sizeof(part));
  };
  if ((bytes & 4) != 0) append(uint32_t{});
  if ((bytes & 2) != 0) append(uint16_t{});
  if ((bytes & 1) != 0) append(uint8_t{});
  return word;
}

DT_INLINE void write_word(Byte* to, uint64_t word, int64_t bytes) {
  if (bytes == kWordBytes) {
    __builtin_memcpy(to, &word, kWordBytes);
    return;
  }
  const auto take = [&](auto part) __attribute__((always_inline)) {
    part = static_cast<decltype(part)>(word);
    __builtin_memcpy(to, &part, sizeof(part));
    to += sizeof(part);
    word >>= 8 * sizeof(part);
  };
  if ((bytes & 4) != 0) take(uint32_t{});
  if ((bytes & 2) != 0) take(uint16_t{});
  if ((bytes & 1) != 0) take(uint8_t{});
}

// Casts, since compilers take copies of a part through memory, where a wide load waits until the
// narrow store before it is in the cache.

/// The other elements are zero.
template <class V>
DT_INLINE V vector_of(uint64_t word) {
  return (V)(typename VectorOf<uint64_t, sizeof(V)>::Type{word});
}

template <class V>
DT_INLINE uint64_t word_of(V vector) {
  return ((typename VectorOf<uint64_t, sizeof(V)>::Type)vector)[0];
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

// How a dtype is loaded into accumulators, and packed for its stores. A *unit* is the least that is
// loaded into whole accumulators; what load_unit() and load_word() leave out of the quad is zero,
// and pack().a is their place.

template <class T>
struct Plain {
  using Element = T;
  using Scalar = T;
  using Vector = typename VectorOf<T>::Type;
  static constexpr int64_t kStepBytes = kQuadBytes;

  static DT_INLINE Quad<Vector> load(const Byte* from) { return load_quad<Vector>(from); }
  static DT_INLINE Quad<Vector> load_unit(const Byte* from) {
    return {load_vector<Vector>(from), Vector{}, Vector{}, Vector{}};
  }
  static DT_INLINE Quad<Vector> load_word(uint64_t word) {
    return {vector_of<Vector>(word), Vector{}, Vector{}, Vector{}};
  }
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
  static DT_INLINE Quad<F32s> widen(U32s first) {
    return {low(first), high(first), F32s{}, F32s{}};
  }
  static DT_INLINE Quad<F32s> load_unit(const Byte* from) { return widen(load_vector<U32s>(from)); }
  static DT_INLINE Quad<F32s> load_word(uint64_t word) { return widen(vector_of<U32s>(word)); }
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
  static DT_INLINE Quad<F32s> load_unit(const Byte* from) {
    return {load_half(from), F32s{}, F32s{}, F32s{}};
  }
  static DT_INLINE Quad<F32s> load_word(uint64_t word) {
    return {widen(vector_of<Halves>(word)), F32s{}, F32s{}, F32s{}};
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
  static DT_INLINE Quad<F32s> widen_pairs(U32s first) {
    return {widen(first & 0xffffU), widen(first >> 16), F32s{}, F32s{}};
  }
  static DT_INLINE Quad<F32s> load_unit(const Byte* from) {
    return widen_pairs(load_vector<U32s>(from));
  }
  static DT_INLINE Quad<F32s> load_word(uint64_t word) {
    return widen_pairs(vector_of<U32s>(word));
  }
  static DT_INLINE Pair<U32s> pack(const Quad<F32s>& quad) {
    return {join(quad.a, quad.b), join(quad.c, quad.d)};
  }
};
#endif

}  // namespace
}  // namespace dt::kernels
