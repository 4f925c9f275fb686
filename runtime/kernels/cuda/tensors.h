// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/dtype.h"
#include "base/status.h"
#include "cuda/runtime.h"

namespace dt::kernels {

/// One of many tensors that a kernel handles in one launch.
struct Tensor {
  void* data = nullptr;  ///< on the device
  int64_t count = 0;     ///< elements
  int64_t offset = 0;    ///< elements from the start of the flat buffer

  bool operator==(const Tensor&) const = default;
};

/// A list of tensors in the form the kernels read: on the device, made once and used in every step.
/// It holds scratch memory: of the calls with one list, only one at a time may run on the GPU. To
/// be destroyed when none runs any more.
class TensorList {
 public:
  virtual ~TensorList() = default;
  virtual int64_t size() const = 0;
};

/// Work on many tensors in one launch each. Every function enqueues on `stream` and returns;
/// nothing is allocated but in prepare(). Dtypes of tensors and buffers: f16, bf16, f32, f64, at
/// addresses that their size divides. Fastest where source and destination are equally far from a
/// multiple of 16 bytes, as they are where all tensors and offsets are such multiples.
///
/// Computed in f32 (in f64 where either dtype is f64), rounded once, to nearest even.
class TensorKernels {
 public:
  virtual ~TensorKernels() = default;

  /// May synchronise. The tensors' memory must stay as long as the list is used.
  virtual Result<std::shared_ptr<TensorList>> prepare(std::span<const Tensor> tensors) = 0;

  /// flat[offset + i] = cast(tensor[i] * scale); gaps are left alone.
  virtual Status gather(const TensorList& tensors, Dtype from, void* flat, Dtype to, float scale,
                        cuda::Stream stream) = 0;
  /// The way back: tensor[i] = cast(flat[offset + i] * scale).
  virtual Status scatter(const TensorList& tensors, Dtype to, const void* flat, Dtype from,
                         float scale, cuda::Stream stream) = 0;
  /// *out (f32, on the device) = sum over all tensors of the squares: f32 within 4096 elements of a
  /// tensor, f64 over those; in a fixed order, so the same bits for the same list. `*found_inf`
  /// (i32, on the device) becomes 1 where an element is not finite and is left alone elsewhere; may
  /// be null.
  virtual Status squared_norm(const TensorList& tensors, Dtype dtype, float* out,
                              int32_t* found_inf, cuda::Stream stream) = 0;
  /// tensor[i] *= scale, and the same times *device_scale (f32, on the device) where not null; the
  /// two are multiplied first.
  virtual Status scale(const TensorList& tensors, Dtype dtype, float scale,
                       const float* device_scale, cuda::Stream stream) = 0;
  /// *norm = the root of the sum of `count` squares, *factor = max_norm / (*norm + tiny) where that
  /// is less than 1 and the norm is finite, else 1. All f32, on the device.
  virtual Status clip_factor(const float* squares, int32_t count, float max_norm, float tiny,
                             float* norm, float* factor, cuda::Stream stream) = 0;
  /// data[i] *= factor of one flat buffer of floating-point numbers.
  virtual Status multiply(void* data, Dtype dtype, int64_t count, double factor,
                          cuda::Stream stream) = 0;
  /// data[i] += from[i] of two flat buffers that do not overlap; integers wrap.
  virtual Status add(void* data, const void* from, Dtype dtype, int64_t count,
                     cuda::Stream stream) = 0;
  /// The average after a sum, as the host computes it: data[i] *= 1/divisor of one flat buffer, the
  /// factor rounded first; integers are divided, towards zero. `divisor` >= 1.
  virtual Status divide(void* data, Dtype dtype, int64_t count, int32_t divisor,
                        cuda::Stream stream) = 0;
};

/// On the device of `runtime`, which must be a real one. May synchronise the device: not while
/// collectives run on it. UNSUPPORTED in a build without CUDA.
Result<std::shared_ptr<TensorKernels>> cuda_tensor_kernels(std::shared_ptr<cuda::Runtime> runtime);

}  // namespace dt::kernels
