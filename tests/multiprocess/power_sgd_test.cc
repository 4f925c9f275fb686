// SPDX-License-Identifier: Apache-2.0
// PowerSGD: what travels, that the errors come back, and equal results everywhere.
#include <cmath>
#include <numeric>

#include "thread_ranks.h"

namespace dt_test::power_sgd_test {

namespace {

constexpr int64_t kRows = 40;
constexpr int64_t kColumns = 60;
constexpr int64_t kElements = kRows * kColumns;

/// Rank `rank`'s gradient in any step: of many singular values.
float given(int rank, int64_t i) {
  const auto x = static_cast<double>(i % kColumns + 1);
  const auto y = static_cast<double>(i / kColumns + 1);
  return static_cast<float>(std::sin(x * y * 0.1 + rank) + 0.3 * x - y * rank * 0.01);
}

struct Sums {
  double error = 0;  ///< of the sum of all steps' results, relative
  double first = 0;  ///< of the first step's result
};

dt_status train(const Rank& rank, const dt_power_sgd_options& options, int steps, Sums* out) {
  const dt_param params[] = {
      {kElements, "matrix", DT_F32, 0}, {7, "vector", DT_F32, 0}, {kElements, "other", DT_F64, 0}};
  const int64_t rows[] = {kRows, 0, kRows};
  dt_reducer* reducer = nullptr;
  // With two ranks gradients lie in an array of the rank's own, the matrix at no multiple of 16
  // bytes.
  std::vector<float> flat(8 + kElements);
  std::vector<double> apart(kElements);
  void* const grads[] = {&flat[8], &flat[1], apart.data()};
  dt_reducer_options reducer_options;
  dt_reducer_options_init(&reducer_options);
  const bool is_flat = rank.world_size == 2;
  if (is_flat) reducer_options.grads = grads;
  RANK_TRY(dt_reducer_create(rank.world, params, 3, &reducer_options, &reducer));
  RANK_TRY(dt_reducer_power_sgd(reducer, rows, &options));
  std::vector<double> sum(kElements);
  std::vector<double> right(kElements);
  for (int r = 0; r < rank.world_size; ++r) {
    for (int64_t i = 0; i < kElements; ++i) {
      right[static_cast<size_t>(i)] +=
          static_cast<double>(given(r, i)) / static_cast<double>(rank.world_size);
    }
  }
  const auto error_of = [&](int count) {
    double squares = 0;
    double all = 0;
    for (size_t i = 0; i < sum.size(); ++i) {
      squares += std::pow(sum[i] / count - right[i], 2);
      all += right[i] * right[i];
    }
    return std::sqrt(squares / all);
  };
  for (int step = 0; step < steps; ++step) {
    std::vector<float> matrix(kElements);
    std::vector<double> other(kElements, rank.rank);
    std::vector<float> vector(7, static_cast<float>(rank.rank) + 1.001f);  // not exact in 16 bits
    for (int64_t i = 0; i < kElements; ++i) matrix[static_cast<size_t>(i)] = given(rank.rank, i);
    if (is_flat) {
      std::copy(vector.begin(), vector.end(), flat.begin() + 1);
      std::copy(matrix.begin(), matrix.end(), flat.begin() + 8);
      apart = other;
    }
    RANK_TRY(dt_reducer_ready(reducer, 2, is_flat ? nullptr : other.data(), nullptr));
    RANK_TRY(dt_reducer_ready(reducer, 1, is_flat ? nullptr : vector.data(), nullptr));
    RANK_TRY(dt_reducer_ready(reducer, 0, is_flat ? nullptr : matrix.data(), nullptr));
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    if (is_flat) {
      std::copy_n(flat.begin() + 1, 7, vector.begin());
      std::copy_n(flat.begin() + 8, kElements, matrix.begin());
      std::copy(apart.begin(), apart.end(), other.begin());
    }
    const double mean = (rank.world_size - 1) / 2.0;
    const double off = std::abs(static_cast<double>(vector[6]) - (mean + 1.001));
    if (options.wire != DT_WIRE_SAME ? off < 1e-6 || off > 1e-2 : off > 1e-6) {
      return DT_ERR_INTERNAL;
    }
    if (other[5] != mean) return DT_ERR_INTERNAL;
    RANK_TRY(dt_check_equal(rank.world, matrix.data(), kElements * 4, "matrix", nullptr));
    RANK_TRY(dt_check_equal(rank.world, vector.data(), 7 * 4, "vector", nullptr));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(matrix[i]);
    if (step == 0) out->first = error_of(1);
  }
  out->error = error_of(steps);
  dt_reducer_destroy(reducer);
  return DT_OK;
}

std::vector<Sums> run(const std::vector<int>& hosts, const dt_power_sgd_options& options,
                      int steps) {
  std::vector<Sums> sums(hosts.size());
  require_all_ok(run_ranks(
      static_cast<int>(hosts.size()),
      [&](const Rank& rank) -> dt_status {
        return train(rank, options, steps, &sums[static_cast<size_t>(rank.rank)]);
      },
      {},
      [&](int rank) -> Settings {
        return {{"job.host_id", "host" + std::to_string(hosts[static_cast<size_t>(rank)])}};
      }));
  return sums;
}

}  // namespace

TEST_CASE("PowerSGD: what steps leave out comes back, results are equal on all ranks") {
  dt_power_sgd_options options;
  dt_power_sgd_options_init(&options);
  options.rank = 2;
  for (const std::vector<int>& hosts : std::vector<std::vector<int>>{{0}, {0, 0, 0}, {0, 1, 1}}) {
    CAPTURE(hosts.size());
    CAPTURE(hosts.back());
    const Sums sums = run(hosts, options, 200)[0];
    CHECK(sums.first > 0.02);
    CHECK(sums.error < 0.3 * sums.first);
  }
}

namespace {

constexpr int kBadStep = 3;

/// Two ranks reduce a matrix of given(), times `scale`, in each step but one. There all elements
/// are `bad`, or one of rank 1's is if it is not finite. Each rank's error of the mean of what
/// follows.
std::vector<double> errors_behind(float bad, float scale, const dt_power_sgd_options& options) {
  constexpr int kSteps = kBadStep + 41;
  std::vector<double> errors(2, HUGE_VAL);
  require_all_ok(run_ranks(2, [&](const Rank& rank) -> dt_status {
    const dt_param param = {kElements, "matrix", DT_F32, 0};
    const int64_t rows[] = {kRows};
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, &param, 1, nullptr, &reducer));
    RANK_TRY(dt_reducer_power_sgd(reducer, rows, &options));
    std::vector<double> sum(kElements);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<float> matrix(kElements);
      for (int64_t i = 0; i < kElements; ++i) {
        matrix[static_cast<size_t>(i)] = given(rank.rank, i) * scale;
      }
      if (step == kBadStep && std::isfinite(bad)) matrix.assign(kElements, bad);
      if (step == kBadStep && !std::isfinite(bad) && rank.rank == 1) matrix[5] = bad;
      RANK_TRY(dt_reducer_ready(reducer, 0, matrix.data(), nullptr));
      RANK_TRY(dt_reducer_finish(reducer, nullptr));
      if (step == kBadStep && std::isfinite(bad) != std::isfinite(matrix[0])) {
        return DT_ERR_INTERNAL;
      }
      if (step <= kBadStep) continue;
      RANK_TRY(dt_check_equal(rank.world, matrix.data(), kElements * 4, "matrix", nullptr));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(matrix[i]);
    }
    double squares = 0;
    double all = 0;
    for (int64_t i = 0; i < kElements; ++i) {
      const double right =
          (static_cast<double>(given(0, i)) + static_cast<double>(given(1, i))) / 2;
      const double mean = sum[static_cast<size_t>(i)] / (kSteps - 1 - kBadStep);
      squares += std::pow(mean / static_cast<double>(scale) - right, 2);
      all += right * right;
    }
    errors[static_cast<size_t>(rank.rank)] = std::sqrt(squares / all);
    dt_reducer_destroy(reducer);
    return DT_OK;
  }));
  return errors;
}

}  // namespace

