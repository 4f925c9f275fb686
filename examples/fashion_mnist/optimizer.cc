// SPDX-License-Identifier: Apache-2.0
#include "optimizer.h"

#include <algorithm>
#include <cmath>

namespace fashion {
namespace {

// The rate rises with the square of the step. A full rate from the start, or a straight rise, lets
// rounding differences of 1e-7 between numbers of ranks grow to 1e-2 of the loss in 100 steps.
constexpr int64_t kWarmupSteps = 300;
constexpr float kMomentum = 0.9f;
constexpr float kSgdDecay = 1e-4f;
constexpr double kBeta1 = 0.9, kBeta2 = 0.999;  // as Loshchilov and Hutter, ICLR 2019
constexpr float kEpsilon = 1e-8f;
constexpr float kAdamDecay = 1e-2f;

void update_sgd(float rate, int64_t count, const float* __restrict gradient,
                float* __restrict velocity, float* __restrict parameters) {
  for (int64_t i = 0; i < count; ++i) {
    velocity[i] = kMomentum * velocity[i] + (gradient[i] + kSgdDecay * parameters[i]);
    parameters[i] -= rate * velocity[i];
  }
}

void update_adamw(int64_t step, double rate, int64_t count, const float* __restrict gradient,
                  float* __restrict first, float* __restrict second, float* __restrict parameters) {
  const auto steps = static_cast<double>(step + 1);
  const auto beta1 = static_cast<float>(kBeta1), beta2 = static_cast<float>(kBeta2);
  const auto scale = static_cast<float>(rate / (1 - std::pow(kBeta1, steps)));
  const auto correction = static_cast<float>(1 / std::sqrt(1 - std::pow(kBeta2, steps)));
  const float keep = 1 - static_cast<float>(rate) * kAdamDecay;
  for (int64_t i = 0; i < count; ++i) {
    first[i] = beta1 * first[i] + (1 - beta1) * gradient[i];
    second[i] = beta2 * second[i] + (1 - beta2) * (gradient[i] * gradient[i]);
    parameters[i] =
        keep * parameters[i] - scale * (first[i] / (std::sqrt(second[i]) * correction + kEpsilon));
  }
}

}  // namespace

const char* optimizer_name(OptimizerKind kind) {
  return kind == OptimizerKind::kSgd ? "sgd" : "adamw";
}

double default_learning_rate(OptimizerKind kind) {
  return kind == OptimizerKind::kSgd ? 0.05 : 0.002;
}

double learning_rate_at(double peak, int64_t step, int64_t total_steps) {
  const double pi = 3.14159265358979323846;
  const double warmup = std::min(1.0, static_cast<double>(step + 1) / kWarmupSteps);
  const double done = std::min(
      1.0, static_cast<double>(step) / static_cast<double>(std::max<int64_t>(total_steps, 1)));
  return peak * warmup * warmup * 0.5 * (1 + std::cos(pi * done));
}

Optimizer::Optimizer(OptimizerKind kind, int64_t parameter_count)
    : kind_(kind), parameter_count_(parameter_count) {
  state_.resize(static_cast<size_t>(parameter_count) * (kind == OptimizerKind::kSgd ? 1 : 2));
}

void Optimizer::update(int64_t step, double learning_rate, int64_t offset, int64_t count,
                       const float* gradient, float* parameters) {
  float* first = state_.data() + offset;
  if (kind_ == OptimizerKind::kSgd) {
    update_sgd(static_cast<float>(learning_rate), count, gradient, first, parameters);
  } else {
    update_adamw(step, learning_rate, count, gradient, first, first + parameter_count_, parameters);
  }
}

}  // namespace fashion
