// SPDX-License-Identifier: Apache-2.0
// Steps of AdamW and SGD: the bits of a plain loop, in every instruction set.
#include "kernels/host/optimize.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

using dt::Dtype;
using dt::kernels::AdamWStep;
using dt::kernels::Isa;
using dt::kernels::SgdStep;

namespace {

constexpr Isa kEveryIsa[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512};
constexpr int64_t kCounts[] = {0, 1, 3, 15, 16, 17, 100, 1027};

template <class T>
std::vector<T> numbers(int64_t count, unsigned seed, bool positive = false) {
  std::vector<T> values;
  std::mt19937 random(seed);
  for (int64_t i = 0; i < count; ++i) {
    const T value =
        std::ldexp(static_cast<T>(random() % 8192) - 4096, static_cast<int>(random() % 40) - 36);
    values.push_back(positive ? std::abs(value) : value);
  }
  return values;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T>
void check_adamw(Dtype dtype) {
  const AdamWStep step = {0.1, 0.999, 0.001, 0.9999, 0.003, 1.7, 1e-8};
  for (const Isa isa : kEveryIsa) {
    for (const int64_t count : kCounts) {
      auto param = numbers<T>(count, 1);
      const auto gradient = numbers<T>(count, 2);
      auto first = numbers<T>(count, 3);
      auto second = numbers<T>(count, 4, true);
      auto [param_wanted, first_wanted, second_wanted] = std::tuple(param, first, second);
      for (size_t i = 0; i < param.size(); ++i) {
        const T g = gradient[i];
        const volatile T m =  // rounded here: no fused multiplication and addition
            static_cast<T>(step.first_share) * (g - first[i]);
        first_wanted[i] = first[i] + m;
        const volatile T square = g * g;
        const volatile T kept = static_cast<T>(step.second_kept) * second[i];
        const volatile T new_part = static_cast<T>(step.second_share) * square;
        second_wanted[i] = kept + new_part;
        const volatile T root = static_cast<T>(step.unbias) * std::sqrt(second_wanted[i]);
        const volatile T decayed = static_cast<T>(step.kept) * param[i];
        const volatile T moved =
            static_cast<T>(step.rate) * (first_wanted[i] / (root + static_cast<T>(step.epsilon)));
        param_wanted[i] = decayed - moved;
      }
      dt::kernels::adamw_with(isa, dtype, step,
                              {param.data(), gradient.data(), first.data(), second.data(), count});
      CHECK(same_bits(param, param_wanted));
      CHECK(same_bits(first, first_wanted));
      CHECK(same_bits(second, second_wanted));
    }
  }
}

template <class T>
void check_sgd(Dtype dtype) {
  for (const int form : {0, 1, 2}) {  // without a momentum, with one, Nesterov's
    const SgdStep step = {0.01, 0.9, 0.7, 0.003, form == 2};
    for (const Isa isa : kEveryIsa) {
      for (const int64_t count : kCounts) {
        auto param = numbers<T>(count, 1);
        const auto gradient = numbers<T>(count, 2);
        auto momentum = numbers<T>(count, 3);
        auto [param_wanted, momentum_wanted] = std::tuple(param, momentum);
        for (size_t i = 0; i < param.size(); ++i) {
          const volatile T decayed = static_cast<T>(step.decay) * param[i];
          const T g = gradient[i] + decayed;
          T direction = g;
          if (form > 0) {
            const volatile T kept = static_cast<T>(step.momentum_kept) * momentum[i];
            const volatile T share = static_cast<T>(step.share) * g;
            momentum_wanted[i] = kept + share;
            direction = momentum_wanted[i];
          }
          if (form == 2) {
            const volatile T ahead = static_cast<T>(step.momentum_kept) * momentum_wanted[i];
            direction = g + ahead;
          }
          const volatile T moved = static_cast<T>(step.rate) * direction;
          param_wanted[i] = param[i] - moved;
        }
        dt::kernels::sgd_with(
            isa, dtype, step,
            {param.data(), gradient.data(), form == 0 ? nullptr : momentum.data(), count});
        CHECK(same_bits(param, param_wanted));
        CHECK(same_bits(momentum, momentum_wanted));
      }
    }
  }
}

}  // namespace

TEST_CASE("adamw: the bits of a plain loop in every instruction set") {
  check_adamw<float>(Dtype::kF32);
  check_adamw<double>(Dtype::kF64);
}

TEST_CASE("sgd: the bits of a plain loop in every instruction set") {
  check_sgd<float>(Dtype::kF32);
  check_sgd<double>(Dtype::kF64);
}

TEST_CASE("optimizers: other dtypes are left as they are") {
  std::vector<uint16_t> param = {1, 2, 3};
  const std::vector<uint16_t> before = param;
  std::vector<uint16_t> others(3, 9);
  dt::kernels::adamw(Dtype::kBf16, {0.1, 0.9, 0.1, 0.9, 1, 1, 1},
                     {param.data(), others.data(), others.data(), others.data(), 3});
  dt::kernels::sgd(Dtype::kI32, {0, 0.9, 1, 1, false}, {param.data(), others.data(), nullptr, 1});
  CHECK(param == before);
}
