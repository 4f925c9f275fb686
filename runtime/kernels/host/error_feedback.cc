// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/error_feedback.h"

#include <algorithm>
#include <cmath>

#include "kernels/host/quantize.h"

namespace dt::kernels {
namespace {

constexpr int kErrorBits = 8;

/// values - (what `block` says of them).
void take_off(const void* block, int64_t count, float* values) {
  dequantize(kErrorBits, block, count, -1, true, values);
}

}  // namespace

void quantize_with_errors(const float* from, int64_t count, float factor, float* errors, void* to) {
  auto* block = static_cast<char*>(to);
  for (int64_t begin = 0; begin < count; begin += kQuantBlock) {
    const int64_t here = std::min(kQuantBlock, count - begin);
    float values[kQuantBlock];
    for (int64_t i = 0; i < here; ++i) values[i] = from[begin + i] * factor + errors[begin + i];
    quantize(kErrorBits, values, here, block);
    take_off(block, here, values);
    if (!std::isnan(values[0])) std::copy(values, values + here, errors + begin);
    block += quantized_bytes(1, kErrorBits);
  }
}

void sum_with_errors(const void* parts, int64_t stride, int32_t ranks, int64_t count, float factor,
                     float* errors, void* to) {
  const auto* in = static_cast<const char*>(parts);
  auto* block = static_cast<char*>(to);
  for (int64_t begin = 0; begin < count; begin += kQuantBlock) {
    const int64_t here = std::min(kQuantBlock, count - begin);
    float values[kQuantBlock];
    for (int32_t rank = 0; rank < ranks; ++rank) {
      dequantize(kErrorBits, in + rank * stride, here, factor, rank > 0, values);
    }
    quantize(kErrorBits, values, here, block);
    take_off(block, here, values);
    for (int64_t i = 0; i < here && errors != nullptr && !std::isnan(values[0]); ++i) {
      errors[begin + i] += values[i] / factor;
    }
    in += quantized_bytes(1, kErrorBits);
    block += quantized_bytes(1, kErrorBits);
  }
}

}  // namespace dt::kernels
