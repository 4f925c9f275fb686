// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/status.h"
#include "cuda/runtime.h"

namespace dt::kernels {

/// A matrix M of f32 and its two factors, so that M is about p q^T. `rank` of a call is the number
/// of columns of p and q, which lie one behind the other. Arrays do not overlap.
struct LowRankMatrix {
  float* data = nullptr;   ///< M, row by row
  float* error = nullptr;  ///< as large; null: none
  float* p = nullptr;      ///< columns of `rows`
  float* q = nullptr;      ///< columns of `columns`
  int64_t rows = 0;
  int64_t columns = 0;
  uint64_t seed = 0;        ///< of random numbers in q
  float* kept_q = nullptr;  ///< of the next step, as large as q; null: none
};

enum class LowRankFactor { kP, kQ };

/// A column of which the projections on those before it leave no more than this share of the square
/// of its norm depends on them: the rest is what rounding left.
inline constexpr float kLowRankDependent = 1e-10F;
/// The least square of a norm by which a column is divided: the smallest normal f32.
inline constexpr float kLowRankLeast = 0x1p-126F;

/// What PowerSGD computes, on the host or on a GPU, where it is enqueued on `stream` and nothing is
/// allocated. Sums have a fixed order: the same input gives the same bits in each call.
class LowRankKernels {
 public:
  virtual ~LowRankKernels() = default;

  /// Fills q with random numbers in [-1, 1): the same on the host and on GPUs.
  virtual Status draw_q(std::span<const LowRankMatrix> matrices, int32_t rank,
                        cuda::Stream stream) = 0;
  /// Makes the columns of a factor orthonormal (modified Gram-Schmidt). A column of p that is zero
  /// or depends on those before it becomes zero, and one whose norm f32 cannot hold becomes NaN.
  /// Such columns of q are replaced by random numbers of the seed: M q would never leave zero or
  /// NaN.
  virtual Status orthonormalise(std::span<const LowRankMatrix> matrices, LowRankFactor factor,
                                int32_t rank, cuda::Stream stream) = 0;
  /// M += error where there is one, then p = M q.
  virtual Status find_p(std::span<const LowRankMatrix> matrices, int32_t rank,
                        cuda::Stream stream) = 0;
  /// q = M^T p
  virtual Status find_q(std::span<const LowRankMatrix> matrices, int32_t rank,
                        cuda::Stream stream) = 0;
  /// error = M - p q^T where there is one and the difference is finite, then M = p q^T. Where there
  /// is a kept_q it gets the columns of q that are finite, and keeps its own in place of others. A
  /// zero is kept, too, so that the next step draws the column anew: q may be zero because M is
  /// orthogonal to the last one.
  virtual Status restore(std::span<const LowRankMatrix> matrices, int32_t rank,
                         cuda::Stream stream) = 0;
  /// to[i] = from[i] of two of f16, bf16 and f32, rounded to nearest even. They do not overlap.
  virtual Status cast(const void* from, Dtype from_dtype, void* to, Dtype to_dtype, int64_t count,
                      cuda::Stream stream) = 0;
};

}  // namespace dt::kernels