TEST_CASE("PowerSGD: zeros, tiny gradients and infinities do not reach into later steps") {
  dt_power_sgd_options options;
  dt_power_sgd_options_init(&options);
  for (const int32_t columns : {1, 4}) {
    options.rank = columns;
    for (const auto& each : std::vector<std::pair<float, float>>{
             {0.0f, 1.0f}, {0.0f, 1e-12f}, {INFINITY, 1.0f}, {NAN, 1e-12f}}) {
      CAPTURE(columns);
      CAPTURE(each.first);
      CAPTURE(each.second);
      for (const double error : errors_behind(each.first, each.second, options)) {
        CHECK(error < 0.2);
      }
    }
  }
}

TEST_CASE("PowerSGD: behind a step with a NaN the next one goes on from the step before") {
  dt_power_sgd_options options;
  dt_power_sgd_options_init(&options);
  options.rank = 2;
  require_all_ok(run_ranks(2, [&](const Rank& rank) -> dt_status {
    std::vector<float> results[2];
    for (const bool with_nan : {false, true}) {
      const dt_param param = {kElements, "matrix", DT_F32, 0};
      const int64_t rows[] = {kRows};
      dt_reducer* reducer = nullptr;
      RANK_TRY(dt_reducer_create(rank.world, &param, 1, nullptr, &reducer));
      RANK_TRY(dt_reducer_power_sgd(reducer, rows, &options));
      for (int step = 0; step < 5; ++step) {
        if (step == kBadStep && !with_nan) continue;
        std::vector<float> matrix(kElements);
        for (int64_t i = 0; i < kElements; ++i) {
          matrix[static_cast<size_t>(i)] = given(rank.rank, i);
        }
        if (step == kBadStep) matrix[5] = NAN;
        RANK_TRY(dt_reducer_ready(reducer, 0, matrix.data(), nullptr));
        RANK_TRY(dt_reducer_finish(reducer, nullptr));
        results[with_nan ? 1 : 0] = matrix;
      }
      dt_reducer_destroy(reducer);
    }
    for (size_t i = 0; i < results[0].size(); ++i) {
      if (!(std::abs(results[0][i] - results[1][i]) < 1e-3f)) return DT_ERR_INTERNAL;
    }
    return DT_OK;
  }));
}

