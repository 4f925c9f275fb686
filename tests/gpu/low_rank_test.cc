// SPDX-License-Identifier: Apache-2.0
// Products of two thin matrices on the GPU, compared with plain loops on the host.
#include "kernels/host/low_rank.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "gpu.h"
#include "kernels/host/cast.h"
#include "values.h"

using dt::Code;
using dt::kernels::LowRankFactor;
using dt::kernels::LowRankMatrix;
using namespace dt::test;

namespace {

using Numbers = std::vector<float>;

Gpu& low_rank_gpu() {
  static Gpu* const only = new Gpu;  // CUDA may be gone when destructors of statics run
  return *only;
}

/// As f32 at an odd address of the GPU, with a number before and behind that must stay.
class OnGpu {
 public:
  explicit OnGpu(const Numbers& numbers)
      : bytes_(&low_rank_gpu(), (numbers.size() + 2) * sizeof(float)), count_(numbers.size()) {
    write(numbers);
  }
  float* data() const { return static_cast<float*>(bytes_.at(sizeof(float))); }
  void write(const Numbers& numbers) {
    Bytes content((count_ + 2) * sizeof(float), 0x5a);
    std::memcpy(&content[sizeof(float)], numbers.data(), count_ * sizeof(float));
    bytes_.write(content);
  }
  Numbers read() const {
    const Bytes content = bytes_.read();
    for (size_t i = 0; i < sizeof(float); ++i) {
      CHECK(content[i] == 0x5a);
      CHECK(content[content.size() - 1 - i] == 0x5a);
    }
    Numbers numbers(count_);
    std::memcpy(numbers.data(), &content[sizeof(float)], count_ * sizeof(float));
    return numbers;
  }

 private:
  DeviceBytes bytes_;
  const size_t count_;
};

Numbers some_numbers(int64_t count, uint64_t seed) {
  Numbers numbers(static_cast<size_t>(count));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto x = static_cast<double>(i + 1);
    numbers[i] = static_cast<float>(std::sin(x * x * 0.37 + static_cast<double>(seed)));
  }
  return numbers;
}

/// A matrix with its factors, on the host and on the GPU.
struct Product {
  Product(int64_t row_count, int64_t column_count, int32_t columns_of_factors, bool with_error)
      : rows(row_count),
        columns(column_count),
        rank(columns_of_factors),
        has_error(with_error),
        data(some_numbers(rows * columns, 1)),
        error(some_numbers(rows * columns, 2)),
        p(some_numbers(rank * rows, 3)),
        q(some_numbers(rank * columns, 4)),
        gpu_data(data),
        gpu_error(error),
        gpu_p(p),
        gpu_q(q) {}

  LowRankMatrix on_gpu() const {
    return {gpu_data.data(),
            has_error ? gpu_error.data() : nullptr,
            gpu_p.data(),
            gpu_q.data(),
            rows,
            columns,
            static_cast<uint64_t>(rows)};
  }
  float& at(int64_t i, int64_t j) { return data[static_cast<size_t>(i * columns + j)]; }
  float& p_at(int64_t i, int64_t k) { return p[static_cast<size_t>(k * rows + i)]; }
  float& q_at(int64_t j, int64_t k) { return q[static_cast<size_t>(k * columns + j)]; }

  const int64_t rows, columns;
  const int32_t rank;
  const bool has_error;
  Numbers data, error, p, q;
  OnGpu gpu_data, gpu_error, gpu_p, gpu_q;
};

/// `size`: what the numbers may be as large as before they cancel.
void check_near(const Numbers& found, const Numbers& right, double size, const char* what) {
  double most = 0;
  for (size_t i = 0; i < right.size(); ++i) {
    const double off = std::abs(static_cast<double>(found[i]) - static_cast<double>(right[i]));
    most = std::isnan(off) ? HUGE_VAL : std::max(most, off);
  }
  CAPTURE(what);
  CHECK(most <= 1e-6 * size);
}

