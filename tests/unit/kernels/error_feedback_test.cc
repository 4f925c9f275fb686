// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/error_feedback.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/host/quantize.h"

using dt::kernels::dequantize;
using dt::kernels::kQuantBlock;
using dt::kernels::quantize_with_errors;
using dt::kernels::quantized_bytes;
using dt::kernels::sum_with_errors;

namespace {

using Floats = std::vector<float>;

/// Element by element: what 8 bits keep of it.
Floats rounded(const Floats& values) {
  Floats result(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t begin = i / 64 * 64;
    float largest = 0;
    for (size_t k = begin; k < std::min(begin + 64, values.size()); ++k) {
      largest = std::max(largest, std::fabs(values[k]));
    }
    const float scale = largest / 127;
    result[i] = scale > 0 ? std::nearbyint(values[i] * (1 / scale)) * scale : 0;
  }
  return result;
}

/// What ranks have, and a step of all of them.
class Ranks {
 public:
  Ranks(size_t ranks, size_t count, float factor)
      : errors(ranks, Floats(count)), count_(static_cast<int64_t>(count)), factor_(factor) {}

  Floats step(const std::vector<Floats>& gradients) {
    const int64_t stride = quantized_bytes((count_ + kQuantBlock - 1) / kQuantBlock, 8);
    std::vector<char> parts(static_cast<size_t>(stride) * errors.size());
    std::vector<char> sum(static_cast<size_t>(stride));
    for (size_t r = 0; r < errors.size(); ++r) {
      quantize_with_errors(gradients[r].data(), count_, 1, errors[r].data(),
                           parts.data() + static_cast<int64_t>(r) * stride);
    }
    sum_with_errors(parts.data(), stride, static_cast<int32_t>(errors.size()), count_, factor_,
                    errors.back().data(), sum.data());  // the last rank's part
    Floats result(static_cast<size_t>(count_));
    dequantize(8, sum.data(), count_, 1, false, result.data());
    return result;
  }

  std::vector<Floats> errors;

 private:
  int64_t count_;
  float factor_;
};

}  // namespace

TEST_CASE("error feedback: results and errors are those of a plain loop, step after step") {
  std::mt19937 random(7);
  for (const size_t ranks : {1, 2, 4}) {  // whose factors are powers of two: any order is exact
    for (const size_t count : {0, 1, 63, 64, 65, 200}) {
      CAPTURE(ranks);
      CAPTURE(count);
      const float factor = 1 / static_cast<float>(ranks);
      Ranks tested(ranks, count, factor);
      std::vector<Floats> errors(ranks, Floats(count));
      for (int step = 0; step < 5; ++step) {
        std::vector<Floats> gradients(ranks, Floats(count));
        Floats sum(count);
        for (size_t r = 0; r < ranks; ++r) {
          Floats values(count);
          for (size_t i = 0; i < count; ++i) {
            gradients[r][i] = static_cast<float>(random()) / 2147483648.0F - 1;
            values[i] = gradients[r][i] + errors[r][i];
          }
          const Floats sent = rounded(values);
          for (size_t i = 0; i < count; ++i) {
            errors[r][i] = values[i] - sent[i];
            sum[i] += sent[i] * factor;
          }
        }
        const Floats wanted = rounded(sum);
        for (size_t i = 0; i < count; ++i) errors.back()[i] += (sum[i] - wanted[i]) / factor;
        CHECK(tested.step(gradients) == wanted);
        CHECK(tested.errors == errors);
      }
    }
  }
}

TEST_CASE("error feedback: what is not finite makes its block NaN, and leaves its errors") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {infinity, -infinity, std::nanf("")}) {
    Ranks ranks(2, 130, 0.5F);
    std::vector<Floats> gradients(2, Floats(130, 0.3F));
    gradients[0][5] = gradients[0][70] = 1;
    gradients[1][5] = gradients[1][70] = 1;
    (void)ranks.step(gradients);
    const auto before = ranks.errors;
    CHECK(before[0][71] != 0);
    gradients[0][70] = bad;
    const Floats result = ranks.step(gradients);
    for (size_t i = 0; i < result.size(); ++i) CHECK(std::isnan(result[i]) == (i / 64 == 1));
    for (size_t i = 64; i < 128; ++i) CHECK(ranks.errors[0][i] == before[0][i]);
    CHECK(ranks.errors[0][7] != before[0][7]);
    gradients[0][70] = 1;
    for (const float x : ranks.step(gradients)) CHECK(std::isfinite(x));
  }
}

TEST_CASE("error feedback: a sum that overflows is not hidden") {
  Ranks ranks(2, 3, 1);
  const std::vector<Floats> gradients(2, Floats(3, 3e38F));
  CHECK(std::isnan(ranks.step(gradients)[0]));
  for (const Floats& each : ranks.errors) CHECK(std::isfinite(each[0]));
}
