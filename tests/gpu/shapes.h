// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace dt::test {

/// Elements of each parameter of a model, in the order in which PyTorch lists them.
using Shapes = std::vector<int64_t>;

/// ResNet-50 for ImageNet, as torchvision's resnet50: 161 tensors, 25,557,032 parameters.
inline Shapes resnet50() {
  Shapes shapes;
  const auto convolution = [&](int64_t from, int64_t to, int64_t kernel) {
    shapes.push_back(to * from * kernel * kernel);
    shapes.insert(shapes.end(), 2, to);  // weight and bias of the normalisation behind it
  };
  convolution(3, 64, 7);
  int64_t channels = 64;
  const int64_t blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const int64_t width = int64_t{64} << stage;
    for (int64_t block = 0; block < blocks[stage]; ++block) {
      convolution(channels, width, 1);
      convolution(width, width, 3);
      convolution(width, 4 * width, 1);
      if (block == 0) convolution(channels, 4 * width, 1);  // the way around the first block
      channels = 4 * width;
    }
  }
  shapes.push_back(channels * 1000);
  shapes.push_back(1000);
  return shapes;
}

/// GPT-2 small, the output layer tied to the embedding: 148 tensors, 124,439,808 parameters.
inline Shapes gpt2() {
  constexpr int64_t kWidth = 768;
  Shapes shapes = {50257 * kWidth, 1024 * kWidth};  // tokens, positions
  const auto norm = [&] { shapes.insert(shapes.end(), 2, kWidth); };
  const auto linear = [&](int64_t from, int64_t to) {
    shapes.push_back(from * to);
    shapes.push_back(to);
  };
  for (int layer = 0; layer < 12; ++layer) {
    norm();
    linear(kWidth, 3 * kWidth);
    linear(kWidth, kWidth);
    norm();
    linear(kWidth, 4 * kWidth);
    linear(4 * kWidth, kWidth);
  }
  norm();
  return shapes;
}

}  // namespace dt::test