std::vector<LowRankMatrix> all_of(const std::vector<std::unique_ptr<Product>>& products) {
  std::vector<LowRankMatrix> matrices;
  for (const auto& each : products) matrices.push_back(each->on_gpu());
  return matrices;
}

/// More than fit in one launch, of all kinds of sizes.
std::vector<std::unique_ptr<Product>> some_products(int32_t rank) {
  std::vector<std::unique_ptr<Product>> products;
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
           {64, 64}, {65, 67}, {127, 1000}, {1000, 127}, {3001, 96}, {96, 3001}}) {
    products.push_back(std::make_unique<Product>(rows, columns, rank, rows % 2 == 0));
  }
  for (int64_t i = 0; i < 70; ++i) {
    products.push_back(std::make_unique<Product>(rank + i % 5, rank + i % 7, rank, i % 3 == 0));
  }
  return products;
}

}  // namespace

TEST_CASE("low rank: the products of plain loops, and the same bits again") {
  Gpu& gpu = low_rank_gpu();
  for (const int32_t rank : {1, 2, 4, 8, 9, 31}) {
    CAPTURE(rank);
    auto products = some_products(rank);
    const auto matrices = all_of(products);

    must(gpu.kernels->find_p(matrices, rank, gpu.stream));
    gpu.finish();
    for (const auto& each : products) {
      for (size_t i = 0; each->has_error && i < each->data.size(); ++i) {
        each->data[i] += each->error[i];
      }
      for (int64_t k = 0; k < rank; ++k) {
        for (int64_t i = 0; i < each->rows; ++i) {
          double sum = 0;
          for (int64_t j = 0; j < each->columns; ++j) {
            sum += static_cast<double>(each->at(i, j)) * static_cast<double>(each->q_at(j, k));
          }
          each->p_at(i, k) = static_cast<float>(sum);
        }
      }
      CHECK(each->gpu_data.read() == each->data);
      const Numbers found = each->gpu_p.read();
      check_near(found, each->p, 2 * static_cast<double>(each->columns), "p");
      each->p = found;
    }

    must(gpu.kernels->find_q(matrices, rank, gpu.stream));
    gpu.finish();
    for (const auto& each : products) {
      double largest = 0;
      for (const float x : each->p) largest = std::max(largest, std::abs(static_cast<double>(x)));
      for (int64_t k = 0; k < rank; ++k) {
        for (int64_t j = 0; j < each->columns; ++j) {
          double sum = 0;
          for (int64_t i = 0; i < each->rows; ++i) {
            sum += static_cast<double>(each->at(i, j)) * static_cast<double>(each->p_at(i, k));
          }
          each->q_at(j, k) = static_cast<float>(sum);
        }
      }
      const Numbers found = each->gpu_q.read();
      check_near(found, each->q, 2 * largest * static_cast<double>(each->rows), "q");
      each->q = found;
      const Numbers small_p = some_numbers(rank * each->rows, 5);
      const Numbers small_q = some_numbers(rank * each->columns, 6);
      each->gpu_p.write(each->p = small_p);
      each->gpu_q.write(each->q = small_q);
    }

    must(gpu.kernels->restore(matrices, rank, gpu.stream));
    gpu.finish();
    for (const auto& each : products) {
      for (int64_t i = 0; i < each->rows; ++i) {
        for (int64_t j = 0; j < each->columns; ++j) {
          double sum = 0;
          for (int64_t k = 0; k < rank; ++k) {
            sum += static_cast<double>(each->p_at(i, k)) * static_cast<double>(each->q_at(j, k));
          }
          const auto at = static_cast<size_t>(i * each->columns + j);
          const auto left = static_cast<double>(each->data[at]) - sum;
          if (each->has_error) each->error[at] = static_cast<float>(left);
          each->data[at] = static_cast<float>(sum);
        }
      }
      check_near(each->gpu_data.read(), each->data, rank, "data");
      check_near(each->gpu_error.read(), each->error, rank + 2, "error");
    }

    // Alone, so in another grid.
    const auto found_with = [&](Product* each, std::span<const LowRankMatrix> others) {
      each->gpu_data.write(each->data);
      each->gpu_q.write(each->q);
      must(gpu.kernels->find_p(others, rank, gpu.stream));
      must(gpu.kernels->find_q(others, rank, gpu.stream));
      gpu.finish();
      return std::pair(each->gpu_p.read(), each->gpu_q.read());
    };
    for (size_t i = 0; i < 6; ++i) {
      Product* const each = products[i].get();
      each->gpu_error.write(each->error);
      const bool same = found_with(each, {&matrices[i], 1}) == found_with(each, matrices);
      CHECK(same);
    }
  }
}

