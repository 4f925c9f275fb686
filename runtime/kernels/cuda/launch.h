// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "kernels/batch.h"
#include "kernels/cuda/chunks.h"

namespace dt::kernels {

/// A ChunkPlan in the device's memory.
struct DeviceChunks {
  const TensorRecord* tensors = nullptr;
  const int32_t* tensor_of_chunk = nullptr;
  int64_t chunks = 0;
  double* partial_sums = nullptr;  ///< one for each chunk: scratch of the norm
};

/// An UpdatePlan in the device's memory.
struct DeviceUpdates {
  const UpdateRecord* tensors = nullptr;
  const int32_t* tensor_of_chunk = nullptr;
  int64_t chunks = 0;
};

/// A QuantizedPlan in the device's memory.
struct DeviceQuantized {
  const QuantizedRecord* tensors = nullptr;
  const int32_t* tensor_of_chunk = nullptr;
  int64_t chunks = 0;
};

struct Launch {
  DeviceChunks list;
  int32_t multiprocessors = 0;
  cudaStream_t stream = nullptr;
};

struct UpdateLaunch {
  DeviceUpdates list;
  int32_t multiprocessors = 0;
  cudaStream_t stream = nullptr;
};

struct QuantizedLaunch {
  DeviceQuantized list;
  int32_t multiprocessors = 0;
  cudaStream_t stream = nullptr;
};

// CUDA loads a kernel when it is first used, and may wait for the whole device to do so: for ever,
// where a collective runs there that waits for a peer. These load all kernels of a file beforehand.
cudaError_t load_add();
cudaError_t load_batch();
cudaError_t load_copy();
cudaError_t load_divide();
cudaError_t load_low_rank();
cudaError_t load_norm();
cudaError_t load_quantize();
cudaError_t load_scale();
cudaError_t load_powers();
cudaError_t load_update();

// The arguments are valid, the device is selected, and something is to be done. What they return is
// of the launch alone.
cudaError_t launch_gather(const Launch& launch, Dtype from, void* flat, Dtype to, float scale);
cudaError_t launch_scatter(const Launch& launch, Dtype to, const void* flat, Dtype from,
                           float scale);
cudaError_t launch_cast(const Launch& launch, const void* from, Dtype from_dtype, void* to,
                        Dtype to_dtype, int64_t count);
/// Also of an empty list.
cudaError_t launch_squared_norm(const Launch& launch, Dtype dtype, double* out, int32_t* found_inf);
cudaError_t launch_scale(const Launch& launch, Dtype dtype, float scale, const float* device_scale);
cudaError_t launch_clip_factor(const Launch& launch, const double* squares, int32_t count,
                               float max_norm, float tiny, float* norm, float* factor);
cudaError_t launch_multiply(const Launch& launch, void* data, Dtype dtype, int64_t count,
                            double factor);
cudaError_t launch_add(const Launch& launch, void* data, const void* from, Dtype dtype,
                       int64_t count);
cudaError_t launch_divide(const Launch& launch, void* data, Dtype dtype, int64_t count,
                          int32_t divisor);
cudaError_t launch_largest(const Launch& launch, Dtype dtype, double* out);
cudaError_t launch_powers(const Launch& launch, Dtype dtype, const double* largest, double type,
                          int64_t* sum);
cudaError_t launch_clip_factor_of_powers(const Launch& launch, const double* largest,
                                         const int64_t* sum, double type, double max_norm,
                                         double tiny, float* norm, float* factor);
cudaError_t launch_adamw(const UpdateLaunch& launch, Dtype dtype, std::span<const AdamWStep> steps,
                         const StepGuard& guard);
/// `momentum`: the tensors have a `first`.
cudaError_t launch_sgd(const UpdateLaunch& launch, Dtype dtype, std::span<const SgdStep> steps,
                       const StepGuard& guard, bool momentum);
cudaError_t launch_batch_moments(cudaStream_t stream, const BatchView& view, double* scratch,
                                 double* row);
cudaError_t launch_batch_gradient_sums(cudaStream_t stream, const BatchView& view,
                                       const BatchScale& scale, double* scratch, double* row);
cudaError_t launch_merge_moments(cudaStream_t stream, const double* rows, int32_t ranks,
                                 int64_t channels, double* mean, double* variance, int64_t* count);
cudaError_t launch_merge_gradient_sums(cudaStream_t stream, const double* rows, int32_t ranks,
                                       int64_t channels, double* sum, double* product);
cudaError_t launch_draw_q(const Launch& launch, std::span<const LowRankMatrix> matrices,
                          int32_t rank);
cudaError_t launch_orthonormalise(const Launch& launch, std::span<const LowRankMatrix> matrices,
                                  LowRankFactor factor, int32_t rank);
cudaError_t launch_find_p(const Launch& launch, std::span<const LowRankMatrix> matrices,
                          int32_t rank);
cudaError_t launch_find_q(const Launch& launch, std::span<const LowRankMatrix> matrices,
                          int32_t rank);
cudaError_t launch_restore(const Launch& launch, std::span<const LowRankMatrix> matrices,
                           int32_t rank);
/// Of f16 or bf16.
cudaError_t launch_follow(const UpdateLaunch& launch, Dtype dtype, bool all);
cudaError_t launch_quantize(const QuantizedLaunch& launch, float factor, void* blocks);
cudaError_t launch_sum_parts(const QuantizedLaunch& launch, const QuantizedPart& part, float factor,
                             void* to);
cudaError_t launch_dequantize(const QuantizedLaunch& launch, const void* blocks, float factor);

}  // namespace dt::kernels
