// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace fashion {

enum class OptimizerKind : uint32_t { kSgd = 0, kAdamW = 1 };

const char* optimizer_name(OptimizerKind kind);
double default_learning_rate(OptimizerKind kind);

/// Rises over the first steps, then follows half a cosine down to zero at `total_steps`.
double learning_rate_at(double peak, int64_t step, int64_t total_steps);

/// Updates parameters in place. The arithmetic is element by element and not contracted, so equal
/// gradients give equal parameters on every rank, also on processors of different age.
class Optimizer {
 public:
  Optimizer(OptimizerKind kind, int64_t parameter_count);

  /// Of parameters [offset, offset + count) at step `step`, which counts from 0.
  void update(int64_t step, double learning_rate, int64_t offset, int64_t count,
              const float* gradient, float* parameters);

  OptimizerKind kind() const { return kind_; }
  /// Momentum, for AdamW followed by the second moment: what a checkpoint keeps.
  std::vector<float>& state() { return state_; }

 private:
  const OptimizerKind kind_;
  const int64_t parameter_count_;
  std::vector<float> state_;
};

}  // namespace fashion
