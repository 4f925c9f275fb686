// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace fashion {

// Activations are stored with the channel last: [image][row][column][channel], so that every inner
// loop runs over channels that lie side by side. All matrices are row-major.

/// A convolution (odd kernel, stride 1, zeros around the image), its bias, ReLU and a 2 x 2
/// maximum.
///
/// The convolution is a matrix product over patches (im2col) of a few images at a time, so that the
/// patches stay in the L2 cache. Only the pooled result and the place of each maximum are kept: the
/// backward pass gathers the patches again, which costs less than reading them back from memory.
class ConvPool {
 public:
  struct Shape {
    int side;          // of the square input, even
    int in_channels;   //
    int out_channels;  //
    int kernel;        // odd
    int out_border;    // zeros that the next layer wants around this one's output
  };

  ConvPool(const Shape& shape, int most_images);

  /// Floats per input image; the border of kernel / 2 zeros is included.
  int64_t input_size() const { return int64_t{padded_} * padded_ * shape_.in_channels; }
  /// Floats per output image, with its border.
  int64_t output_size() const { return int64_t{out_padded_} * out_padded_ * shape_.out_channels; }
  /// Rows of the weight matrix: kernel * kernel * in_channels; its columns are out_channels.
  int patch_size() const { return shape_.kernel * shape_.kernel * shape_.in_channels; }
  int weight_count() const { return patch_size() * shape_.out_channels; }
  int bias_count() const { return shape_.out_channels; }

  /// `out`'s border is left alone: the caller cleared it once.
  void forward(const float* in, const float* weight, const float* bias, int images, float* out);

  /// Writes (does not add) the gradients of weight and bias, and of the input unless null.
  void backward(const float* in, const float* weight, const float* out_gradient, int images,
                float* weight_gradient, float* bias_gradient, float* in_gradient);

 private:
  void gather_patches(const float* in, int images);
  void scatter_patches(int images, float* in_gradient) const;
  void pool(int first, int images, const float* bias, float* out);
  void unpool(int first, int images, const float* out_gradient);

  const Shape shape_;
  const int padded_;              // side of the input with its border
  const int out_padded_;          // side of the output with its border
  const int panel_;               // images whose patches are gathered at once
  std::vector<float> patches_;    // [panel * side * side][patch_size]
  std::vector<float> responses_;  // [panel * side * side][out_channels]
  std::vector<int32_t> winners_;  // which of four won, kNone: cut by ReLU; one per pooled output
};

/// out = in * weight + bias; weight is [in_size][out_size].
void dense_forward(const float* in, const float* weight, const float* bias, int images, int in_size,
                   int out_size, float* out);

/// Writes the gradients of weight and bias.
void dense_backward_weight(const float* in, const float* out_gradient, int images, int in_size,
                           int out_size, float* weight_gradient, float* bias_gradient);

/// Writes the gradient of the input.
void dense_backward_input(const float* weight, const float* out_gradient, int images, int in_size,
                          int out_size, float* in_gradient);

}  // namespace fashion
