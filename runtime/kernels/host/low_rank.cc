// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/low_rank.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/host/cast.h"

namespace dt::kernels {
namespace {

constexpr int64_t kLanes = 16;

float dot(const float* a, const float* b, int64_t count) {
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) sums[k] += a[i + k] * b[i + k];
  }
  for (int64_t k = 0; i < count; ++i, ++k) sums[k] += a[i] * b[i];
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

/// to += factor * from
void add_scaled(float factor, const float* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

void orthonormalise_columns(float* columns, int64_t count, int64_t length) {
  for (int64_t c = 0; c < count; ++c) {
    float* const own = columns + c * length;
    for (int64_t b = 0; b < c; ++b) {
      const float* const before = columns + b * length;
      add_scaled(-dot(before, own, length), before, own, length);
    }
    const float factor = 1 / (std::sqrt(dot(own, own, length)) + kLowRankTiny);
    for (int64_t i = 0; i < length; ++i) own[i] *= factor;
  }
}

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
      orthonormalise_columns(is_p ? each.p : each.q, rank, is_p ? each.rows : each.columns);
    }
    return {};
  }

  Status find_p(std::span<const LowRankMatrix> matrices, int32_t rank,
                cuda::Stream /*stream*/) override {
    for (const LowRankMatrix& each : matrices) {
      const int64_t m = each.columns;
      if (each.error != nullptr) add_scaled(1, each.error, each.data, each.rows * m);
      for (int64_t i = 0; i < each.rows; ++i) {
        for (int64_t k = 0; k < rank; ++k) {
          each.p[k * each.rows + i] = dot(each.data + i * m, each.q + k * m, m);
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
          add_scaled(each.p[k * each.rows + i], each.data + i * m, each.q + k * m, m);
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
          add_scaled(each.p[k * each.rows + i], each.q + k * m, row.data(), m);
        }
        float* const own = each.data + i * m;
        if (each.error != nullptr) {
          float* const error = each.error + i * m;
          for (int64_t j = 0; j < m; ++j) error[j] = own[j] - row[static_cast<size_t>(j)];
        }
        std::copy(row.begin(), row.end(), own);
      }
    }
    return {};
  }

  Status cast(const void* from, Dtype from_dtype, void* to, Dtype to_dtype, int64_t count,
              cuda::Stream /*stream*/) override {
    kernels::cast(from_dtype, from, to_dtype, to, count);
    return {};
  }
};

}  // namespace

std::shared_ptr<LowRankKernels> host_low_rank_kernels() {
  return std::make_shared<HostLowRankKernels>();
}

}  // namespace dt::kernels