TEST_CASE("low rank: columns become orthonormal, and span what they did") {
  Gpu& gpu = low_rank_gpu();
  for (const int32_t rank : {1, 3, 8, 33}) {
    CAPTURE(rank);
    auto products = some_products(rank);
    const auto matrices = all_of(products);
    for (const LowRankFactor factor : {LowRankFactor::kP, LowRankFactor::kQ}) {
      const bool is_p = factor == LowRankFactor::kP;
      must(gpu.kernels->orthonormalise(matrices, factor, rank, gpu.stream));
      gpu.finish();
      for (const auto& each : products) {
        const int64_t length = is_p ? each->rows : each->columns;
        if (length < 4 * rank) continue;  // nearly dependent ones are less exact
        const Numbers& before = is_p ? each->p : each->q;
        const Numbers found = is_p ? each->gpu_p.read() : each->gpu_q.read();
        const auto product = [&](const Numbers& a, int64_t k, const Numbers& b, int64_t l) {
          double sum = 0;
          for (int64_t i = 0; i < length; ++i) {
            sum += static_cast<double>(a[static_cast<size_t>(k * length + i)]) *
                   static_cast<double>(b[static_cast<size_t>(l * length + i)]);
          }
          return sum;
        };
        double most = 0;
        for (int64_t k = 0; k < rank; ++k) {
          double within = 0;  // of the column that was, in the space of the first k + 1
          for (int64_t l = 0; l < rank; ++l) {
            most = std::max(most, std::abs(product(found, k, found, l) - (k == l ? 1 : 0)));
            if (l <= k) within += std::pow(product(before, k, found, l), 2);
          }
          most = std::max(most, std::abs(within / product(before, k, before, k) - 1));
        }
        CHECK(most < 1e-4);
      }
    }
  }

  // What depends on the columns before it becomes zero in p, and random numbers in q.
  Product equal(500, 4, 3, false);
  for (int64_t i = 0; i < 500; ++i) {
    equal.p_at(i, 1) = equal.p_at(i, 0);
    equal.p_at(i, 2) = 0;
  }
  for (int64_t j = 0; j < 4; ++j) {
    equal.q_at(j, 0) *= 1e-12F;
    equal.q_at(j, 1) = 0;
    equal.q_at(j, 2) = j == 1 ? HUGE_VALF : NAN;
  }
  equal.gpu_p.write(equal.p);
  equal.gpu_q.write(equal.q);
  const LowRankMatrix matrix = equal.on_gpu();
  must(gpu.kernels->orthonormalise({&matrix, 1}, LowRankFactor::kP, 3, gpu.stream));
  must(gpu.kernels->orthonormalise({&matrix, 1}, LowRankFactor::kQ, 3, gpu.stream));
  gpu.finish();
  const Numbers found = equal.gpu_p.read();
  for (size_t i = 500; i < 1500; ++i) CHECK(found[i] == 0.0F);
  LowRankMatrix on_host = matrix;
  on_host.q = equal.q.data();
  must(dt::kernels::host_low_rank_kernels()->orthonormalise({&on_host, 1}, LowRankFactor::kQ, 3,
                                                            nullptr));
  check_near(equal.gpu_q.read(), equal.q, 10, "the q of the host");

  // An infinity reaches all of p, and no error.
  Product lost(30, 4, 1, true);
  lost.at(3, 1) = HUGE_VALF;
  lost.gpu_data.write(lost.data);
  const LowRankMatrix infinite = lost.on_gpu();
  must(gpu.kernels->find_p({&infinite, 1}, 1, gpu.stream));
  must(gpu.kernels->orthonormalise({&infinite, 1}, LowRankFactor::kP, 1, gpu.stream));
  must(gpu.kernels->find_q({&infinite, 1}, 1, gpu.stream));
  must(gpu.kernels->restore({&infinite, 1}, 1, gpu.stream));
  gpu.finish();
  CHECK(lost.gpu_error.read() == lost.error);
  for (const float x : lost.gpu_data.read()) CHECK(std::isnan(x));
}

