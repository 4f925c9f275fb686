// SPDX-License-Identifier: Apache-2.0
// Elements of all dtypes for the fakes, written without the code under test.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace dt::test {

struct F16 {
  uint16_t bits = 0;
};
struct Bf16 {
  uint16_t bits = 0;
};

inline float decoded(F16 half) {
  const int fraction = half.bits & 0x3ff;
  const int exponent = half.bits >> 10 & 0x1f;
  float magnitude;
  if (exponent == 0x1f) {
    magnitude = fraction != 0 ? NAN : INFINITY;
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(fraction + 0x400), exponent - 25);
  }
  return (half.bits & 0x8000) != 0 ? -magnitude : magnitude;
}

inline float decoded(Bf16 half) { return std::bit_cast<float>(uint32_t{half.bits} << 16); }

/// To nearest, ties to even.
inline F16 encoded_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  uint32_t magnitude = bits & 0x7fffffff;
  uint32_t half;
  if (magnitude > 0x7f800000) {
    half = 0x7e00;
  } else if (magnitude >= 0x477ff000) {  // 65520: half way beyond the largest
    half = 0x7c00;
  } else if (magnitude < 0x38800000) {  // 2^-14: subnormal, counted in units of 2^-24
    half = static_cast<uint32_t>(std::nearbyint(std::fabs(value) * 16777216.0f));
  } else {
    magnitude += 0xfff + (magnitude >> 13 & 1);
    half = (magnitude - 0x38000000) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}

inline Bf16 encoded_bf16(float value) {
  if (std::isnan(value)) return {0x7fc0};
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

/// The type in which elements of T are computed with.
template <class T>
using Arithmetic = std::conditional_t<std::is_same_v<T, F16> || std::is_same_v<T, Bf16>, float, T>;

template <class T>
Arithmetic<T> load(const void* data, int64_t index) {
  T element;
  std::memcpy(&element, static_cast<const char*>(data) + index * int64_t{sizeof(T)}, sizeof(T));
  if constexpr (std::is_arithmetic_v<T>) {
    return element;
  } else {
    return decoded(element);
  }
}

template <class T>
void store(void* data, int64_t index, Arithmetic<T> value) {
  T element;
  if constexpr (std::is_same_v<T, F16>) {
    element = encoded_f16(value);
  } else if constexpr (std::is_same_v<T, Bf16>) {
    element = encoded_bf16(value);
  } else {
    element = value;
  }
  std::memcpy(static_cast<char*>(data) + index * int64_t{sizeof(T)}, &element, sizeof(T));
}

}  // namespace dt::test
