// SPDX-License-Identifier: Apache-2.0
// Steps of optimizers, as plain loops that the compiler makes vectors of. For isa_*.cc only, under
// the rules of isa.h.
#pragma once

#include "kernels/host/optimize.h"
#include "kernels/host/vectors.h"

namespace dt::kernels {
namespace {

DT_INLINE float square_root(float x) { return __builtin_sqrtf(x); }
DT_INLINE double square_root(double x) { return __builtin_sqrt(x); }

template <class T>
DT_INLINE void adamw_loop(const AdamWStep& step, const AdamWArrays& arrays) {
  const auto first_share = static_cast<T>(step.first_share);
  const auto second_kept = static_cast<T>(step.second_kept);
  const auto second_share = static_cast<T>(step.second_share);
  const auto kept = static_cast<T>(step.kept);
  const auto rate = static_cast<T>(step.rate);
  const auto unbias = static_cast<T>(step.unbias);
  const auto epsilon = static_cast<T>(step.epsilon);
  auto* __restrict param = static_cast<T*>(arrays.param);
  const auto* __restrict gradient = static_cast<const T*>(arrays.gradient);
  auto* __restrict first = static_cast<T*>(arrays.first);
  auto* __restrict second = static_cast<T*>(arrays.second);
  for (int64_t i = 0; i < arrays.count; ++i) {
    const T g = gradient[i];
    const T m = first[i] + first_share * (g - first[i]);
    const T v = second_kept * second[i] + second_share * (g * g);
    first[i] = m;
    second[i] = v;
    param[i] = kept * param[i] - rate * (m / (unbias * square_root(v) + epsilon));
  }
}

template <class T>
DT_INLINE void sgd_loop(const SgdStep& step, const SgdArrays& arrays) {
  const auto decay = static_cast<T>(step.decay);
  const auto momentum_kept = static_cast<T>(step.momentum_kept);
  const auto share = static_cast<T>(step.share);
  const auto rate = static_cast<T>(step.rate);
  auto* __restrict param = static_cast<T*>(arrays.param);
  const auto* __restrict gradient = static_cast<const T*>(arrays.gradient);
  auto* __restrict momentum = static_cast<T*>(arrays.momentum);
  if (momentum == nullptr) {
    for (int64_t i = 0; i < arrays.count; ++i) {
      param[i] -= rate * (gradient[i] + decay * param[i]);
    }
  } else if (step.nesterov) {
    for (int64_t i = 0; i < arrays.count; ++i) {
      const T g = gradient[i] + decay * param[i];
      momentum[i] = momentum_kept * momentum[i] + share * g;
      param[i] -= rate * (g + momentum_kept * momentum[i]);
    }
  } else {
    for (int64_t i = 0; i < arrays.count; ++i) {
      const T g = gradient[i] + decay * param[i];
      momentum[i] = momentum_kept * momentum[i] + share * g;
      param[i] -= rate * momentum[i];
    }
  }
}

DT_INLINE void adamw_here(Dtype dtype, const AdamWStep& step, const AdamWArrays& arrays) {
  if (dtype == Dtype::kF32) adamw_loop<float>(step, arrays);
  if (dtype == Dtype::kF64) adamw_loop<double>(step, arrays);
}

DT_INLINE void sgd_here(Dtype dtype, const SgdStep& step, const SgdArrays& arrays) {
  if (dtype == Dtype::kF32) sgd_loop<float>(step, arrays);
  if (dtype == Dtype::kF64) sgd_loop<double>(step, arrays);
}

}  // namespace
}  // namespace dt::kernels
