// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/low_rank.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/host/cast.h"
#include "kernels/host/isa.h"

namespace dt::kernels {
namespace {

/// Number `index` of SplitMix64 (Steele, Lea and Flood 2014), as in kernels/cuda/low_rank.cu. Its
/// upper 24 bits are exact as f32.
float random_number(uint64_t seed, int64_t index) {
  uint64_t bits = seed + static_cast<uint64_t>(index + 1) * 0x9e3779b97f4a7c15U;
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9U;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebU;
  bits ^= bits >> 31;
  return static_cast<float>(bits >> 40) / 8388608.0F - 1;
}

class HostLowRankKernels final : public LowRankKernels {
 public:
  HostLowRankKernels(DotFunction dot, AddScaledFunction add_scaled)
      : dot_(dot), add_scaled_(add_scaled) {}

  Status draw_q(std::span<const LowRankMatrix> matrices, int32_t rank,
                cuda::Stream /*stream*/) override {
    for (const LowRankMatrix& each : matrices) {
      for (int64_t i = 0; i < rank * each.columns; ++i) each.q[i] = random_number(each.seed, i);
    }
    return {};
  }

  Status orthonormalise(std::span<const LowRankMatrix> matrices, LowRankFactor factor, int32_t rank,
                        cuda::Stream /*stream*/) override {
    for (const LowRankMatrix& each : matrices) {
      const bool is_p = factor == LowRankFactor::kP;
      float* const columns = is_p ? each.p : each.q;
      const int64_t length = is_p ? each.rows : each.columns;
      for (int64_t c = 0; c < rank; ++c) {
        float* const own = columns + c * length;
        float scale = make_orthogonal(columns, c, length);
        if (!is_p && !(scale > 0)) {
          for (int64_t i = 0; i < length; ++i) own[i] = random_number(each.seed, c * length + i);
          scale = make_orthogonal(columns, c, length);
        }
        for (int64_t i = 0; i < length; ++i) own[i] *= scale;
      }
    }
    return {};
  }

  Status find_p(std::span<const LowRankMatrix> matrices, int32_t rank,
                cuda::Stream /*stream*/) override {
    for (const LowRankMatrix& each : matrices) {
      const int64_t m = each.columns;
      for (int64_t i = 0; i < each.rows; ++i) {
        float* const row = each.data + i * m;
        if (each.error != nullptr) add_scaled_(1, each.error + i * m, row, m);
        for (int64_t k = 0; k < rank; ++k) {
          each.p[k * each.rows + i] = dot_(row, each.q + k * m, m);
        }
      }
    }
    return {};
  }

  Status find_q(std::span<const LowRankMatrix> matrices, int32_t rank,
                cuda::Stream /*stream*/) override {
    for (const LowRankMatrix& each : matrices) {
      const int64_t m = each.columns;
      std::fill_n(each.q, rank * m, 0.0F);
      for (int64_t i = 0; i < each.rows; ++i) {
        for (int64_t k = 0; k < rank; ++k) {
          add_scaled_(each.p[k * each.rows + i], each.data + i * m, each.q + k * m, m);
        }
      }
    }
    return {};
  }

  Status restore(std::span<const LowRankMatrix> matrices, int32_t rank,
                 cuda::Stream /*stream*/) override {
    std::vector<float> row;
    for (const LowRankMatrix& each : matrices) {
      const int64_t m = each.columns;
      for (int64_t i = 0; i < each.rows; ++i) {
        row.assign(static_cast<size_t>(m), 0);
        for (int64_t k = 0; k < rank; ++k) {
          add_scaled_(each.p[k * each.rows + i], each.q + k * m, row.data(), m);
        }
        float* const own = each.data + i * m;
        if (each.error != nullptr) {
          float* const error = each.error + i * m;
          for (int64_t j = 0; j < m; ++j) {
            const float left = own[j] - row[static_cast<size_t>(j)];
            error[j] = std::fabs(left) <= std::numeric_limits<float>::max() ? left : error[j];
          }
        }
        std::copy(row.begin(), row.end(), own);
      }
      keep_columns(each, rank);
    }
    return {};
  }

  Status cast(const void* from, Dtype from_dtype, void* to, Dtype to_dtype, int64_t count,
              cuda::Stream /*stream*/) override {
    kernels::cast(from_dtype, from, to_dtype, to, count);
    return {};
  }

 private:
  /// Subtracts from column `c` its projections on those before it. Returns what makes its norm 1: 0
  /// if nothing is left of it, NaN if its norm is not finite.
  float make_orthogonal(float* columns, int64_t c, int64_t length) const {
    float* const own = columns + c * length;
    const float given = dot_(own, own, length);
    for (int64_t b = 0; b < c; ++b) {
      const float* const before = columns + b * length;
      add_scaled_(-dot_(before, own, length), before, own, length);
    }
    const float left = dot_(own, own, length);
    if (!std::isfinite(left) || !std::isfinite(given)) {
      return std::numeric_limits<float>::quiet_NaN();
    }
    return left >= kLowRankLeast && left > kLowRankDependent * given ? 1 / std::sqrt(left) : 0;
  }

  const DotFunction dot_;
  const AddScaledFunction add_scaled_;
};

}  // namespace

void keep_columns(const LowRankMatrix& matrix, int32_t rank) {
  if (matrix.kept_q == nullptr) return;
  for (int64_t k = 0; k < rank; ++k) {
    const float* const own = matrix.q + k * matrix.columns;
    const float* const end = own + matrix.columns;
    if (std::all_of(own, end, [](float x) { return std::isfinite(x); })) {
      std::copy(own, end, matrix.kept_q + k * matrix.columns);
    }
  }
}

std::shared_ptr<LowRankKernels> host_low_rank_kernels(Isa isa) {
  if (isa_available(isa)) {
    switch (isa) {
      case Isa::kPortable: break;
      case Isa::kAvx2: return std::make_shared<HostLowRankKernels>(dot_avx2, add_scaled_avx2);
      case Isa::kAvx512: return std::make_shared<HostLowRankKernels>(dot_avx512, add_scaled_avx512);
    }
  }
  return std::make_shared<HostLowRankKernels>(dot_portable, add_scaled_portable);
}

}  // namespace dt::kernels
