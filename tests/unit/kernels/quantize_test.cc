// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/quantize.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

using dt::kernels::dequantize;
using dt::kernels::kQuantBlock;
using dt::kernels::quantize;
using dt::kernels::quantized_bytes;

namespace {

std::vector<float> there_and_back(int bits, const std::vector<float>& values) {
  const auto count = static_cast<int64_t>(values.size());
  const int64_t blocks = (count + kQuantBlock - 1) / kQuantBlock;
  std::vector<char> packed(static_cast<size_t>(quantized_bytes(blocks, bits)) + 1, 'x');
  quantize(bits, values.data(), count, packed.data());
  CHECK(packed.back() == 'x');
  std::vector<float> result(values.size() + 1, -77);
  dequantize(bits, packed.data(), count, 1, false, result.data());
  CHECK(result.back() == -77);
  result.pop_back();
  return result;
}

}  // namespace

TEST_CASE("quantized elements are within half a step of what they were") {
  std::mt19937 random(3);
  for (const int bits : {8, 4}) {
    for (const size_t count : {0, 1, 2, 63, 64, 65, 1000}) {
      for (const float size : {1.0F, 1e-30F, 1e30F}) {
        CAPTURE(bits);
        CAPTURE(count);
        CAPTURE(size);
        std::vector<float> values;
        for (size_t i = 0; i < count; ++i) {
          values.push_back(size * (static_cast<float>(random() % 2001) / 1000 - 1));
        }
        const std::vector<float> result = there_and_back(bits, values);
        for (size_t i = 0; i < count; ++i) {
          const float step = size / (bits == 8 ? 127.0F : 7.0F);
          CHECK(std::abs(result[i] - values[i]) <= 0.501F * step);
        }
      }
    }
  }
}

TEST_CASE("the largest magnitude of a block comes back, and so does zero") {
  for (const int bits : {8, 4}) {
    std::vector<float> values(130);
    values[7] = -3;
    values[8] = 3;
    const std::vector<float> result = there_and_back(bits, values);
    CHECK(std::abs(result[7] + 3) < 1e-6F);
    CHECK(std::abs(result[8] - 3) < 1e-6F);
    CHECK(result[9] == 0);
    CHECK(result[129] == 0);
  }
}

TEST_CASE("a block with what is not finite is not a number, and no other block is") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const int bits : {8, 4}) {
    for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
      std::vector<float> values(3 * kQuantBlock, 1);
      values[70] = bad;
      const std::vector<float> result = there_and_back(bits, values);
      CHECK(result[0] == 1);
      CHECK(std::isnan(result[64]));
      CHECK(std::isnan(result[70]));
      CHECK(result[128] == 1);
    }
    // The smallest and the largest floats that there are.
    for (const float edge : {1e-45F, 1e-38F, 3.4e38F}) {
      const std::vector<float> result = there_and_back(bits, {edge, -edge});
      CHECK(std::isfinite(result[0]));
      CHECK(std::abs(result[0] - edge) <= edge);
      CHECK(result[0] == -result[1]);
    }
  }
}

TEST_CASE("quantized elements are scaled and added") {
  for (const int bits : {8, 4}) {
    const std::vector<float> values = {7, -7, 1};
    std::vector<char> packed(static_cast<size_t>(quantized_bytes(1, bits)));
    quantize(bits, values.data(), 3, packed.data());
    std::vector<float> sum = {1, 1, 1};
    dequantize(bits, packed.data(), 3, 0.5F, true, sum.data());
    CHECK(std::abs(sum[0] - 4.5F) < 1e-5F);
    CHECK(std::abs(sum[1] + 2.5F) < 1e-5F);
    CHECK(std::abs(sum[2] - 1.5F) < 0.05F);
  }
}
