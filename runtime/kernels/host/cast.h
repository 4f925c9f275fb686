// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/host/reduce.h"

namespace dt::kernels {

/// to[i] = from[i] * scale, cast. Of f16, bf16 and f32 each to each, computed in f32 and rounded
/// once, to nearest even; of f64 to f64. Other dtypes: nothing is written. `to` may be `from` where
/// the dtypes have the same size, and does not overlap it otherwise. Any alignment. A NaN becomes
/// the positive quiet one; every instruction set gives the same bits.
/// @cost one pass.
void cast(Dtype from_dtype, const void* from, Dtype to_dtype, void* to, int64_t count,
          double scale = 1);

/// The sum of the squares in f64, of f16, bf16, f32 or f64; 0 of other dtypes. Added in one order
/// whatever the instruction set, so that ranks get the same bits.
double squared_norm(Dtype dtype, const void* data, int64_t count);

/// The same with a given instruction set, for tests; with the portable one where it is not there.
void cast_with(Isa isa, Dtype from_dtype, const void* from, Dtype to_dtype, void* to, int64_t count,
               double scale);
double squared_norm_with(Isa isa, Dtype dtype, const void* data, int64_t count);

}  // namespace dt::kernels
