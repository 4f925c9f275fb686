// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dt/dt.h>

#include <cstring>
#include <initializer_list>
#include <random>
#include <string>

namespace dt_test {

/// Draws that depend on nothing but the numbers given.
class Draws {
 public:
  explicit Draws(std::initializer_list<unsigned> numbers) {
    std::seed_seq sequence(numbers);
    random_.seed(sequence);
  }
  int below(int end) { return static_cast<int>(random_() % static_cast<unsigned>(end)); }
  bool one_in(int n) { return below(n) == 0; }
  std::mt19937& engine() { return random_; }

 private:
  std::mt19937 random_;
};

/// Elements in [-0.5, 0.5) that bf16 and f16 have, the same in each run.
inline float draw(int step, int32_t param, int64_t i) {
  uint64_t x = static_cast<uint64_t>(step + 1) << 40 | static_cast<uint64_t>(param) << 20 |
               static_cast<uint64_t>(i);
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  return static_cast<float>(x >> 57) / 128.0F - 0.5F;
}

/// An element of draw() as f16, which has it exactly.
inline uint16_t f16_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t exponent = bits >> 23 & 0xff;
  const uint32_t rest = exponent == 0 ? 0 : (exponent - 112) << 10 | (bits >> 13 & 0x3ff);
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | rest);
}

/// A parameter or a gradient of f16, bf16, f32 or f64, as bytes.
inline std::string array_of(const dt_param& param, int step, int32_t index) {
  std::string bytes(static_cast<size_t>(param.count * dt_dtype_bytes(param.dtype)), '\0');
  for (int64_t i = 0; i < param.count; ++i) {
    const float value = draw(step, index, i);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const auto half = param.dtype == DT_F16 ? f16_of(value) : static_cast<uint16_t>(bits >> 16);
    const auto wide = static_cast<double>(value);
    char* const to = bytes.data() + i * dt_dtype_bytes(param.dtype);
    if (param.dtype == DT_BF16 || param.dtype == DT_F16) std::memcpy(to, &half, sizeof half);
    if (param.dtype == DT_F32) std::memcpy(to, &value, sizeof value);
    if (param.dtype == DT_F64) std::memcpy(to, &wide, sizeof wide);
  }
  return bytes;
}

}  // namespace dt_test
