// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace fashion;

namespace {

/// Images and labels from a fixed rule, with structure that a network can learn.
Dataset make_dataset(int count) {
  Dataset dataset;
  for (int image = 0; image < count; ++image) {
    const int label = (image * 7) % kClassCount;
    dataset.labels.push_back(static_cast<uint8_t>(label));
    for (int pixel = 0; pixel < kImagePixels; ++pixel) {
      dataset.pixels.push_back(
          static_cast<uint8_t>((pixel * (label + 3) + image * 31 + pixel / 28 * 17) % 256));
    }
  }
  return dataset;
}

std::vector<int64_t> first_indices(int count) {
  std::vector<int64_t> indices;
  for (int i = 0; i < count; ++i) indices.push_back(i);
  return indices;
}

struct Gradients {
  explicit Gradients(const Network& network) {
    for (const Parameter& parameter : network.layout()) {
      values.emplace_back(static_cast<size_t>(parameter.count), NAN);  // must all be overwritten
    }
    for (auto& value : values) pointers.push_back(value.data());
  }
  std::vector<std::vector<float>> values;
  std::vector<float*> pointers;
};

}  // namespace

TEST_CASE("gradients agree with finite differences in every parameter") {
  constexpr int kImages = 3;
  const Dataset dataset = make_dataset(kImages);
  const std::vector<int64_t> indices = first_indices(kImages);
  Network network(kImages);
  network.initialise(5);
  network.forward(dataset, indices.data(), kImages);
  Gradients gradients(network);
  network.backward(gradients.pointers, [](int) {});

  for (size_t i = 0; i < network.layout().size(); ++i) {
    const Parameter& parameter = network.layout()[i];
    CAPTURE(parameter.name);
    // A few elements each; the step is large enough for float and small enough to cross few kinks.
    double largest = 0, worst = 0;
    for (int probe = 0; probe < 8; ++probe) {
      const int64_t at = (parameter.count - 1) * probe / 7;
      float& value = network.parameters()[static_cast<size_t>(parameter.offset + at)];
      const float kept = value;
      constexpr float kStep = 1e-3f;
      value = kept + kStep;
      const double above = network.forward(dataset, indices.data(), kImages).loss_sum;
      const float moved_up = value;
      value = kept - kStep;
      const double below = network.forward(dataset, indices.data(), kImages).loss_sum;
      const double expected = (above - below) / kImages / static_cast<double>(moved_up - value);
      value = kept;
      const double got = static_cast<double>(gradients.values[i][static_cast<size_t>(at)]);
      REQUIRE(std::isfinite(got));
      largest = std::max(largest, std::fabs(expected));
      worst = std::max(worst, std::fabs(got - expected));
    }
    CHECK(worst <= 0.03 * largest + 2e-4);
  }
}

TEST_CASE("a convolution agrees with a plain loop") {
  const ConvPool::Shape shape = {4, 2, 3, 3, 1};
  ConvPool layer(shape, 2);
  std::vector<float> in(2 * layer.input_size()), weight(layer.weight_count()), bias(3);
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(i % 11) - 5;
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i) - 1;
  const auto input_at = [&](int image, int y, int x, int channel) -> float& {
    return in[static_cast<size_t>(((image * 6 + y + 1) * 6 + x + 1) * 2 + channel)];
  };
  for (int i = 0; i < 2 * 4 * 4 * 2; ++i) {
    input_at(i / 32, i / 8 % 4, i / 2 % 4, i % 2) = static_cast<float>(i * 7 % 13) - 6;
  }
  std::vector<float> out(2 * layer.output_size(), 0.0f);
  layer.forward(in.data(), weight.data(), bias.data(), 2, out.data());

  for (int i = 0; i < 2 * 2 * 2 * 3; ++i) {
    const int image = i / 12, y = i / 6 % 2, x = i / 3 % 2, channel = i % 3;
    float expected = 0;  // ReLU's floor
    for (int corner = 0; corner < 4; ++corner) {
      float sum = bias[channel];
      for (int k = 0; k < 18; ++k) {
        const int row = 2 * y + corner / 2 + k / 6 - 1, column = 2 * x + corner % 2 + k / 2 % 3 - 1;
        if (row < 0 || row > 3 || column < 0 || column > 3) continue;
        sum += input_at(image, row, column, k % 2) * weight[static_cast<size_t>(k * 3 + channel)];
      }
      expected = std::max(expected, sum);
    }
    // Small integers: exact in any order.
    CHECK(out[static_cast<size_t>(((image * 4 + y + 1) * 4 + x + 1) * 3 + channel)] == expected);
  }
}

TEST_CASE("gradients become ready once each, from the last parameter to the first") {
  const Dataset dataset = make_dataset(2);
  const std::vector<int64_t> indices = first_indices(2);
  Network network(2);
  network.initialise(1);
  network.forward(dataset, indices.data(), 2);
  Gradients gradients(network);
  std::vector<int> order;
  network.backward(gradients.pointers, [&](int parameter) {
    for (const float value : gradients.values[static_cast<size_t>(parameter)]) {
      REQUIRE(std::isfinite(value));
    }
    order.push_back(parameter);
  });
  CHECK(order == std::vector<int>{7, 6, 5, 4, 3, 2, 1, 0});
}

TEST_CASE("the gradient of a batch is the mean of its halves") {
  const Dataset dataset = make_dataset(8);
  const std::vector<int64_t> indices = first_indices(8);
  Network network(8);
  network.initialise(3);
  Gradients whole(network), front(network), back(network);
  network.forward(dataset, indices.data(), 8);
  network.backward(whole.pointers, [](int) {});
  network.forward(dataset, indices.data(), 4);
  network.backward(front.pointers, [](int) {});
  network.forward(dataset, indices.data() + 4, 4);
  network.backward(back.pointers, [](int) {});
  for (size_t i = 0; i < whole.values.size(); ++i) {
    for (size_t k = 0; k < whole.values[i].size(); ++k) {
      const float mean = (front.values[i][k] + back.values[i][k]) / 2;
      REQUIRE(std::fabs(whole.values[i][k] - mean) <= 1e-5f * (1 + std::fabs(mean)));
    }
  }
}

TEST_CASE("equal seeds give equal weights") {
  Network one(1), same(4), other(1);
  one.initialise(9);
  same.initialise(9);
  other.initialise(10);
  CHECK(one.parameters() == same.parameters());
  CHECK(one.parameters() != other.parameters());
}
