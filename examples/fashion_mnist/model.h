// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "data.h"
#include "layers.h"

namespace fashion {

/// One trainable tensor; its values lie at `offset` in Network::parameters().
struct Parameter {
  const char* name;
  int64_t count;
  int64_t offset;  // elements
};

/// What a forward pass found. Sums, not means: ranks add them up.
struct Score {
  double loss_sum = 0;  // cross entropy, nats
  int64_t correct = 0;
};

/// conv 3x3 -> ReLU -> pool -> conv 3x3 -> ReLU -> pool -> dense -> ReLU -> dense -> softmax.
/// Forward and backward are written by hand; one thread.
class Network {
 public:
  /// A step has the gradients of so many passes, which are added.
  explicit Network(int most_images, int passes = 1);

  /// In order of the forward pass, so gradients become ready from the last to the first.
  const std::vector<Parameter>& layout() const { return layout_; }
  std::vector<float>& parameters() { return parameters_; }

  /// He initialisation, uniform, from its own generator: equal bits on every rank.
  void initialise(uint64_t seed);

  /// Runs dataset images indices[0..images) and keeps what backward() needs.
  Score forward(const Dataset& dataset, const int64_t* indices, int images);

  /// Writes this pass's part of the gradient of the mean loss over all passes into gradients[i] for
  /// parameter i, and calls ready(i) as soon as that one is complete.
  void backward(const std::vector<float*>& gradients, const std::function<void(int)>& ready);

 private:
  const float* value(int parameter) const { return parameters_.data() + layout_[parameter].offset; }
  void load_images(const Dataset& dataset, const int64_t* indices, int images);
  Score softmax(int images);

  ConvPool conv1_;
  ConvPool conv2_;
  std::vector<Parameter> layout_;
  std::vector<float> parameters_;

  const int passes_;
  int images_ = 0;  // of the last forward()
  std::vector<uint8_t> labels_;
  std::vector<float> input_, pooled1_, pooled2_, hidden_, logits_;
  std::vector<float> pooled1_gradient_, pooled2_gradient_, hidden_gradient_, logits_gradient_;
};

}  // namespace fashion
