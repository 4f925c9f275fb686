// SPDX-License-Identifier: Apache-2.0
#pragma once

// Kernels that products of matrices leave over. Arithmetic is in float, whatever the elements are.
// No atomics: each sum has one order, so that a run can be repeated bit by bit. Those named *_rows
// take one block of kBlock threads per row.

#include <cuda_bf16.h>

#include <cstdint>

#include "device.h"
#include "launch.cuh"

namespace gpt::kernels {

__device__ inline float load(const float* from) { return *from; }
__device__ inline float load(const __nv_bfloat16* from) { return __bfloat162float(*from); }
__device__ inline void store(float* to, float value) { *to = value; }
__device__ inline void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16(value); }

/// Of all kBlock threads' values, to all of them.
struct Sum {
  __device__ static float join(float a, float b) { return a + b; }
};
struct Largest {
  __device__ static float join(float a, float b) { return a < b ? b : a; }
};
template <class Join>
__device__ float over_block(float value) {
  __shared__ float parts[kBlock];
  parts[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = kBlock / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      parts[threadIdx.x] = Join::join(parts[threadIdx.x], parts[threadIdx.x + half]);
    }
    __syncthreads();
  }
  const float result = parts[0];
  __syncthreads();  // before the next call writes
  return result;
}

__device__ inline int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

template <class T>
__global__ void convert(int64_t count, const float* from, T* to) {
  const int64_t i = thread_index();
  if (i < count) store(to + i, from[i]);
}

template <class T>
__global__ void add(int64_t count, const T* from, T* to) {
  const int64_t i = thread_index();
  if (i < count) store(to + i, load(to + i) + load(from + i));
}

template <class T>
__global__ void add_bias(int64_t count, int64_t columns, const T* bias, T* values) {
  const int64_t i = thread_index();
  if (i < count) store(values + i, load(values + i) + load(bias + i % columns));
}

/// Sums what value(row, column) returns over all rows, and `keep` what is there; blocks of
/// kTileColumns x kTileRows threads.
template <class T, class Value>
__device__ void column_sums(int64_t rows, int64_t columns, Value value, int keep, T* sums) {
  __shared__ float parts[kTileRows][kTileColumns];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kTileColumns + threadIdx.x;
  float sum = 0;
  if (column < columns) {
    for (int64_t row = threadIdx.y; row < rows; row += kTileRows) sum += value(row, column);
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < columns) {
    for (int i = 1; i < kTileRows; ++i) sum += parts[i][threadIdx.x];
    if (keep != 0) sum += load(sums + column);
    store(sums + column, sum);
  }
  __syncthreads();
}

template <class T>
__global__ void sum_rows(int64_t rows, int64_t columns, const T* values, int keep, T* sums) {
  column_sums(
      rows, columns,
      [&](int64_t row, int64_t column) { return load(values + row * columns + column); }, keep,
      sums);
}

template <class T>
__global__ void embed(int64_t count, int64_t length, int64_t channels, const uint8_t* tokens,
                      const T* token_table, const T* position_table, T* out) {
  const int64_t i = thread_index();
  if (i >= count) return;
  const int64_t row = i / channels, channel = i % channels;
  store(out + i, load(token_table + tokens[row] * channels + channel) +
                     load(position_table + row % length * channels + channel));
}

/// One thread per entry of the table, which looks at every token: with 256 entries that is cheap.
template <class T>
__global__ void token_gradient(int64_t rows, int64_t channels, int64_t vocabulary,
                               const uint8_t* tokens, const T* gradient, int keep, T* out) {
  const int64_t i = thread_index();
  if (i >= vocabulary * channels) return;
  const int64_t token = i / channels, channel = i % channels;
  float sum = keep != 0 ? load(out + i) : 0.0f;
  for (int64_t row = 0; row < rows; ++row) {
    if (tokens[row] == token) sum += load(gradient + row * channels + channel);
  }
  store(out + i, sum);
}

template <class T>
__global__ void position_gradient(int64_t rows, int64_t length, int64_t channels, const T* gradient,
                                  int keep, T* out) {
  const int64_t i = thread_index();
  if (i >= length * channels) return;
  float sum = keep != 0 ? load(out + i) : 0.0f;
  for (int64_t row = i / channels; row < rows; row += length) {
    sum += load(gradient + row * channels + i % channels);
  }
  store(out + i, sum);
}