TEST_CASE("low rank: the host's random numbers") {
  Gpu& gpu = low_rank_gpu();
  auto products = some_products(5);
  must(gpu.kernels->draw_q(all_of(products), 5, gpu.stream));
  gpu.finish();
  for (const auto& each : products) {
    LowRankMatrix matrix = each->on_gpu();
    matrix.q = each->q.data();
    must(dt::kernels::host_low_rank_kernels()->draw_q({&matrix, 1}, 5, nullptr));
    CHECK(each->gpu_q.read() == each->q);
  }
}

TEST_CASE("low rank: numbers in 16 bits are those of the host, and come back") {
  Gpu& gpu = low_rank_gpu();
  for (const dt::Dtype half : {dt::Dtype::kBf16, dt::Dtype::kF16}) {
    for (const int64_t count : {1, 7, 4099, 100'003}) {
      for (const size_t skipped : {size_t{0}, size_t{2}}) {  // bytes before them
        CAPTURE(dt::dtype_name(half));
        CAPTURE(count);
        CAPTURE(skipped);
        const Numbers numbers = some_numbers(count, 5);
        const OnGpu single(numbers);
        DeviceBytes on_gpu(&gpu, static_cast<size_t>(2 * count) + 2 * skipped);
        on_gpu.write(Bytes(static_cast<size_t>(2 * count) + 2 * skipped, 0x5a));
        must(gpu.kernels->cast(single.data(), dt::Dtype::kF32, on_gpu.at(skipped), half, count,
                               gpu.stream));
        const OnGpu back(Numbers(numbers.size()));
        must(gpu.kernels->cast(on_gpu.at(skipped), half, back.data(), dt::Dtype::kF32, count,
                               gpu.stream));
        gpu.finish();
        Bytes right(static_cast<size_t>(2 * count) + 2 * skipped, 0x5a);
        dt::kernels::cast(dt::Dtype::kF32, numbers.data(), half, &right[skipped], count);
        CHECK(on_gpu.read() == right);
        Numbers wide(numbers.size());
        dt::kernels::cast(half, &right[skipped], dt::Dtype::kF32, wide.data(), count);
        CHECK(back.read() == wide);
      }
    }
  }
}

TEST_CASE("low rank: without memory or a rank it is refused") {
  Gpu& gpu = low_rank_gpu();
  Product product(8, 8, 2, false);
  LowRankMatrix matrix = product.on_gpu();
  const dt::Status no_rank = gpu.kernels->find_p({&matrix, 1}, 0, gpu.stream);
  CHECK(no_rank.code() == Code::kInvalidArgument);
  CHECK(no_rank.message() ==
        "find_p of 8 rows and 8 columns with rank 0: each is at least 1, and the matrix and both "
        "factors have memory");
  matrix.q = nullptr;
  CHECK(gpu.kernels->restore({&matrix, 1}, 2, gpu.stream).code() == Code::kInvalidArgument);
  must(gpu.kernels->find_q({}, 2, gpu.stream));
}