TEST_CASE("PowerSGD: a gradient that is orthogonal to those before gets through") {
  dt_power_sgd_options options;
  dt_power_sgd_options_init(&options);
  options.rank = 1;
  options.no_error_feedback = 1;
  require_all_ok(run_ranks(2, [&](const Rank& rank) -> dt_status {
    const dt_param param = {kElements, "matrix", DT_F32, 0};
    const int64_t rows[] = {kRows};
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, &param, 1, nullptr, &reducer));
    RANK_TRY(dt_reducer_power_sgd(reducer, rows, &options));
    float last = 0;
    for (int step = 0; step < 6; ++step) {
      std::vector<float> matrix(kElements);
      const size_t at = step < 3 ? 0 : kElements / kRows + 1;  // another row and column
      matrix[at] = 1;
      RANK_TRY(dt_reducer_ready(reducer, 0, matrix.data(), nullptr));
      RANK_TRY(dt_reducer_finish(reducer, nullptr));
      last = matrix[at];
    }
    dt_reducer_destroy(reducer);
    return std::abs(last - 1) < 1e-5f ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("PowerSGD: what 16 bits change in a matrix comes back, other gradients are rounded") {
  dt_power_sgd_options options;
  dt_power_sgd_options_init(&options);
  options.rank = 2;
  for (const dt_wire wire : {DT_WIRE_BF16, DT_WIRE_F16}) {
    options.wire = wire;
    for (const std::vector<int>& hosts :
         std::vector<std::vector<int>>{{0}, {0, 0}, {0, 0, 0}, {0, 1, 1}}) {
      CAPTURE(wire);
      CAPTURE(hosts.size());
      CAPTURE(hosts.back());
      options.start_step = 0;
      const Sums sums = run(hosts, options, 200)[0];
      CHECK(sums.first > 0.02);
      CHECK(sums.error < 0.3 * sums.first);
      options.start_step = 3;
      const double rounded = run(hosts, options, 3)[0].error;
      CHECK(rounded > 1e-5);
      CHECK(rounded < 1e-2);
    }
  }
}

TEST_CASE("PowerSGD: after a step that failed, one rank goes on and several get the first error") {
  for (const int size : {1, 2}) {
    CAPTURE(size);
    require_all_ok(run_ranks(size, [](const Rank& rank) -> dt_status {
      const dt_param params[] = {{kElements, "matrix", DT_F32, 0}, {100'000, "vector", DT_F32, 0}};
      const int64_t rows[] = {kRows, 0};
      dt_reducer_options reducer_options;
      dt_reducer_options_init(&reducer_options);
      reducer_options.bucket_cap_bytes = reducer_options.first_bucket_bytes = kElements * 4;
      dt_reducer* reducer = nullptr;
      RANK_TRY(dt_reducer_create(rank.world, params, 2, &reducer_options, &reducer));
      dt_power_sgd_options options;
      dt_power_sgd_options_init(&options);
      options.wire = DT_WIRE_BF16;
      RANK_TRY(dt_reducer_power_sgd(reducer, rows, &options));
      std::vector<float> matrix(kElements, 3);
      std::vector<float> vector(100'000, 1.001f);
      RANK_TRY(dt_reducer_ready(reducer, 1, vector.data(), nullptr));
      if (rank.rank > 0) (void)dt_reducer_ready(reducer, 0, matrix.data(), nullptr);
      if (dt_reducer_finish(reducer, nullptr) == DT_OK) return DT_ERR_INTERNAL;
      for (int step = 0; step < 2; ++step) {
        vector.assign(100'000, 1.001f);
        dt_status status = dt_reducer_ready(reducer, 1, vector.data(), nullptr);
        if (status == DT_OK) status = dt_reducer_ready(reducer, 0, matrix.data(), nullptr);
        if (status == DT_OK) status = dt_reducer_finish(reducer, nullptr);
        if ((status == DT_OK) != (rank.world_size == 1)) return DT_ERR_INTERNAL;
        if (status == DT_OK && vector[99'999] != 1.0f) return DT_ERR_INTERNAL;
      }
      dt_reducer_destroy(reducer);
      return DT_OK;
    }));
  }
}

TEST_CASE("PowerSGD: without error feedback the same part is left out again, from cold or warm") {
  dt_power_sgd_options options;
  dt_power_sgd_options_init(&options);
  options.rank = 2;
  options.no_error_feedback = 1;
  const Sums forgotten = run({0, 0}, options, 20)[0];
  CHECK(forgotten.error > 0.02);
  options.no_error_feedback = 0;
  options.cold_start = 1;
  options.seed = 5;
  CHECK(run({0, 0}, options, 200)[0].error < 0.5 * forgotten.error);
}

TEST_CASE("PowerSGD: before its first step, and where it gains too little, averages are exact") {
  dt_power_sgd_options options;
  dt_power_sgd_options_init(&options);
  options.start_step = 3;
  CHECK(run({0, 0}, options, 3)[0].error < 1e-6);
  CHECK(run({0, 0}, options, 4)[0].error > 1e-4);
  options.start_step = 0;
  options.min_compression = 100;
  CHECK(run({0, 0}, options, 2)[0].error < 1e-6);
}

TEST_CASE("PowerSGD: 16 bits take whole buckets, also where the last parameter has no elements") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    const dt_param params[] = {{0, "empty", DT_F32, 0}, {1000, "bias", DT_F32, 0}};
    std::vector<float> bias(1000);
    void* const grads[] = {nullptr, bias.data()};
    dt_reducer_options reducer_options;
    dt_reducer_options_init(&reducer_options);
    reducer_options.grads = grads;
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, params, 2, &reducer_options, &reducer));
    dt_power_sgd_options options;
    dt_power_sgd_options_init(&options);
    options.wire = DT_WIRE_BF16;
    const int64_t rows[] = {0, 0};
    RANK_TRY(dt_reducer_power_sgd(reducer, rows, &options));
    for (int step = 0; step < 3; ++step) {
      std::fill(bias.begin(), bias.end(), static_cast<float>(2 * rank.rank));
      RANK_TRY(dt_reducer_ready(reducer, 1, nullptr, nullptr));
      RANK_TRY(dt_reducer_ready(reducer, 0, nullptr, nullptr));
      RANK_TRY(dt_reducer_finish(reducer, nullptr));
      if (bias != std::vector<float>(1000, 1.0F)) return DT_ERR_INTERNAL;
    }
    dt_reducer_destroy(reducer);
    return DT_OK;
  }));
}

}  // namespace dt_test::power_sgd_test