template <class T>
__global__ void normalise_rows(int64_t channels, const T* in, const T* weight, const T* bias,
                               T* out, float* statistics) {
  const int64_t row = blockIdx.x;
  in += row * channels;
  out += row * channels;
  float sum = 0;
  for (int64_t c = threadIdx.x; c < channels; c += kBlock) sum += load(in + c);
  const float mean = over_block<Sum>(sum) / static_cast<float>(channels);
  float squares = 0;
  for (int64_t c = threadIdx.x; c < channels; c += kBlock) {
    const float distance = load(in + c) - mean;
    squares += distance * distance;
  }
  const float variance = over_block<Sum>(squares) / static_cast<float>(channels);
  const float scale = 1.0f / sqrtf(variance + static_cast<float>(kNormEpsilon));
  for (int64_t c = threadIdx.x; c < channels; c += kBlock) {
    store(out + c, (load(in + c) - mean) * scale * load(weight + c) + load(bias + c));
  }
  if (threadIdx.x == 0) {
    statistics[2 * row] = mean;
    statistics[2 * row + 1] = scale;
  }
}

template <class T>
__global__ void normalise_backward_rows(int64_t channels, const T* out_gradient, const T* in,
                                        const T* weight, const float* statistics, T* in_gradient) {
  const int64_t row = blockIdx.x;
  const float mean = statistics[2 * row], scale = statistics[2 * row + 1];
  in += row * channels;
  out_gradient += row * channels;
  in_gradient += row * channels;
  float sum = 0, product_sum = 0;  // of the gradient at the normalised values
  for (int64_t c = threadIdx.x; c < channels; c += kBlock) {
    const float gradient = load(out_gradient + c) * load(weight + c);
    sum += gradient;
    product_sum += gradient * (load(in + c) - mean) * scale;
  }
  sum = over_block<Sum>(sum) / static_cast<float>(channels);
  product_sum = over_block<Sum>(product_sum) / static_cast<float>(channels);
  for (int64_t c = threadIdx.x; c < channels; c += kBlock) {
    const float normal = (load(in + c) - mean) * scale;
    const float gradient = load(out_gradient + c) * load(weight + c);
    store(in_gradient + c, load(in_gradient + c) + (gradient - sum - normal * product_sum) * scale);
  }
}

/// Gradient of a norm's weight.
template <class T>
__global__ void norm_weight_gradient(int64_t rows, int64_t channels, const T* out_gradient,
                                     const T* in, const float* statistics, int keep, T* sums) {
  column_sums(
      rows, channels,
      [&](int64_t row, int64_t column) {
        const int64_t at = row * channels + column;
        return load(out_gradient + at) * (load(in + at) - statistics[2 * row]) *
               statistics[2 * row + 1];
      },
      keep, sums);
}

__device__ inline float bend(float x) {
  return static_cast<float>(kGeluScale) * (x + static_cast<float>(kGeluCube) * x * x * x);
}

template <class T>
__global__ void gelu(int64_t count, const T* in, T* out) {
  const int64_t i = thread_index();
  if (i >= count) return;
  const float x = load(in + i);
  store(out + i, 0.5f * x * (1.0f + tanhf(bend(x))));
}

template <class T>
__global__ void gelu_backward(int64_t count, const T* in, T* gradient) {
  const int64_t i = thread_index();
  if (i >= count) return;
  const float x = load(in + i), tanh = tanhf(bend(x));
  const float slope =
      static_cast<float>(kGeluScale) * (1.0f + 3.0f * static_cast<float>(kGeluCube) * x * x);
  const float derivative = 0.5f * (1.0f + tanh + x * (1.0f - tanh * tanh) * slope);
  store(gradient + i, load(gradient + i) * derivative);
}

/// Element i of the joined rows [sequence][token][part][head][width] among the heads.
__device__ inline int64_t place_among_heads(const HeadShape& shape, int64_t parts, int64_t i) {
  const int64_t channel = i % shape.width;
  i /= shape.width;
  const int64_t head = i % shape.heads;
  i /= shape.heads;
  const int64_t part = i % parts;
  i /= parts;
  const int64_t token = i % shape.length, sequence = i / shape.length;
  const int64_t matrix = (part * shape.sequences + sequence) * shape.heads + head;
  return (matrix * shape.length + token) * shape.width + channel;
}

