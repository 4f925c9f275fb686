// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dt::kernels {

// Quantized sums whose rounding is not lost: what a rank's rounding leaves out is kept, and added
// to what it sends in the next step (Seide et al. 2014). In 8 bits; arrays begin at a block. A
// block that is not finite leaves its errors as they are, and is NaN in the result.

/// Writes the blocks of from * factor + errors, and keeps what these lack in `errors`.
void quantize_with_errors(const float* from, int64_t count, float factor, float* errors, void* to);

/// Sums the blocks of `ranks` ranks, times `factor`, and writes them as blocks to `to`. All ranks
/// receive this rounding. Only this rank adds it to its errors, divided by `factor`, because what
/// it sends is multiplied by `factor` again.
/// @param errors null: drops the rounding. A rank that sends zeros never sends its errors, so they
///               would grow in each step
/// @param parts  the blocks of rank 0; those of the next are `stride` bytes behind
void sum_with_errors(const void* parts, int64_t stride, int32_t ranks, int64_t count, float factor,
                     float* errors, void* to);

}  // namespace dt::kernels
