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
};

/// A list of tensors in the form the kernels read: on the device, made once and used in every step.
class TensorList {
 public:
  virtual ~TensorList() = default;
  virtual int64_t size() const = 0;
};

/// Work on many tensors in one launch each. Every function enqueues on `stream` and returns;
/// nothing is allocated but in prepare(). Dtypes of tensors and buffers: f16, bf16, f32, f64.
/// Offsets need no alignment; those that are multiples of 16 bytes are faster.
class TensorKernels {
 public:
  virtual ~TensorKernels() = default;

  /// May synchronise. The tensors' memory must stay as long as the list is used.
  virtual Result<std::shared_ptr<TensorList>> prepare(std::span<const Tensor> tensors) = 0;

  /// flat[offset + i] = cast(tensor[i] * scale), rounded to nearest even; gaps are left alone.
  virtual Status gather(const TensorList& tensors, Dtype from, void* flat, Dtype to, float scale,
                        cuda::Stream stream) = 0;
  /// The way back: tensor[i] = cast(flat[offset + i] * scale).
  virtual Status scatter(const TensorList& tensors, Dtype to, const void* flat, Dtype from,
                         float scale, cuda::Stream stream) = 0;
  /// *out (f32, on the device) = sum over all tensors of the squares, in f32 with a fixed order:
  /// the same bits for the same list. `*found_inf` (i32, on the device) becomes 1 where an element
  /// is not finite and is left alone elsewhere; may be null.
  virtual Status squared_norm(const TensorList& tensors, Dtype dtype, float* out,
                              int32_t* found_inf, cuda::Stream stream) = 0;
  /// tensor[i] *= scale, and the same times *device_scale (f32, on the device) where not null.
  virtual Status scale(const TensorList& tensors, Dtype dtype, float scale,
                       const float* device_scale, cuda::Stream stream) = 0;
  /// data[i] = cast(data[i] * scale) of one flat buffer; also integers (divided, towards zero).
  virtual Status divide(void* data, Dtype dtype, int64_t count, int32_t divisor,
                        cuda::Stream stream) = 0;
};

/// On the device of `runtime`, which must be a real one. UNSUPPORTED in a build without CUDA.
Result<std::shared_ptr<TensorKernels>> cuda_tensor_kernels(std::shared_ptr<cuda::Runtime> runtime);

}  // namespace dt::kernels
