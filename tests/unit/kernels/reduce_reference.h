// SPDX-License-Identifier: Apache-2.0
// Plain scalar loops that say what reduce() must give, bit for bit, written without its code.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/host/reduce.h"

namespace dt::reference {

using kernels::Reduction;
using Bytes = std::vector<unsigned char>;

/// An IEEE format of 16 bits.
struct HalfFormat {
  int fraction_bits;
  int exponent_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint16_t infinity() const {
    return static_cast<uint16_t>(((1 << exponent_bits) - 1) << fraction_bits);
  }
  uint16_t quiet_nan() const {
    return static_cast<uint16_t>(infinity() | (1 << (fraction_bits - 1)));
  }
};
inline constexpr HalfFormat kF16Format{10, 5};
inline constexpr HalfFormat kBf16Format{7, 8};

inline float decode(uint16_t bits, const HalfFormat& format) {
  const int fraction = bits & ((1 << format.fraction_bits) - 1);
  const int exponent = (bits & 0x7fff) >> format.fraction_bits;
  double magnitude = 0;
  if ((bits & 0x7fff) > format.infinity()) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == (1 << format.exponent_bits) - 1) {
    magnitude = std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, 1 - format.bias() - format.fraction_bits);
  } else {
    magnitude = std::ldexp(fraction + (1 << format.fraction_bits),
                           exponent - format.bias() - format.fraction_bits);
  }
  return static_cast<float>((bits & 0x8000) != 0 ? -magnitude : magnitude);
}

/// Rounds to nearest, ties to even, by counting in units of the last place.
inline uint16_t encode(float value, const HalfFormat& format) {
  if (std::isnan(value)) return format.quiet_nan();
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude == 0) return static_cast<uint16_t>(sign);
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | format.infinity());
  int exponent = std::ilogb(magnitude);
  if (exponent < 1 - format.bias()) exponent = 1 - format.bias();
  const int units =
      static_cast<int>(std::nearbyint(std::ldexp(magnitude, format.fraction_bits - exponent)));
  // A subnormal has exponent field 0 and no hidden one: both come out of this sum.
  const int bits = ((exponent + format.bias() - 1) << format.fraction_bits) + units;
  const int infinity = format.infinity();
  return static_cast<uint16_t>(sign | (bits < infinity ? bits : infinity));
}

inline const std::vector<float>& decoded(const HalfFormat& format) {
  const auto table = [](const HalfFormat& of) {
    std::vector<float> values(65536);
    for (int i = 0; i < 65536; ++i) values[i] = decode(static_cast<uint16_t>(i), of);
    return values;
  };
  static const std::vector<float> f16 = table(kF16Format);
  static const std::vector<float> bf16 = table(kBf16Format);
  return format.exponent_bits == 5 ? f16 : bf16;
}

