// SPDX-License-Identifier: Apache-2.0
// What PowerSGD computes over host memory: the bits of plain loops, in every instruction set.
#include "kernels/host/low_rank.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

using dt::kernels::host_low_rank_kernels;
using dt::kernels::Isa;
using dt::kernels::LowRankFactor;
using dt::kernels::LowRankMatrix;

namespace {

using Numbers = std::vector<float>;

Numbers waves(int64_t count, int seed) {
  Numbers all;
  for (int64_t i = 0; i < count; ++i) {
    all.push_back(static_cast<float>(std::sin(static_cast<double>(i * (i + 3)) + seed)));
  }
  return all;
}

// Rounded after each operation: volatile keeps the compiler from fusing them.
float plain_dot(const float* a, const float* b, int64_t count) {
  float lanes[16] = {};
  for (int64_t i = 0; i < count; ++i) {
    const volatile float product = a[i] * b[i];
    lanes[i % 16] += product;
  }
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}
void plain_add(float factor, const float* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const volatile float product = factor * from[i];
    to[i] += product;
  }
}

struct Case {
  int64_t rows;
  int64_t columns;
  int32_t rank;
  Numbers data = waves(rows * columns, 1);
  Numbers error = waves(rows * columns, 2);
  Numbers p = waves(rows * rank, 3);
  Numbers q = waves(columns * rank, 4);

  LowRankMatrix matrix() {
    return {data.data(), error.data(), p.data(), q.data(), rows, columns, 5};
  }
};

bool equal_bits(const Numbers& a, const Numbers& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("low rank: products and errors have the bits of plain loops") {
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    for (const int64_t columns : {1, 2, 15, 16, 33, 100}) {
      CAPTURE(static_cast<int>(isa));
      CAPTURE(columns);
      const auto kernels = host_low_rank_kernels(isa);
      const bool has_error = columns != 16;
      Case found{7, columns, 2};
      Case right{7, columns, 2};
      LowRankMatrix matrix = found.matrix();
      if (!has_error) matrix.error = nullptr;
      REQUIRE(kernels->find_p({&matrix, 1}, 2, nullptr).ok());
      if (has_error) plain_add(1, right.error.data(), right.data.data(), 7 * columns);
      for (int64_t i = 0; i < 7; ++i) {
        for (int64_t k = 0; k < 2; ++k) {
          right.p[static_cast<size_t>(k * 7 + i)] =
              plain_dot(&right.data[static_cast<size_t>(i * columns)],
                        &right.q[static_cast<size_t>(k * columns)], columns);
        }
      }
      CHECK(equal_bits(found.data, right.data));
      CHECK(equal_bits(found.p, right.p));

      REQUIRE(kernels->find_q({&matrix, 1}, 2, nullptr).ok());
      right.q.assign(right.q.size(), 0);
      for (int64_t i = 0; i < 7; ++i) {
        for (int64_t k = 0; k < 2; ++k) {
          plain_add(right.p[static_cast<size_t>(k * 7 + i)],
                    &right.data[static_cast<size_t>(i * columns)],
                    &right.q[static_cast<size_t>(k * columns)], columns);
        }
      }
      CHECK(equal_bits(found.q, right.q));

      REQUIRE(kernels->restore({&matrix, 1}, 2, nullptr).ok());
      for (int64_t i = 0; i < 7; ++i) {
        Numbers row(static_cast<size_t>(columns));
        for (int64_t k = 0; k < 2; ++k) {
          plain_add(right.p[static_cast<size_t>(k * 7 + i)],
                    &right.q[static_cast<size_t>(k * columns)], row.data(), columns);
        }
        for (int64_t j = 0; j < columns; ++j) {
          float& own = right.data[static_cast<size_t>(i * columns + j)];
          right.error[static_cast<size_t>(i * columns + j)] = own - row[static_cast<size_t>(j)];
          own = row[static_cast<size_t>(j)];
        }
      }
      CHECK(equal_bits(found.data, right.data));
      if (!has_error) right.error = waves(7 * columns, 2);
      CHECK(equal_bits(found.error, right.error));
    }
  }
}

