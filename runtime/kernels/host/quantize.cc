// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace dt::kernels {
namespace {

constexpr float largest_of(int bits) { return bits == 8 ? 127.0F : 7.0F; }
constexpr int kZeroOf4 = 8;  // what is added, so that four bits hold no sign

constexpr uint32_t kMagnitudeBits = 0x7fffffff;
constexpr uint32_t kInfinityBits = 0x7f800000;
/// Added to a float of less than 2^22, this rounds it to the nearest integer, whose bits come last.
constexpr float kRounds = 12582912.0F;  // 1.5 * 2^23

uint32_t bits_of(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

/// The largest magnitude of a whole block; NaN if the block has a NaN or an infinity. Compares bits
/// as integers, which have the same order as the magnitudes and which compilers vectorise.
float largest_magnitude(const float* block) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < kQuantBlock; ++i) {
    largest = std::max(largest, bits_of(block[i]) & kMagnitudeBits);
  }
  float result = std::nanf("");
  if (largest < kInfinityBits) std::memcpy(&result, &largest, sizeof result);
  return result;
}

}  // namespace

void quantize(int bits, const float* from, int64_t count, void* to) {
  auto* out = static_cast<unsigned char*>(to);
  for (int64_t begin = 0; begin < count; begin += kQuantBlock) {
    const int64_t here = std::min(kQuantBlock, count - begin);
    const float* block = from + begin;
    float padded[kQuantBlock] = {};
    if (here < kQuantBlock) {
      std::copy(block, block + here, padded);
      block = padded;
    }
    const float largest = largest_magnitude(block);
    const float scale = largest / largest_of(bits);
    // Of magnitudes whose scale is too small for a float, nothing is left.
    const bool is_zero = !(scale > 0) || !(scale >= 1.17549435e-38F);
    const float inverse = is_zero ? 0 : 1 / scale;
    const float kept = std::isnan(largest) ? largest : is_zero ? 0 : scale;
    std::memcpy(out, &kept, sizeof kept);
    out += sizeof kept;
    signed char values[kQuantBlock] = {};
    if (!is_zero) {
      for (int64_t i = 0; i < kQuantBlock; ++i) {
        values[i] = static_cast<signed char>(bits_of(block[i] * inverse + kRounds));
      }
    }
    if (bits == 8) {
      std::memcpy(out, values, kQuantBlock);
      out += kQuantBlock;
      continue;
    }
    for (int64_t i = 0; i < kQuantBlock; i += 2) {
      *out++ = static_cast<unsigned char>((values[i] + kZeroOf4) | (values[i + 1] + kZeroOf4) << 4);
    }
  }
}

void dequantize(int bits, const void* from, int64_t count, float factor, bool add, float* to) {
  const auto* in = static_cast<const unsigned char*>(from);
  for (int64_t begin = 0; begin < count; begin += kQuantBlock) {
    const int64_t here = std::min(kQuantBlock, count - begin);
    float scale = 0;
    std::memcpy(&scale, in, sizeof scale);
    in += sizeof scale;
    float values[kQuantBlock];
    if (bits == 8) {
      for (int64_t i = 0; i < kQuantBlock; ++i) values[i] = static_cast<signed char>(in[i]);
      in += kQuantBlock;
    } else {
      for (int64_t i = 0; i < kQuantBlock; i += 2, ++in) {
        values[i] = static_cast<float>((*in & 15) - kZeroOf4);
        values[i + 1] = static_cast<float>((*in >> 4) - kZeroOf4);
      }
    }
    const float times = scale * factor;
    float* const out = to + begin;
    for (int64_t i = 0; i < kQuantBlock; ++i) values[i] *= times;
    if (!add) {
      std::copy(values, values + here, out);
    } else if (here == kQuantBlock) {
      for (int64_t i = 0; i < kQuantBlock; ++i) out[i] += values[i];
    } else {
      for (int64_t i = 0; i < here; ++i) out[i] += values[i];
    }
  }
}

}  // namespace dt::kernels
