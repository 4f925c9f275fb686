// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dt::training {

// Quantized sums whose rounding is not lost: what a rank's rounding leaves out is kept, and added
// to what it sends in the next step (Seide et al. 2014). In 8 bits; arrays begin at a block. A
// block that is not finite leaves its errors as they are, and is NaN in the result.

/// Writes the blocks of from * factor + errors, and keeps what these lack in `errors`.
void quantize_with_errors(const float* from, int64_t count, float factor, float* errors, void* to);

/// Sums the blocks of `ranks` ranks, times `factor`, and writes them as blocks to `to`. This
/// rounding is the same for all ranks, and this rank adds it to its own errors: divided by
/// `factor`, with which all it sends is multiplied.
/// @param errors null: this rank sends zeros for now, so its errors would only grow
/// @param parts  the blocks of rank 0; those of the next are `stride` bytes behind
void sum_with_errors(const void* parts, int64_t stride, int32_t ranks, int64_t count, float factor,
                     float* errors, void* to);

}  // namespace dt::training
