// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"
#include "cuda/runtime.h"

namespace dt::kernels {

/// A rank's part of a batch, on the device.
struct BatchView {
  const void* input = nullptr;     ///< [batch, channels, spatial]
  const void* gradient = nullptr;  ///< likewise; only for batch_gradient_sums()
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t spatial = 1;
  Dtype dtype = Dtype::kF32;  ///< kF16, kBf16, kF32 or kF64

  int64_t count() const { return batch * spatial; }  ///< elements of each channel
};

/// How the input was normalised: (input - mean) / sqrt(variance + epsilon). On the device.
struct BatchScale {
  const double* mean = nullptr;      ///< [channels]
  const double* variance = nullptr;  ///< [channels]
  double epsilon = 0;
};

/// Doubles of a rank's row: moments are the count, then [channels] means, then [channels] sums of
/// squared differences from them; gradient sums are [channels] sums, then [channels] products.
inline int64_t moments_row(int64_t channels) { return 1 + 2 * channels; }
inline int64_t gradient_row(int64_t channels) { return 2 * channels; }

/// Parts of a channel's elements that are summed apart.
inline int64_t batch_slices(int64_t channels, int64_t count) {
  constexpr int64_t kSliceElements = 4096;  // at least
  constexpr int64_t kPartsMax = 1 << 14;    // of all channels: fills any GPU
  const int64_t wanted = (count + kSliceElements - 1) / kSliceElements;
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(kPartsMax / channels, 1));
}

/// Doubles that batch_moments() and batch_gradient_sums() need beside the row, for any count.
inline int64_t batch_scratch(int64_t channels) {
  return 2 * channels * batch_slices(channels, int64_t{1} << 62);
}

/// Statistics of batches, in f64, enqueued on `stream`; nothing is allocated. Sums have a fixed
/// order: the same shape and input give the same bits. All but input and gradient at addresses that
/// 8 divides.
class BatchKernels {
 public:
  virtual ~BatchKernels() = default;

  virtual Status batch_moments(const BatchView& view, double* scratch, double* row,
                               cuda::Stream stream) = 0;
  virtual Status batch_gradient_sums(const BatchView& view, const BatchScale& scale,
                                     double* scratch, double* row, cuda::Stream stream) = 0;
  /// Merges the rows of all ranks in rank order, as Moments::merge() does. `rows`: one after
  /// another. Without any element the count is 0, and means and variances are NaN.
  virtual Status merge_moments(const double* rows, int32_t ranks, int64_t channels, double* mean,
                               double* variance, int64_t* count, cuda::Stream stream) = 0;
  virtual Status merge_gradient_sums(const double* rows, int32_t ranks, int64_t channels,
                                     double* sum, double* product, cuda::Stream stream) = 0;
};

}  // namespace dt::kernels