template <class T>
T element(const Bytes& bytes, int64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <class T>
void set_element(Bytes& bytes, int64_t i, T value) {
  std::memcpy(bytes.data() + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

/// `get(k)` is source k's element.
template <class Acc, class Get>
Acc fold_floating(const Reduction& reduction, int source_count, Get get) {
  const Acc scale = Acc(1) / static_cast<Acc>(reduction.divisor);
  const auto source = [&](int k) {
    // volatile: a compiler may otherwise fuse the product with the sum.
    volatile Acc value = get(k);
    if (reduction.op == ReduceOp::kAvg) value = value * scale;
    return Acc(value);
  };
  Acc acc = source(0);
  for (int k = 1; k < source_count; ++k) {
    const Acc x = source(k);
    switch (reduction.op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg: acc = acc + x; break;
      case ReduceOp::kProd: acc = acc * x; break;
      case ReduceOp::kMin:
        if (std::isnan(x) || x < acc) acc = x;
        break;
      case ReduceOp::kMax:
        if (std::isnan(x) || x > acc) acc = x;
        break;
      default: break;
    }
  }
  return std::isnan(acc) ? std::numeric_limits<Acc>::quiet_NaN() : acc;
}

template <class T>
T fold_integers(const Reduction& reduction, const std::vector<Bytes>& sources, int64_t i) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  T acc = element<T>(sources[0], i);
  for (size_t k = 1; k < sources.size(); ++k) {
    const T x = element<T>(sources[k], i);
    switch (reduction.op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        acc = static_cast<T>(static_cast<uint64_t>(acc) + static_cast<uint64_t>(x));
        break;
      case ReduceOp::kProd:
        acc = static_cast<T>(static_cast<uint64_t>(acc) * static_cast<uint64_t>(x));
        break;
      case ReduceOp::kMin: acc = x < acc ? x : acc; break;
      case ReduceOp::kMax: acc = x > acc ? x : acc; break;
      case ReduceOp::kBand: acc = static_cast<T>(acc & x); break;
      case ReduceOp::kBor: acc = static_cast<T>(acc | x); break;
      case ReduceOp::kBxor: acc = static_cast<T>(acc ^ x); break;
      case ReduceOp::kCustom: break;
    }
  }
  if (reduction.op != ReduceOp::kAvg) return acc;
  return static_cast<T>(static_cast<Wide>(acc) / static_cast<Wide>(reduction.divisor));
}

/// Truth values, 0 and 1, as their bits.
inline uint8_t fold_bools(Reduction reduction, const std::vector<Bytes>& sources, int64_t i) {
  if (reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kMax) {
    reduction.op = ReduceOp::kBor;
  } else if (reduction.op == ReduceOp::kProd || reduction.op == ReduceOp::kMin) {
    reduction.op = ReduceOp::kBand;
  }
  return fold_integers<uint8_t>(reduction, sources, i);
}

inline void reduce_element(const Reduction& reduction, const std::vector<Bytes>& sources, int64_t i,
                           Bytes& out) {
  const int n = static_cast<int>(sources.size());
  const auto halves = [&](const HalfFormat& format) {
    const std::vector<float>& values = decoded(format);
    const float sum = fold_floating<float>(
        reduction, n, [&](int k) { return values[element<uint16_t>(sources[k], i)]; });
    set_element(out, i, encode(sum, format));
  };
  switch (reduction.dtype) {
    case Dtype::kI8: return set_element(out, i, fold_integers<int8_t>(reduction, sources, i));
    case Dtype::kU8: return set_element(out, i, fold_integers<uint8_t>(reduction, sources, i));
    case Dtype::kI32: return set_element(out, i, fold_integers<int32_t>(reduction, sources, i));
    case Dtype::kU32: return set_element(out, i, fold_integers<uint32_t>(reduction, sources, i));
    case Dtype::kI64: return set_element(out, i, fold_integers<int64_t>(reduction, sources, i));
    case Dtype::kU64: return set_element(out, i, fold_integers<uint64_t>(reduction, sources, i));
    case Dtype::kI16: return set_element(out, i, fold_integers<int16_t>(reduction, sources, i));
    case Dtype::kU16: return set_element(out, i, fold_integers<uint16_t>(reduction, sources, i));
    case Dtype::kBool: return set_element(out, i, fold_bools(reduction, sources, i));
    case Dtype::kF8E4M3:
    case Dtype::kF8E5M2: return;
    case Dtype::kF16: return halves(kF16Format);
    case Dtype::kBf16: return halves(kBf16Format);
    case Dtype::kF32:
      return set_element(out, i, fold_floating<float>(reduction, n, [&](int k) {
                           return element<float>(sources[k], i);
                         }));
    case Dtype::kF64:
      return set_element(out, i, fold_floating<double>(reduction, n, [&](int k) {
                           return element<double>(sources[k], i);
                         }));
  }
}

/// The destination's bytes. One source is copied as it is, but for avg.
inline Bytes reduce(const Reduction& reduction, const std::vector<Bytes>& sources, int64_t count) {
  Bytes out(static_cast<size_t>(count * dtype_bytes(reduction.dtype)));
  if (sources.size() == 1 && reduction.op != ReduceOp::kAvg) {
    if (!out.empty()) std::memcpy(out.data(), sources[0].data(), out.size());
    return out;
  }
  for (int64_t i = 0; i < count; ++i) reduce_element(reduction, sources, i, out);
  return out;
}

}  // namespace dt::reference
