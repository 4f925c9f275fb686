// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

#include "base/dtype.h"
#include "kernels/host/reduce.h"

namespace dt::kernels {

/// One step of AdamW (Loshchilov and Hutter 2019), worked out for all elements beforehand:
///   first = first + first_share * (gradient - first)
///   second = second_kept * second + second_share * gradient^2
///   param = kept * param - rate * first / (unbias * sqrt(second) + epsilon)
struct AdamWStep {
  double first_share;
  double second_kept;
  double second_share;
  double kept;
  double rate;
  double unbias;
  double epsilon;
};

/// One step of SGD:
///   gradient = gradient + decay * param
///   momentum = momentum_kept * momentum + share * gradient
///   param = param - rate * (nesterov ? gradient + momentum_kept * momentum : momentum)
/// Without a momentum: param = param - rate * gradient.
struct SgdStep {
  double decay;
  double momentum_kept;
  double share;
  double rate;
  bool nesterov;
};

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
