// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

#include "base/dtype.h"
#include "kernels/host/reduce.h"
#include "kernels/optimizer_step.h"

namespace dt::kernels {

/// What a step reads and writes: `count` elements of each, which do not overlap. Of f32, or of f64.
struct AdamWArrays {
  void* param;
  const void* gradient;
  void* first;   ///< moment
  void* second;  ///< moment
  int64_t count;
};
struct SgdArrays {
  void* param;
  const void* gradient;
  void* momentum;  ///< null: none
  int64_t count;
};

/// Every instruction set gives the same bits, but for those of a NaN; each multiplication and
/// addition is rounded.
/// @param dtype f32 or f64, of all arrays; others: nothing is written.
/// @cost one pass.
void adamw(Dtype dtype, const AdamWStep& step, const AdamWArrays& arrays);
void sgd(Dtype dtype, const SgdStep& step, const SgdArrays& arrays);

/// The same with a given instruction set, for tests; with the portable one where it is not there.
void adamw_with(Isa isa, Dtype dtype, const AdamWStep& step, const AdamWArrays& arrays);
void sgd_with(Isa isa, Dtype dtype, const SgdStep& step, const SgdArrays& arrays);

}  // namespace dt::kernels
