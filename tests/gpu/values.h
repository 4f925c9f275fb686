// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/dtype.h"

// Floating-point dtypes by the definitions of IEEE 754, in plain arithmetic on doubles: what the
// kernels' instructions are compared with.
namespace dt::test {

struct FloatFormat {
  int precision;       ///< bits of the significand, the hidden one included
  int least_exponent;  ///< of a normal number 1.x * 2^e; the largest is 1 - least
};

inline FloatFormat float_format(Dtype dtype) {
  if (dtype == Dtype::kF16) return {11, -14};
  if (dtype == Dtype::kBf16) return {8, -126};
  return {24, -126};
}

/// The nearest number of the dtype, of two the even one.
inline double rounded(Dtype dtype, double value) {
  if (dtype == Dtype::kF64 || !std::isfinite(value) || value == 0) return value;
  const FloatFormat format = float_format(dtype);
  int exponent = 0;
  std::frexp(value, &exponent);  // value = 0.1x * 2^exponent
  const int last_bit = std::max(exponent - 1, format.least_exponent) - (format.precision - 1);
  const double result = std::ldexp(std::nearbyint(std::ldexp(value, -last_bit)), last_bit);
  const double most =
      std::ldexp(2 - std::ldexp(1.0, 1 - format.precision), 1 - format.least_exponent);
  if (std::fabs(result) <= most) return std::copysign(result, value);
  return std::copysign(std::numeric_limits<double>::infinity(), value);
}

/// Of a dtype of 16 bits.
inline double decode_half(Dtype dtype, uint16_t bits) {
  const FloatFormat format = float_format(dtype);
  const int fraction_bits = format.precision - 1;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int exponent = (bits & 0x7fff) >> fraction_bits;
  double value = 0;
  if (exponent == 0x7fff >> fraction_bits) {
    value = fraction == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, format.least_exponent - fraction_bits);
  } else {
    value = std::ldexp(fraction + (1 << fraction_bits),
                       exponent - 1 + format.least_exponent - fraction_bits);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

inline double decode(Dtype dtype, const void* from) {
  if (dtype == Dtype::kF64) {
    double value = 0;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  if (dtype == Dtype::kF32) {
    float value = 0;
    std::memcpy(&value, from, sizeof value);
    return static_cast<double>(value);
  }
  uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof bits);
  return decode_half(dtype, bits);
}

/// Of a number that the dtype has, or one that is not finite.
inline void encode(Dtype dtype, double value, void* to) {
  if (dtype == Dtype::kF64) {
    std::memcpy(to, &value, sizeof value);
    return;
  }
  if (dtype == Dtype::kF32) {
    const auto single = static_cast<float>(value);
    std::memcpy(to, &single, sizeof single);
    return;
  }
  const FloatFormat format = float_format(dtype);
  const int fraction_bits = format.precision - 1;
  int bits = 0;
  if (std::isnan(value)) {
    bits = 0x7fff;
  } else if (std::isinf(value)) {
    bits = 0x7fff >> fraction_bits << fraction_bits;
  } else if (value != 0) {
    int exponent = 0;
    std::frexp(value, &exponent);
    const int last_bit = std::max(exponent - 1, format.least_exponent) - fraction_bits;
    // The hidden bit of a normal number is what lifts the exponent from 0 to 1.
    bits = static_cast<int>(std::ldexp(std::fabs(value), -last_bit)) +
           ((last_bit - (format.least_exponent - fraction_bits)) << fraction_bits);
  }
  const auto all = static_cast<uint16_t>(bits | (std::signbit(value) ? 0x8000 : 0));
  std::memcpy(to, &all, sizeof all);
}

/// Equal, zeros by their sign; any NaN equals any other.
inline bool same(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}

/// value * scale as the kernels compute it: in f32 unless one side is f64, then rounded once.
inline double scaled(Dtype from, Dtype to, double value, float scale) {
  if (from == Dtype::kF64 || to == Dtype::kF64) {
    return rounded(to, value * static_cast<double>(scale));
  }
  return rounded(to, static_cast<double>(static_cast<float>(value) * scale));
}

/// Numbers that look random, the same in each run. (Knuth's MMIX generator.)
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return state_ >> 16;
  }

 private:
  uint64_t state_;
};

/// Any value of the dtype: of 16 bits each may come, of more mostly those that the others hold too,
/// and those on the borders between them.
inline double any_value(Dtype dtype, Random* random) {
  if (dtype_bytes(dtype) == 2) {
    return decode_half(dtype, static_cast<uint16_t>(random->next()));
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kSpecial[] = {0.0,
                                 -0.0,
                                 kInfinity,
                                 -kInfinity,
                                 std::numeric_limits<double>::quiet_NaN(),
                                 65504.0,
                                 65519.999,
                                 65520.0,
                                 0x1p-24,
                                 0x1p-25,
                                 0x1.8p-25,
                                 0x1p-149,
                                 0x1p-150,
                                 0x1.fffffep127,
                                 0x1.ffp127,
                                 1.0 + 0x1p-11,
                                 1.0 + 0x1p-8,
                                 1.0 + 0x1p-8 + 0x1p-40};
  const uint64_t choice = random->next();
  if (choice % 8 == 0) return rounded(dtype, kSpecial[choice / 8 % std::size(kSpecial)]);
  const double fraction = static_cast<double>(random->next() % (1U << 30)) / (1U << 29) - 1;
  return rounded(dtype, std::ldexp(fraction, static_cast<int>(random->next() % 48) - 28));
}

}  // namespace dt::test
