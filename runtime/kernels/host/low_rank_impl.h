// SPDX-License-Identifier: Apache-2.0
// The loops of low_rank.cc. For isa_*.cc only, under the rules of isa.h.
#pragma once

#include "kernels/host/cast_impl.h"

namespace dt::kernels {
namespace {

DT_INLINE float dot_here(const float* a, const float* b, int64_t count) {
  constexpr int64_t kRegisters = kSums / kLanes;
  F32s sums[kRegisters] = {};
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
#pragma GCC unroll 4
    for (int64_t k = 0; k < kRegisters; ++k) {
      const int64_t at = i + k * kLanes;
      sums[k] += load_vector<F32s>(reinterpret_cast<const Byte*>(a + at)) *
                 load_vector<F32s>(reinterpret_cast<const Byte*>(b + at));
    }
  }
  float lanes[kSums];
  __builtin_memcpy(lanes, sums, sizeof(sums));
  for (int64_t k = 0; i < count; ++i, ++k) lanes[k] += a[i] * b[i];
  float total = 0;
  for (const float lane : lanes) total += lane;
  return total;
}

DT_INLINE void add_scaled_here(float factor, const float* __restrict from, float* __restrict to,
                               int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

}  // namespace
}  // namespace dt::kernels