TEST_CASE("low rank: columns become orthonormal, with the same bits in every instruction set") {
  Case portable{40, 33, 3};
  LowRankMatrix matrix = portable.matrix();
  REQUIRE(host_low_rank_kernels(Isa::kPortable)
              ->orthonormalise({&matrix, 1}, LowRankFactor::kP, 3, nullptr)
              .ok());
  for (int64_t a = 0; a < 3; ++a) {
    for (int64_t b = 0; b <= a; ++b) {
      const float product = plain_dot(&portable.p[static_cast<size_t>(a * 40)],
                                      &portable.p[static_cast<size_t>(b * 40)], 40);
      CHECK(std::abs(product - (a == b ? 1.0f : 0.0f)) < 1e-5f);
    }
  }
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    Case other{40, 33, 3};
    matrix = other.matrix();
    REQUIRE(host_low_rank_kernels(isa)
                ->orthonormalise({&matrix, 1}, LowRankFactor::kP, 3, nullptr)
                .ok());
    CHECK(equal_bits(other.p, portable.p));
    CHECK(equal_bits(other.q, waves(33 * 3, 4)));
  }
}

TEST_CASE("low rank: what is lost of q is drawn anew, the same in every instruction set") {
  Case first{40, 33, 4};
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    CAPTURE(static_cast<int>(isa));
    Case lost{40, 33, 4};
    for (size_t i = 0; i < 33; ++i) {
      lost.q[i] *= 1e-12f;
      lost.q[33 + i] = 3 * lost.q[i];
      lost.q[66 + i] = 0;
    }
    lost.q[99 + 7] = INFINITY;
    for (size_t i = 0; i < 40; ++i) lost.p[40 + i] = -lost.p[i];
    lost.p[80 + 5] = NAN;
    LowRankMatrix matrix = lost.matrix();
    const auto kernels = host_low_rank_kernels(isa);
    REQUIRE(kernels->orthonormalise({&matrix, 1}, LowRankFactor::kQ, 4, nullptr).ok());
    for (size_t a = 0; a < 4; ++a) {
      for (size_t b = 0; b <= a; ++b) {
        const float product = plain_dot(&lost.q[a * 33], &lost.q[b * 33], 33);
        CHECK(std::abs(product - (a == b ? 1.0f : 0.0f)) < 1e-5f);
      }
    }
    if (isa == Isa::kPortable) first.q = lost.q;
    CHECK(equal_bits(lost.q, first.q));
    REQUIRE(kernels->orthonormalise({&matrix, 1}, LowRankFactor::kP, 4, nullptr).ok());
    for (size_t i = 0; i < 40; ++i) {
      CHECK(lost.p[40 + i] == 0);
      CHECK(std::isnan(lost.p[80 + i]));
    }
    REQUIRE(kernels->restore({&matrix, 1}, 4, nullptr).ok());
    CHECK(std::isnan(lost.data[0]));
    CHECK(equal_bits(lost.error, waves(40 * 33, 2)));
  }
}

TEST_CASE("low rank: columns of q that are not finite leave those of the step before") {
  const auto kernels = host_low_rank_kernels();
  Case lost{40, 33, 4};
  Numbers kept = waves(33 * 4, 6);
  for (size_t i = 0; i < 33; ++i) lost.q[i] = 0;
  lost.q[33 + 2] = INFINITY;
  lost.q[66 + 3] = NAN;
  LowRankMatrix matrix = lost.matrix();
  matrix.kept_q = kept.data();
  REQUIRE(kernels->restore({&matrix, 1}, 4, nullptr).ok());
  Numbers right = waves(33 * 4, 6);
  std::fill_n(right.begin(), 33, 0.0f);  // to be drawn anew
  std::copy(lost.q.begin() + 99, lost.q.end(), right.begin() + 99);
  CHECK(equal_bits(kept, right));
}

TEST_CASE(
    "low rank: a column of p whose norm f32 cannot hold is NaN, also if it depends on others") {
  const auto kernels = host_low_rank_kernels();
  Case large{40, 33, 2};
  large.p.assign(large.p.size(), 0);
  large.p[0] = 1;
  large.p[40] = 3e19f;
  LowRankMatrix matrix = large.matrix();
  REQUIRE(kernels->orthonormalise({&matrix, 1}, LowRankFactor::kP, 2, nullptr).ok());
  CHECK(large.p[0] == 1);
  for (size_t i = 40; i < 80; ++i) CHECK(std::isnan(large.p[i]));
}