template <class T>
__global__ void split_heads(int64_t count, HeadShape shape, int64_t parts, const T* in, T* out) {
  const int64_t i = thread_index();
  if (i < count) out[place_among_heads(shape, parts, i)] = in[i];
}

template <class T>
__global__ void merge_heads(int64_t count, HeadShape shape, int64_t parts, const T* in, T* out) {
  const int64_t i = thread_index();
  if (i < count) out[i] = in[place_among_heads(shape, parts, i)];
}

template <class T>
__global__ void causal_softmax_rows(int64_t length, T* scores) {
  const int64_t row = blockIdx.x, seen = row % length + 1;
  scores += row * length;
  float largest = -INFINITY;
  for (int64_t i = threadIdx.x; i < seen; i += kBlock) {
    largest = Largest::join(largest, load(scores + i));
  }
  largest = over_block<Largest>(largest);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < seen; i += kBlock) sum += expf(load(scores + i) - largest);
  sum = over_block<Sum>(sum);
  for (int64_t i = threadIdx.x; i < length; i += kBlock) {
    store(scores + i, i < seen ? expf(load(scores + i) - largest) / sum : 0.0f);
  }
}

template <class T>
__global__ void causal_softmax_backward_rows(int64_t length, const T* shares, T* gradient) {
  const int64_t row = blockIdx.x, seen = row % length + 1;
  shares += row * length;
  gradient += row * length;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < seen; i += kBlock) sum += load(shares + i) * load(gradient + i);
  sum = over_block<Sum>(sum);
  for (int64_t i = threadIdx.x; i < length; i += kBlock) {
    store(gradient + i, i < seen ? load(shares + i) * (load(gradient + i) - sum) : 0.0f);
  }
}

/// losses[row] gets the row's loss, logits become their gradient.
template <class T>
__global__ void cross_entropy_rows(int64_t columns, const uint8_t* targets, float scale, T* logits,
                                   float* losses) {
  const int64_t row = blockIdx.x;
  const int64_t target = targets[row];
  logits += row * columns;
  float largest = -INFINITY;
  for (int64_t i = threadIdx.x; i < columns; i += kBlock) {
    largest = Largest::join(largest, load(logits + i));
  }
  largest = over_block<Largest>(largest);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < columns; i += kBlock) sum += expf(load(logits + i) - largest);
  sum = over_block<Sum>(sum);
  if (threadIdx.x == 0) losses[row] = logf(sum) - (load(logits + target) - largest);
  __syncthreads();  // the target's logit was read
  for (int64_t i = threadIdx.x; i < columns; i += kBlock) {
    const float share = expf(load(logits + i) - largest) / sum;
    store(logits + i, scale * (share - (i == target ? 1.0f : 0.0f)));
  }
}

/// One block.
static __global__ void sum_losses(int64_t rows, const float* losses, int keep, double* out) {
  __shared__ double parts[kBlock];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < rows; i += kBlock) sum += static_cast<double>(losses[i]);
  parts[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kBlock; ++i) sum += parts[i];
  *out = keep != 0 ? *out + sum : sum;
}

struct AdamNumbers {
  float beta1, beta2;
  float rate;        // over the first moment's correction
  float correction;  // of the second moment's root
  float remaining;   // 1 - rate * decay
  float epsilon;
};

template <class T>
__global__ void adamw(int64_t count, AdamNumbers adam, const T* gradient, float* first,
                      float* second, float* values, T* rounded) {
  const int64_t i = thread_index();
  if (i >= count) return;
  const float g = load(gradient + i);
  const float m = adam.beta1 * first[i] + (1.0f - adam.beta1) * g;
  const float v = adam.beta2 * second[i] + (1.0f - adam.beta2) * (g * g);
  const float value =
      adam.remaining * values[i] - adam.rate * m / (sqrtf(v) * adam.correction + adam.epsilon);
  first[i] = m;
  second[i] = v;
  values[i] = value;
  store(rounded + i, value);  // after `values`, which may be the same memory
}

}  // namespace gpt::kernels
