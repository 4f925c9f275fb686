// SPDX-License-Identifier: Apache-2.0
#include "layers.h"

#include <cblas.h>

#include <algorithm>
#include <cstring>

namespace fashion {
namespace {

constexpr int32_t kNone = 4;                 // ReLU cut the winner off: no gradient
constexpr int64_t kPanelBytes = 512 * 1024;  // half of a usual L2 cache

enum class Turn { kNo, kYes };

/// c = a * b + beta * c, [rows x inner] * [inner x columns]; a turned matrix is stored transposed.
void multiply(Turn turn_a, Turn turn_b, int rows, int columns, int inner, const float* a,
              const float* b, float beta, float* c) {
  cblas_sgemm(CblasRowMajor, turn_a == Turn::kYes ? CblasTrans : CblasNoTrans,
              turn_b == Turn::kYes ? CblasTrans : CblasNoTrans, rows, columns, inner, 1.0f, a,
              turn_a == Turn::kYes ? rows : inner, b, turn_b == Turn::kYes ? inner : columns, beta,
              c, columns);
}

void add_rows(const float* __restrict rows, int64_t row_count, int columns,
              float* __restrict sums) {
  for (int64_t row = 0; row < row_count; ++row) {
    const float* values = rows + row * columns;
    for (int column = 0; column < columns; ++column) sums[column] += values[column];
  }
}

// The two functions below are written for the compiler's vectorizer (with -O3 -fno-trapping-math):
// no branches, no pointers that may overlap, one width of integers. As ordinary loops inside their
// callers they took a third of a training step.

/// One row of channels of the pooled output. Bias and ReLU come after the maximum, where there are
/// four times fewer values; both keep the order of values.
void pool_cell(const float* upper, const float* lower, const float* bias, int channels,
               float* __restrict out, int32_t* __restrict winner) {
  for (int c = 0; c < channels; ++c) {
    const float a = upper[c], b = upper[c + channels], d = lower[c], e = lower[c + channels];
    const float up = a < b ? b : a;
    const float low = d < e ? e : d;
    const float value = (up < low ? low : up) + bias[c];
    const int up_index = a < b ? 1 : 0;
    const int low_index = d < e ? 3 : 2;
    const int index = up < low ? low_index : up_index;
    out[c] = 0.0f < value ? value : 0.0f;
    winner[c] = 0.0f < value ? index : kNone;
  }
}

/// Sends each gradient to the one of four inputs that won.
void unpool_cell(const float* __restrict gradient, const int32_t* __restrict winner, int channels,
                 float* __restrict upper, float* __restrict lower) {
  for (int c = 0; c < channels; ++c) {
    const float value = gradient[c];
    const int index = winner[c];
    const float first = index == 0 ? value : 0.0f;
    const float second = index == 1 ? value : 0.0f;
    const float third = index == 2 ? value : 0.0f;
    const float fourth = index == 3 ? value : 0.0f;
    upper[c] = first;
    upper[c + channels] = second;
    lower[c] = third;
    lower[c + channels] = fourth;
  }
}

int choose_panel(const ConvPool::Shape& shape, int most_images) {
  const int64_t floats_per_image =
      int64_t{shape.side} * shape.side *
      (shape.kernel * shape.kernel * shape.in_channels + shape.out_channels);
  const int64_t fitting = kPanelBytes / (floats_per_image * int64_t{sizeof(float)});
  return static_cast<int>(std::clamp<int64_t>(fitting, 1, most_images));
}

}  // namespace

ConvPool::ConvPool(const Shape& shape, int most_images)
    : shape_(shape),
      padded_(shape.side + shape.kernel - 1),
      out_padded_(shape.side / 2 + 2 * shape.out_border),
      panel_(choose_panel(shape, most_images)) {
  const size_t pixels = static_cast<size_t>(panel_) * shape.side * shape.side;
  patches_.resize(pixels * patch_size());
  responses_.resize(pixels * shape.out_channels);
  winners_.resize(static_cast<size_t>(most_images) * shape.side * shape.side / 4 *
                  shape.out_channels);
}

void ConvPool::gather_patches(const float* in, int images) {
  const int strip = shape_.kernel * shape_.in_channels;  // one row of a patch lies side by side
  float* patch = patches_.data();
  for (int image = 0; image < images; ++image) {
    for (int y = 0; y < shape_.side; ++y) {
      for (int x = 0; x < shape_.side; ++x) {
        const float* corner =
            in + image * input_size() + (int64_t{y} * padded_ + x) * shape_.in_channels;
        for (int row = 0; row < shape_.kernel; ++row) {
          std::memcpy(patch, corner + int64_t{row} * padded_ * shape_.in_channels,
                      static_cast<size_t>(strip) * sizeof(float));
          patch += strip;
        }
      }
    }
  }
}

void ConvPool::scatter_patches(int images, float* in_gradient) const {
  const int strip = shape_.kernel * shape_.in_channels;
  std::fill_n(in_gradient, images * input_size(), 0.0f);
  const float* patch = patches_.data();
  for (int image = 0; image < images; ++image) {
    for (int y = 0; y < shape_.side; ++y) {
      for (int x = 0; x < shape_.side; ++x) {
        float* corner =
            in_gradient + image * input_size() + (int64_t{y} * padded_ + x) * shape_.in_channels;
        for (int row = 0; row < shape_.kernel; ++row) {
          float* to = corner + int64_t{row} * padded_ * shape_.in_channels;
          for (int i = 0; i < strip; ++i) to[i] += patch[i];
          patch += strip;
        }
      }
    }
  }
}

void ConvPool::pool(int first, int images, const float* bias, float* out) {
  const int channels = shape_.out_channels;
  const int half = shape_.side / 2;
  const int64_t row_floats = int64_t{shape_.side} * channels;
  int32_t* winner = winners_.data() + int64_t{first} * half * half * channels;
  for (int image = 0; image < images; ++image) {
    for (int y = 0; y < half; ++y) {
      for (int x = 0; x < half; ++x) {
        const float* upper = responses_.data() +
                             (int64_t{image} * shape_.side + 2 * y) * row_floats +
                             int64_t{2} * x * channels;
        const float* lower = upper + row_floats;
        float* to =
            out + image * output_size() +
            (int64_t{y + shape_.out_border} * out_padded_ + x + shape_.out_border) * channels;
        pool_cell(upper, lower, bias, channels, to, winner);
        winner += channels;
      }
    }
  }
}

void ConvPool::unpool(int first, int images, const float* out_gradient) {
  const int channels = shape_.out_channels;
  const int half = shape_.side / 2;
  const int64_t row_floats = int64_t{shape_.side} * channels;
  const int32_t* winner = winners_.data() + int64_t{first} * half * half * channels;
  for (int image = 0; image < images; ++image) {
    for (int y = 0; y < half; ++y) {
      for (int x = 0; x < half; ++x) {
        float* upper = responses_.data() + (int64_t{image} * shape_.side + 2 * y) * row_floats +
                       int64_t{2} * x * channels;
        float* lower = upper + row_floats;
        const float* from =
            out_gradient + image * output_size() +
            (int64_t{y + shape_.out_border} * out_padded_ + x + shape_.out_border) * channels;
        unpool_cell(from, winner, channels, upper, lower);
        winner += channels;
      }
    }
  }
}

void ConvPool::forward(const float* in, const float* weight, const float* bias, int images,
                       float* out) {
  for (int first = 0; first < images; first += panel_) {
    const int count = std::min(panel_, images - first);
    gather_patches(in + first * input_size(), count);
    multiply(Turn::kNo, Turn::kNo, count * shape_.side * shape_.side, shape_.out_channels,
             patch_size(), patches_.data(), weight, 0.0f, responses_.data());
    pool(first, count, bias, out + first * output_size());
  }
}

void ConvPool::backward(const float* in, const float* weight, const float* out_gradient, int images,
                        float* weight_gradient, float* bias_gradient, float* in_gradient) {
  std::fill_n(bias_gradient, shape_.out_channels, 0.0f);
  for (int first = 0; first < images; first += panel_) {
    const int count = std::min(panel_, images - first);
    const int pixels = count * shape_.side * shape_.side;
    unpool(first, count, out_gradient + first * output_size());
    add_rows(responses_.data(), pixels, shape_.out_channels, bias_gradient);
    gather_patches(in + first * input_size(), count);
    multiply(Turn::kYes, Turn::kNo, patch_size(), shape_.out_channels, pixels, patches_.data(),
             responses_.data(), first == 0 ? 0.0f : 1.0f, weight_gradient);
    if (in_gradient == nullptr) continue;
    multiply(Turn::kNo, Turn::kYes, pixels, patch_size(), shape_.out_channels, responses_.data(),
             weight, 0.0f, patches_.data());
    scatter_patches(count, in_gradient + first * input_size());
  }
}

void dense_forward(const float* in, const float* weight, const float* bias, int images, int in_size,
                   int out_size, float* out) {
  for (int image = 0; image < images; ++image) {
    std::copy_n(bias, out_size, out + int64_t{image} * out_size);
  }
  multiply(Turn::kNo, Turn::kNo, images, out_size, in_size, in, weight, 1.0f, out);
}

void dense_backward_weight(const float* in, const float* out_gradient, int images, int in_size,
                           int out_size, float* weight_gradient, float* bias_gradient) {
  multiply(Turn::kYes, Turn::kNo, in_size, out_size, images, in, out_gradient, 0.0f,
           weight_gradient);
  std::fill_n(bias_gradient, out_size, 0.0f);
  add_rows(out_gradient, images, out_size, bias_gradient);
}

void dense_backward_input(const float* weight, const float* out_gradient, int images, int in_size,
                          int out_size, float* in_gradient) {
  multiply(Turn::kNo, Turn::kYes, images, in_size, out_size, out_gradient, weight, 0.0f,
           in_gradient);
}

}  // namespace fashion
