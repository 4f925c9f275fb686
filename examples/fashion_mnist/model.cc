// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <algorithm>
#include <cmath>

namespace fashion {
namespace {

// side, channels in and out, kernel, border. Twice the channels take three times as long per epoch,
// and reach no more in the same time.
constexpr ConvPool::Shape kConv1 = {kImageSide, 1, 16, 3, 1};
constexpr ConvPool::Shape kConv2 = {kImageSide / 2, 16, 32, 3, 0};
constexpr int kHidden = 128;

// Mean and deviation of the training pixels, of 255.
constexpr float kPixelMean = 0.2860f;
constexpr float kPixelDeviation = 0.3530f;

enum ParameterIndex {
  kConv1Weight,
  kConv1Bias,
  kConv2Weight,
  kConv2Bias,
  kDense1Weight,
  kDense1Bias,
  kDense2Weight,
  kDense2Bias
};

/// splitmix64: Steele, Lea and Flood, OOPSLA 2014.
class Generator {
 public:
  explicit Generator(uint64_t seed) : state_(seed) {}
  /// In [-1, 1), a multiple of 2^-23.
  float next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return static_cast<float>(static_cast<int32_t>(z >> 40) - (1 << 23)) * 0x1p-23f;
  }

 private:
  uint64_t state_;
};

void fill_he(Generator* generator, float* values, int64_t count, int64_t fan_in) {
  const float bound = std::sqrt(6.0f / static_cast<float>(fan_in));
  for (int64_t i = 0; i < count; ++i) values[i] = bound * generator->next();
}

}  // namespace

Network::Network(int most_images, int passes)
    : conv1_(kConv1, most_images), conv2_(kConv2, most_images), passes_(passes) {
  const int64_t features = conv2_.output_size();
  const struct {
    const char* name;
    int64_t count;
  } parameters[] = {{"conv1.weight", conv1_.weight_count()},
                    {"conv1.bias", conv1_.bias_count()},
                    {"conv2.weight", conv2_.weight_count()},
                    {"conv2.bias", conv2_.bias_count()},
                    {"dense1.weight", features * kHidden},
                    {"dense1.bias", kHidden},
                    {"dense2.weight", int64_t{kHidden} * kClassCount},
                    {"dense2.bias", kClassCount}};
  int64_t offset = 0;
  for (const auto& parameter : parameters) {
    layout_.push_back({parameter.name, parameter.count, offset});
    offset += parameter.count;
  }
  parameters_.resize(static_cast<size_t>(offset));

  const auto images = static_cast<size_t>(most_images);
  labels_.resize(images);
  input_.resize(images * conv1_.input_size());  // zero, and its border stays so
  pooled1_.resize(images * conv1_.output_size());
  pooled2_.resize(images * conv2_.output_size());
  hidden_.resize(images * kHidden);
  logits_.resize(images * kClassCount);
  pooled1_gradient_.resize(pooled1_.size());
  pooled2_gradient_.resize(pooled2_.size());
  hidden_gradient_.resize(hidden_.size());
  logits_gradient_.resize(logits_.size());
}

void Network::initialise(uint64_t seed) {
  Generator generator(seed);
  std::fill(parameters_.begin(), parameters_.end(), 0.0f);  // biases
  const struct {
    ParameterIndex index;
    int64_t fan_in;
  } weights[] = {{kConv1Weight, conv1_.patch_size()},
                 {kConv2Weight, conv2_.patch_size()},
                 {kDense1Weight, conv2_.output_size()},
                 // Small, so that the first losses are those of a guess.
                 {kDense2Weight, 100 * kHidden}};
  for (const auto& weight : weights) {
    const Parameter& parameter = layout_[weight.index];
    fill_he(&generator, parameters_.data() + parameter.offset, parameter.count, weight.fan_in);
  }
}

