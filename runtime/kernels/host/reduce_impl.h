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
#include "kernels/host/vectors.h"

namespace dt::kernels {
namespace {

/// More streams than this at once outrun the hardware prefetchers.
constexpr int32_t kSourcesPerPass = 8;
/// Stays in the first-level cache beside the sources; on the stack.
constexpr int64_t kCarryBytes = 8192;

// Of equal values (two zeros) the earlier rank's stays; a NaN, once met, stays.
template <ReduceOp kOp, class V>
DT_INLINE V combine(V acc, V x) {
  if constexpr (kOp == ReduceOp::kBand) {
    return acc & x;
  } else if constexpr (kOp == ReduceOp::kBor) {
    return acc | x;
  } else if constexpr (kOp == ReduceOp::kBxor) {
    return acc ^ x;
  } else if constexpr (kOp == ReduceOp::kProd) {
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
DT_INLINE Quad<typename D::Vector> scaled(const Quad<typename D::Vector>& quad, double scale) {
  if constexpr (kOp == ReduceOp::kAvg) {
    const auto factor = typename D::Vector{} + static_cast<typename D::Scalar>(scale);
    return {quad.a * factor, quad.b * factor, quad.c * factor, quad.d * factor};
  } else {
    return quad;
  }
}

template <class D, ReduceOp kOp>
DT_INLINE Quad<typename D::Vector> load_scaled(const Byte* from, double scale) {
  return scaled<D, kOp>(D::load(from), scale);
}

/// What is left when it is less than a step: by units, then by words, so that no memory outside the
/// buffers is touched. A padded step would wait until the narrow stores of its source are in the
/// cache before it can load them again.
/// sum(load) gives the accumulators of all sources, each of which it reads by `load`; put(write)
/// writes to all destinations.
template <class D, class Sum, class Put>
DT_INLINE void reduce_rest(int64_t at, int64_t end, const Sum& sum, const Put& put) {
  constexpr auto kUnitBytes = static_cast<int64_t>(sizeof(D::pack(D::load_word(0)).a));
  for (; end - at >= kUnitBytes; at += kUnitBytes) {
    const auto unit = D::pack(sum([at](const Byte* from) __attribute__((always_inline)) {
                        return D::load_unit(from + at);
                      })).a;
    put([&](Byte * to) __attribute__((always_inline)) { store_vector(to + at, unit); });
  }
  for (; at < end; at += kWordBytes) {
    const int64_t bytes = end - at < kWordBytes ? end - at : kWordBytes;
    const uint64_t word = word_of(D::pack(sum([&](const Byte* from) __attribute__((always_inline)) {
                                    return D::load_word(read_word(from + at, bytes));
                                  })).a);
    put([&](Byte * to) __attribute__((always_inline)) { write_word(to + at, word, bytes); });
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
  if (at == pass.end_bytes) return;
  if (pass.carry_in != nullptr || pass.carry_out != nullptr) {
    alignas(kVectorBytes) Byte padded[D::kStepBytes] = {};
    reduce_step<D, kOp, false>(pass, at, carry_at, padded,
                               static_cast<uint64_t>(pass.end_bytes - at));
    return;
  }
  reduce_rest<D>(
      at, pass.end_bytes,
      [&](auto load) __attribute__((always_inline)) {
        auto acc = scaled<D, kOp>(load(pass.sources[0]), pass.scale);
        for (int32_t k = 1; k < pass.source_count; ++k) {
          acc = combine<kOp>(acc, scaled<D, kOp>(load(pass.sources[k]), pass.scale));
        }
        return acc;
      },
      [&](auto write) __attribute__((always_inline)) {
        for (int32_t k = 0; k < pass.destination_count; ++k) write(pass.destinations[k]);
      });
}

/// The usual counts, without inner loops: two sources, one destination or two. `pass` is read once:
/// a copy of it would wait for the stores that made it.
template <class D, ReduceOp kOp, bool kBoth, bool kStreaming>
__attribute__((noinline)) void reduce_two(const Pass& pass) {
  const Byte* const first = pass.sources[0];
  const Byte* const second = pass.sources[1];
  Byte* const to = pass.destinations[0];
  Byte* const to_other = pass.destinations[kBoth ? 1 : 0];
  const double scale = pass.scale;
  const int64_t end = pass.end_bytes;
  int64_t at = pass.begin_bytes;
  for (; end - at >= D::kStepBytes; at += D::kStepBytes) {
    const auto acc = load_scaled<D, kOp>(first + at, scale);
    const auto packed = D::pack(combine<kOp>(acc, load_scaled<D, kOp>(second + at, scale)));
    write<kStreaming>(to + at, packed);
    if constexpr (kBoth) write<kStreaming>(to_other + at, packed);
  }
  reduce_rest<D>(
      at, end,
      [&](auto load) __attribute__((always_inline)) {
        const auto acc = scaled<D, kOp>(load(first), scale);
        return combine<kOp>(acc, scaled<D, kOp>(load(second), scale));
      },
      [&](auto write_to) __attribute__((always_inline)) {
        write_to(to);
        if constexpr (kBoth) write_to(to_other);
      });
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
void reduce_elements(const Pass& pass) {
  if (!pass.streaming) return reduce_range<D, kOp>(pass);
  constexpr auto kElementBytes = static_cast<int64_t>(sizeof(typename D::Element));
  Pass aligned = pass;
  const int64_t head = bytes_to_line(pass.destinations[0] + pass.begin_bytes);
  for (int32_t k = 0; k < pass.destination_count && aligned.streaming; ++k) {
    aligned.streaming = bytes_to_line(pass.destinations[k] + pass.begin_bytes) == head &&
                        head % kElementBytes == 0 && head < pass.end_bytes - pass.begin_bytes;
  }
  if (!aligned.streaming) return reduce_range<D, kOp>(aligned);
  Pass unaligned = pass;
  unaligned.streaming = false;
  unaligned.end_bytes = pass.begin_bytes + head;
  reduce_range<D, kOp>(unaligned);
  aligned.begin_bytes += head;
  reduce_range<D, kOp>(aligned);
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
    default: return;
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
    default: return;
  }
}

/// Of any integers, which are bytes to them.
inline void reduce_bits(ReduceOp op, const Pass& pass) {
  switch (op) {
    case ReduceOp::kBand: return reduce_elements<Plain<uint8_t>, ReduceOp::kBand>(pass);
    case ReduceOp::kBor: return reduce_elements<Plain<uint8_t>, ReduceOp::kBor>(pass);
    default: return reduce_elements<Plain<uint8_t>, ReduceOp::kBxor>(pass);
  }
}

DT_INLINE void reduce_here(const Reduction& reduction, const Targets& targets,
                           const void* const* sources, int32_t source_count, int64_t begin_bytes,
                           int64_t end_bytes) {
  // Rounded as the accumulator's type divides; a float survives the way through a double.
  double scale = 1;
  if (reduction.op == ReduceOp::kAvg) {
    scale = reduction.dtype == Dtype::kF64
                ? 1.0 / reduction.divisor
                : static_cast<double>(1.0F / static_cast<float>(reduction.divisor));
  }
  const Pass pass = {reinterpret_cast<Byte* const*>(targets.destinations),
                     targets.count,
                     targets.stores == Stores::kStreaming,
                     reinterpret_cast<const Byte* const*>(sources),
                     source_count,
                     scale,
                     begin_bytes,
                     end_bytes,
                     nullptr,
                     nullptr};
  if (is_bitwise(reduction.op)) return reduce_bits(reduction.op, pass);
  switch (reduction.dtype) {
    case Dtype::kI16: return reduce_integers<int16_t, uint16_t>(reduction.op, pass);
    case Dtype::kU16: return reduce_integers<uint16_t, uint16_t>(reduction.op, pass);
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
    default: return;
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
