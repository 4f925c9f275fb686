// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "comm/communicator.h"

namespace dt::training {

/// Statistics of a batch that is spread over ranks, for batch normalisation. Sums are made in
/// double precision, and put together in rank order, so that all ranks hold the same bits.

/// Elements in the order [batch, channels, spatial]; with channels last, spatial is 1.
struct BatchShape {
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t spatial = 1;
  Dtype dtype = Dtype::kF32;  ///< kF16, kBf16, kF32 or kF64

  int64_t count() const { return batch * spatial; }  ///< elements of each channel
};

/// Of `count` elements of each channel.
struct Moments {
  int64_t count = 0;
  std::vector<double> mean;       ///< [channels]
  std::vector<double> deviation;  ///< [channels] sums of squared differences from the mean

  /// As if the elements of both had been one batch.
  void merge(const Moments& other);
};

struct GradientSums {
  std::vector<double> sum;      ///< [channels] of the gradient
  std::vector<double> product;  ///< [channels] of the gradient times the normalised input
};

/// How the input was normalised: (input - mean) / sqrt(variance + epsilon).
struct Normalisation {
  const double* mean;      ///< [channels]
  const double* variance;  ///< [channels]
  double epsilon;
};

/// Of this rank's elements alone.
Moments own_moments(const void* input, const BatchShape& shape);
GradientSums own_gradient_sums(const void* input, const void* gradient, const BatchShape& shape,
                               const Normalisation& by);

/// Of all ranks' elements. Collective; MISMATCH where their dtypes or operations differ.
Result<Moments> batch_moments(comm::Communicator& comm, const void* input, const BatchShape& shape);
Result<GradientSums> batch_gradient_sums(comm::Communicator& comm, const void* input,
                                         const void* gradient, const BatchShape& shape,
                                         const Normalisation& by);

}  // namespace dt::training