void Network::load_images(const Dataset& dataset, const int64_t* indices, int images) {
  constexpr int kBorder = kConv1.kernel / 2;
  constexpr int kPadded = kImageSide + 2 * kBorder;
  for (int image = 0; image < images; ++image) {
    const uint8_t* from = dataset.image(indices[image]);
    float* to = input_.data() + image * conv1_.input_size();
    for (int y = 0; y < kImageSide; ++y) {
      float* row = to + (y + kBorder) * kPadded + kBorder;
      for (int x = 0; x < kImageSide; ++x) {
        row[x] = (static_cast<float>(from[y * kImageSide + x]) * (1.0f / 255) - kPixelMean) *
                 (1.0f / kPixelDeviation);
      }
    }
    labels_[image] = dataset.labels[static_cast<size_t>(indices[image])];
  }
}

/// Turns logits into the loss and into the gradient of the mean loss, softmax minus one-hot.
Score Network::softmax(int images) {
  Score score;
  const float scale = 1.0f / static_cast<float>(images * passes_);
  for (int image = 0; image < images; ++image) {
    const float* logits = logits_.data() + image * kClassCount;
    float* gradient = logits_gradient_.data() + image * kClassCount;
    const float* best = std::max_element(logits, logits + kClassCount);
    double sum = 0;
    double exponentials[kClassCount];
    for (int i = 0; i < kClassCount; ++i) {
      exponentials[i] = std::exp(static_cast<double>(logits[i] - *best));
      sum += exponentials[i];
    }
    const int label = labels_[image];
    score.loss_sum += std::log(sum) - static_cast<double>(logits[label] - *best);
    score.correct += best - logits == label ? 1 : 0;
    for (int i = 0; i < kClassCount; ++i) {
      gradient[i] = static_cast<float>(exponentials[i] / sum - (i == label ? 1 : 0)) * scale;
    }
  }
  return score;
}

Score Network::forward(const Dataset& dataset, const int64_t* indices, int images) {
  images_ = images;
  load_images(dataset, indices, images);
  conv1_.forward(input_.data(), value(kConv1Weight), value(kConv1Bias), images, pooled1_.data());
  conv2_.forward(pooled1_.data(), value(kConv2Weight), value(kConv2Bias), images, pooled2_.data());
  dense_forward(pooled2_.data(), value(kDense1Weight), value(kDense1Bias), images,
                static_cast<int>(conv2_.output_size()), kHidden, hidden_.data());
  for (int64_t i = 0; i < int64_t{images} * kHidden; ++i) hidden_[i] = std::max(hidden_[i], 0.0f);
  dense_forward(hidden_.data(), value(kDense2Weight), value(kDense2Bias), images, kHidden,
                kClassCount, logits_.data());
  return softmax(images);
}

void Network::backward(const std::vector<float*>& gradients,
                       const std::function<void(int)>& ready) {
  const int features = static_cast<int>(conv2_.output_size());
  dense_backward_weight(hidden_.data(), logits_gradient_.data(), images_, kHidden, kClassCount,
                        gradients[kDense2Weight], gradients[kDense2Bias]);
  ready(kDense2Bias);
  ready(kDense2Weight);

  dense_backward_input(value(kDense2Weight), logits_gradient_.data(), images_, kHidden, kClassCount,
                       hidden_gradient_.data());
  for (int64_t i = 0; i < int64_t{images_} * kHidden; ++i) {
    if (hidden_[i] <= 0) hidden_gradient_[i] = 0;
  }
  dense_backward_weight(pooled2_.data(), hidden_gradient_.data(), images_, features, kHidden,
                        gradients[kDense1Weight], gradients[kDense1Bias]);
  ready(kDense1Bias);
  ready(kDense1Weight);

  dense_backward_input(value(kDense1Weight), hidden_gradient_.data(), images_, features, kHidden,
                       pooled2_gradient_.data());
  conv2_.backward(pooled1_.data(), value(kConv2Weight), pooled2_gradient_.data(), images_,
                  gradients[kConv2Weight], gradients[kConv2Bias], pooled1_gradient_.data());
  ready(kConv2Bias);
  ready(kConv2Weight);

  conv1_.backward(input_.data(), value(kConv1Weight), pooled1_gradient_.data(), images_,
                  gradients[kConv1Weight], gradients[kConv1Bias], nullptr);
  ready(kConv1Bias);
  ready(kConv1Weight);
}

}  // namespace fashion
