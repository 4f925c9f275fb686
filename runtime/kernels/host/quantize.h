// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dt::kernels {

/// f32 elements in few bits: blocks of kQuantBlock elements, each its scale in f32, then the
/// elements in 8 or 4 bits. A block's largest magnitude has all bits set; what is rounded is
/// rounded to the nearest. A block with a NaN or an infinity is NaN throughout when it is read.
inline constexpr int64_t kQuantBlock = 64;

/// Of `blocks` blocks. @param bits 8 or 4
constexpr int64_t quantized_bytes(int64_t blocks, int bits) {
  return blocks * (static_cast<int64_t>(sizeof(float)) + kQuantBlock * bits / 8);
}

/// `count` elements; the rest of the last block is zeros. @param to any alignment
void quantize(int bits, const float* from, int64_t count, void* to);

/// `count` elements times `factor`, added to what is there or put in its place.
void dequantize(int bits, const void* from, int64_t count, float factor, bool add, float* to);

}  // namespace dt::kernels
