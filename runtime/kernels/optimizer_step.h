// SPDX-License-Identifier: Apache-2.0
// Also for the files of isa.h: structs alone, no inline functions.
#pragma once

#include <cstdint>

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

/// What decides on a GPU whether a step happens: the norms of gradients of the latest steps, which
/// the host does not know yet. A step whose norm is not finite did not happen.
struct StepGuard {
  static constexpr int kSlots = 8;

  const float* norms = nullptr;  ///< [kSlots] on the device; null: the step happens
  uint32_t own = 0;              ///< the slot of this step
  uint32_t earlier = 0;          ///< a bit for each slot of the earlier steps that matter
};

}  // namespace dt::kernels
