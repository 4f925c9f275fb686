// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/dtype.h"
#include "base/status.h"
#include "cuda/runtime.h"
#include "kernels/batch.h"
#include "kernels/low_rank.h"
#include "kernels/optimizer_step.h"

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

/// What a step of an optimizer reads and writes of one parameter, on the device: arrays of `count`
/// elements each, which do not overlap.
struct UpdatedTensor {
  void* param = nullptr;
  const void* gradient = nullptr;  ///< of the parameter's dtype; null: only for follow()
  void* first = nullptr;           ///< moment, or momentum; f64 for f64 parameters, else f32
  void* second = nullptr;          ///< moment, likewise
  void* master = nullptr;  ///< of f16 and bf16: the f32 values that are updated; null for others
  int64_t count = 0;

  bool operator==(const UpdatedTensor&) const = default;
};

/// A list of updated tensors in the form the kernels read: on the device, made once and used in
/// every step. To be destroyed when no call with it runs any more.
class UpdateList {
 public:
  virtual ~UpdateList() = default;
};

/// A gradient of f32 that travels in blocks of 8 bits (kernels/host/quantize.h), on the device. It
/// begins at a block.
struct QuantizedTensor {
  float* data = nullptr;    ///< the gradient, or what takes its result
  float* errors = nullptr;  ///< as many; null: the rank has no gradient, and sends zeros
  int64_t count = 0;        ///< elements
  int64_t block = 0;        ///< the first one among the blocks of all tensors

  bool operator==(const QuantizedTensor&) const = default;
};

/// A list of quantized tensors in the form the kernels read: on the device, made once and used in
/// every step. To be destroyed when no call with it runs any more.
class QuantizedList {
 public:
  virtual ~QuantizedList() = default;
};

/// The same blocks of all tensors, as each rank has sent them.
struct QuantizedPart {
  const void* blocks = nullptr;  ///< of rank 0
  int64_t stride = 0;            ///< bytes from the blocks of one rank to those of the next
  int32_t ranks = 1;
  int64_t first = 0;  ///< the first one among the blocks of all tensors
  int64_t count = 0;  ///< blocks
};

/// Work on many tensors in one launch each. Every function enqueues on `stream` and returns;
/// nothing is allocated but in prepare(), prepare_update() and prepare_quantized(). Dtypes of
/// tensors and buffers: f16, bf16, f32, f64, at addresses that their size divides. Fastest where
/// source and destination are equally far from a multiple of 16 bytes, as they are where all
/// tensors and offsets are such multiples.
///
/// Computed in f32 (in f64 where either dtype is f64), rounded once, to nearest even.
class TensorKernels : public LowRankKernels, public BatchKernels {
 public:
  /// May synchronise. The tensors' memory must stay as long as the list is used.
  virtual Result<std::shared_ptr<TensorList>> prepare(std::span<const Tensor> tensors) = 0;

  /// flat[offset + i] = cast(tensor[i] * scale); gaps are left alone.
  virtual Status gather(const TensorList& tensors, Dtype from, void* flat, Dtype to, float scale,
                        cuda::Stream stream) = 0;
  /// The way back: tensor[i] = cast(flat[offset + i] * scale).
  virtual Status scatter(const TensorList& tensors, Dtype to, const void* flat, Dtype from,
                         float scale, cuda::Stream stream) = 0;
  /// *out (f64, on the device) = sum over all tensors of the squares: in f64, but for the few
  /// elements of a tensor that one thread adds, if f32 holds their squares. In a fixed order, so
  /// the same bits for the same list. `*found_inf` (i32, on the device) becomes 1 where an element
  /// is not finite and is left alone elsewhere; may be null.
  virtual Status squared_norm(const TensorList& tensors, Dtype dtype, double* out,
                              int32_t* found_inf, cuda::Stream stream) = 0;
  /// tensor[i] *= scale, and the same times *device_scale (f32, on the device) where not null; the
  /// two are multiplied first.
  virtual Status scale(const TensorList& tensors, Dtype dtype, float scale,
                       const float* device_scale, cuda::Stream stream) = 0;
  /// *norm = the root of the sum of `count` squares, *factor = max_norm / (*norm + tiny) where that
  /// is less than 1 and the norm is finite, else 1. The squares are f64, the rest f32, on the
  /// device.
  virtual Status clip_factor(const double* squares, int32_t count, float max_norm, float tiny,
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

  // Steps of optimizers: the bits of kernels/host/optimize.h, but for those of a NaN. Parameters of
  // f16 and bf16 are their masters, stepped in f32 and rounded to nearest even; a NaN among them is
  // the positive quiet one.

  /// May synchronise. The arrays' memory must stay as long as the list is used. All tensors that
  /// are not empty have the same arrays: INVALID_ARGUMENT names the first that has not, or that
  /// lacks one the dtype needs.
  virtual Result<std::shared_ptr<UpdateList>> prepare_update(std::span<const UpdatedTensor> tensors,
                                                             Dtype dtype) = 0;
  /// Takes steps[k] where k of guard.earlier did not happen, and nothing where this one does not:
  /// there is one step for each bit of these, and one more. INVALID_ARGUMENT where the list has no
  /// gradients or not both moments.
  virtual Status adamw(const UpdateList& list, std::span<const AdamWStep> steps,
                       const StepGuard& guard, cuda::Stream stream) = 0;
  /// Likewise. `first` is the momentum; a list without it has none. INVALID_ARGUMENT without
  /// gradients.
  virtual Status sgd(const UpdateList& list, std::span<const SgdStep> steps, const StepGuard& guard,
                     cuda::Stream stream) = 0;
  /// A step that happens.
  Status adamw(const UpdateList& list, const AdamWStep& step, cuda::Stream stream) {
    return adamw(list, {&step, 1}, {}, stream);
  }
  Status sgd(const UpdateList& list, const SgdStep& step, cuda::Stream stream) {
    return sgd(list, {&step, 1}, {}, stream);
  }
  /// master = param, widened; without `all` only where master, rounded to the parameter's dtype,
  /// has other bits than the parameter. Nothing for f32 and f64, which have no masters.
  virtual Status follow(const UpdateList& list, bool all, cuda::Stream stream) = 0;

  // Gradients in 8 bits: the bits of kernels/host/error_feedback.h. Blocks are at addresses that 4
  // divides.

  /// May synchronise. The tensors' and errors' memory must stay as long as the list is used.
  virtual Result<std::shared_ptr<QuantizedList>> prepare_quantized(
      std::span<const QuantizedTensor> tensors) = 0;
  /// quantize_with_errors() of each tensor. `blocks`: those of all tensors.
  virtual Status quantize(const QuantizedList& list, float factor, void* blocks,
                          cuda::Stream stream) = 0;
  /// sum_with_errors() of the blocks in `part` that are a tensor's. `to`: part.count blocks.
  virtual Status sum_parts(const QuantizedList& list, const QuantizedPart& part, float factor,
                           void* to, cuda::Stream stream) = 0;
  /// data[i] = factor times what the blocks of all tensors hold; a NaN is the positive quiet one.
  virtual Status dequantize(const QuantizedList& list, const void* blocks, float factor,
                            cuda::Stream stream) = 0;

  // The norm of tensors that are spread over ranks, in three calls. All results are on the device,
  // and the same bits however the elements are split into tensors, calls and ranks: the maximum of
  // `out` and the sum of `sum` are those of all elements.

  /// Raises out[0] to the largest finite magnitude; out[1] becomes 1 where an element is infinite,
  /// out[2] where one is a NaN. The caller zeroes them before the first call.
  virtual Status largest(const TensorList& tensors, Dtype dtype, double* out,
                         cuda::Stream stream) = 0;
  /// Adds each magnitude to the power of `type`, finite and >= 1, in units of 2^-56 of that power
  /// of largest[0], for squares of a power of two just above it, rounded to a whole number: sum[0]
  /// counts 2^28 of them, sum[1] single ones. The caller zeroes both before the first call. Enough
  /// for 2^35 elements of all ranks. Adds nothing if largest() found only zeros, an infinity or a
  /// NaN.
  virtual Status powers(const TensorList& tensors, Dtype dtype, const double* largest, double type,
                        int64_t* sum, cuda::Stream stream) = 0;
  /// *norm = the root of the sum of powers, for an infinite `type` largest[0]; NaN where largest()
  /// found one, else infinity where it found one. *factor = max_norm / (norm + tiny) where that is
  /// less than 1 and the norm is finite, else 1. Both computed in f64 and rounded to f32 once.
  /// `norm` may be null.
  virtual Status clip_factor_of_powers(const double* largest, const int64_t* sum, double type,
                                       double max_norm, double tiny, float* norm, float* factor,
                                       cuda::Stream stream) = 0;
};

/// On the device of `runtime`, which must be a real one. May synchronise the device: not while
/// collectives run on it. UNSUPPORTED in a build without CUDA.
Result<std::shared_ptr<TensorKernels>> cuda_tensor_kernels(std::shared_ptr<cuda::Runtime> runtime);

}  // namespace dt::kernels
