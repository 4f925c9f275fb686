// SPDX-License-Identifier: Apache-2.0
// Statistics of a batch that is spread over ranks, against a plain loop over the whole batch.
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "thread_ranks.h"

namespace dt_test::batch_norm_test {

namespace {

struct Layout {
  std::vector<int64_t> batches;  // of each rank
  int64_t channels;
  int64_t spatial;
};

struct Whole {
  std::vector<double> mean, variance, sum, product;
  int64_t count = 0;
};

int64_t total(const std::vector<int64_t>& batches, size_t ranks) {
  return std::accumulate(batches.begin(), batches.begin() + static_cast<std::ptrdiff_t>(ranks),
                         int64_t{0});
}

/// Every element differs; small next to its offset.
template <class T>
std::vector<T> pattern(int64_t count, double offset, uint64_t seed) {
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    values.push_back(static_cast<T>(offset + static_cast<double>(seed >> 40) / (1 << 24) - 0.5));
  }
  return values;
}

/// In extended precision, channel by channel.
template <class T>
Whole reference(const std::vector<T>& input, const std::vector<T>& gradient, const Layout& layout,
                double epsilon) {
  Whole whole;
  const int64_t batch = total(layout.batches, layout.batches.size());
  whole.count = batch * layout.spatial;
  for (int64_t c = 0; c < layout.channels; ++c) {
    std::vector<size_t> of;
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t s = 0; s < layout.spatial; ++s) {
        of.push_back(static_cast<size_t>((b * layout.channels + c) * layout.spatial + s));
      }
    }
    long double mean = 0, deviation = 0, sum = 0, product = 0;
    for (const size_t i : of) mean += input[i];
    mean /= static_cast<long double>(whole.count);
    for (const size_t i : of) deviation += (input[i] - mean) * (input[i] - mean);
    const long double variance = deviation / static_cast<long double>(whole.count);
    for (const size_t i : of) {
      sum += gradient[i];
      product += gradient[i] * (input[i] - mean) / std::sqrt(variance + epsilon);
    }
    whole.mean.push_back(static_cast<double>(mean));
    whole.variance.push_back(static_cast<double>(variance));
    whole.sum.push_back(static_cast<double>(sum));
    whole.product.push_back(static_cast<double>(product));
  }
  return whole;
}

template <class T>
constexpr dt_dtype dtype_of() {
  return sizeof(T) == 4 ? DT_F32 : DT_F64;
}

/// What each rank got, of a batch dealt out as `layout` says.
template <class T>
std::vector<Whole> on_ranks(const std::vector<T>& input, const std::vector<T>& gradient,
                            const Layout& layout, double epsilon) {
  std::vector<Whole> all(layout.batches.size());
  require_all_ok(run_ranks(static_cast<int>(all.size()), [&](const Rank& rank) -> dt_status {
    const auto r = static_cast<size_t>(rank.rank);
    const int64_t before = total(layout.batches, r) * layout.channels * layout.spatial;
    const T* const own = layout.batches[r] == 0 ? nullptr : input.data() + before;
    const T* const own_gradient = own == nullptr ? nullptr : gradient.data() + before;
    Whole& out = all[r];
    const auto channels = static_cast<size_t>(layout.channels);
    for (auto* each : {&out.mean, &out.variance, &out.sum, &out.product}) each->resize(channels);
    RANK_TRY(dt_batch_moments(rank.world, own, layout.batches[r], layout.channels, layout.spatial,
                              dtype_of<T>(), out.mean.data(), out.variance.data(), &out.count,
                              nullptr));
    return dt_batch_gradient_sums(rank.world, own, own_gradient, layout.batches[r], layout.channels,
                                  layout.spatial, dtype_of<T>(), out.mean.data(),
                                  out.variance.data(), epsilon, out.sum.data(), out.product.data(),
                                  nullptr);
  }));
  return all;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
}

void check_near(const std::vector<double>& got, const std::vector<double>& wanted,
                double tolerance) {
  REQUIRE(got.size() == wanted.size());
  for (size_t c = 0; c < got.size(); ++c) {
    CAPTURE(c);
    CAPTURE(got[c]);
    CAPTURE(wanted[c]);
    CHECK(std::fabs(got[c] - wanted[c]) <= tolerance * (1 + std::fabs(wanted[c])));
  }
}

template <class T>
void check_layout(const Layout& layout, double offset) {
  const int64_t elements =
      total(layout.batches, layout.batches.size()) * layout.channels * layout.spatial;
  const auto input = pattern<T>(elements, offset, 1);
  const auto gradient = pattern<T>(elements, 0.25, 2);
  const Whole wanted = reference(input, gradient, layout, 1e-5);
  const auto got = on_ranks(input, gradient, layout, 1e-5);
  for (const Whole& each : got) {
    CHECK(each.count == wanted.count);
    CHECK(same_bits(each.mean, got[0].mean));
    CHECK(same_bits(each.variance, got[0].variance));
    CHECK(same_bits(each.sum, got[0].sum));
    CHECK(same_bits(each.product, got[0].product));
  }
  check_near(got[0].mean, wanted.mean, 1e-14);
  check_near(got[0].variance, wanted.variance, 1e-9);  // of 1/12, whatever the offset
  check_near(got[0].sum, wanted.sum, 1e-13);
  check_near(got[0].product, wanted.product, offset == 0 ? 1e-12 : 1e-7);
}

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {{5}, 3, 1},       {{4, 4}, 3, 1},       {{4, 4}, 3, 6},          {{7, 1, 3}, 4, 1},
      {{7, 1, 3}, 2, 5}, {{0, 5, 2}, 3, 4},    {{3, 0, 0, 9}, 5, 1},    {{0, 0, 0, 4}, 1, 7},
      {{1, 1}, 1, 1},    {{64, 33, 10}, 8, 9}, {{100, 7, 0, 300}, 2, 1}};
  return all;
}

}  // namespace

TEST_CASE("batch_moments: of ranks with any share equal those of the whole batch, bit for bit") {
  for (size_t i = 0; i < layouts().size(); ++i) {
    CAPTURE(i);
    check_layout<float>(layouts()[i], 0);
    check_layout<double>(layouts()[i], 0);
  }
}

TEST_CASE("batch_moments: a mean of a million does not cost the variance its digits") {
  check_layout<double>({{50, 70, 1}, 3, 4}, 1e6);
  check_layout<float>({{50, 70, 1}, 3, 4}, 1e3);
  const Layout layout{{2, 3, 1}, 1, 1};
  const std::vector<double> constant(6, 1e6 + 1.0 / 3);
  for (const Whole& each : on_ranks(constant, constant, layout, 1e-5)) {
    CHECK(same_bits(each.variance, {0}));
    CHECK(same_bits(each.mean, {1e6 + 1.0 / 3}));
    CHECK(same_bits(each.product, {0}));
  }
}

TEST_CASE("batch_gradient_sums: give the gradient of the input that finite differences give") {
  const Layout layout{{3, 1}, 2, 2};
  const double epsilon = 1e-3;
  const auto input = pattern<double>(16, 0.5, 3);
  const auto gradient = pattern<double>(16, 0, 4);
  const Whole got = on_ranks(input, gradient, layout, epsilon)[1];
  const auto loss = [&](const std::vector<double>& at) {
    const Whole whole = reference(at, gradient, layout, epsilon);
    double sum = 0;
    for (size_t i = 0; i < at.size(); ++i) {
      const size_t c = i / 2 % 2;
      sum += gradient[i] * (at[i] - whole.mean[c]) / std::sqrt(whole.variance[c] + epsilon);
    }
    return sum;
  };
  for (size_t i = 0; i < input.size(); ++i) {
    const size_t c = i / 2 % 2;
    const double scale = 1 / std::sqrt(got.variance[c] + epsilon);
    const double normalised = (input[i] - got.mean[c]) * scale;
    const auto count = static_cast<double>(got.count);
    const double slope =
        scale * (gradient[i] - got.sum[c] / count - normalised * got.product[c] / count);
    auto above = input, below = input;
    above[i] += 1e-5;
    below[i] -= 1e-5;
    CAPTURE(i);
    CHECK(std::fabs(slope - (loss(above) - loss(below)) / 2e-5) < 1e-7);
  }
}

TEST_CASE("batch_moments: NaN and infinities stay in their channel, as in plain sums") {
  const double infinity = std::numeric_limits<double>::infinity();
  const Layout layout{{1, 1}, 6, 1};
  const std::vector<double> input = {infinity, 1, std::nan(""), infinity, infinity, 3, infinity,
                                     3,        1, -infinity,    3,        infinity};
  for (const Whole& each : on_ranks(input, input, layout, 1e-5)) {
    CHECK(each.mean[0] == infinity);
    CHECK(std::isnan(each.variance[0]));
    CHECK(each.mean[1] == 2.0);
    CHECK(each.variance[1] == 1.0);
    CHECK(std::isnan(each.mean[2]));
    CHECK(std::isnan(each.mean[3]));
    for (const size_t channel : {4, 5}) {
      CHECK(each.mean[channel] == infinity);
      CHECK(std::isnan(each.variance[channel]));
    }
    CHECK(each.sum[1] == 4.0);
    CHECK(std::isnan(each.product[2]));
  }
}

TEST_CASE("batch_moments: without any element it is an error on all ranks, and sums are 0") {
  const auto outcomes = run_ranks(3, [](const Rank& rank) -> dt_status {
    double mean[2] = {7, 7}, variance[2] = {7, 7}, sums[4] = {7, 7, 7, 7};
    RANK_TRY(dt_batch_gradient_sums(rank.world, nullptr, nullptr, 0, 2, 1, DT_F64, mean, variance,
                                    0, sums, sums + 2, nullptr));
    for (const double sum : sums) {
      if (std::fabs(sum) > 0) return DT_ERR_INTERNAL;
    }
    int64_t count = 7;
    const dt_status status =
        dt_batch_moments(rank.world, nullptr, 0, 2, 1, DT_F32, mean, variance, &count, nullptr);
    if (count != 7 || mean[0] < 7 || variance[1] < 7) return DT_ERR_INTERNAL;  // untouched
    const std::string text = dt_last_error();
    RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));  // it is whole
    if (!contains(text, "dt_batch_moments of 2 channels of f32 on comm \"world\", rank " +
                            std::to_string(rank.rank) + ": no rank has an element")) {
      return DT_ERR_INTERNAL;
    }
    return status;
  });
  for (const Outcome& outcome : outcomes) CHECK(outcome.status == DT_ERR_INVALID_ARGUMENT);
}

TEST_CASE("batch_moments: ranks of another dtype or another call are named with both sides") {
  std::vector<std::string> texts(3);
  std::vector<std::string> call_texts(3);
  require_all_ok(run_ranks(3, [&](const Rank& rank) -> dt_status {
    const double input[2] = {};
    double a[1], b[1] = {1};
    int64_t count = 0;
    const auto r = static_cast<size_t>(rank.rank);
    const dt_status status = dt_batch_moments(
        rank.world, input, 1, 1, 1, rank.rank == 1 ? DT_F64 : DT_F32, a, b, &count, nullptr);
    texts[r] = dt_last_error();
    const dt_status other =
        rank.rank == 2
            ? dt_batch_gradient_sums(rank.world, input, input, 1, 1, 1, DT_F32, input, b, 1, a, a,
                                     nullptr)
            : dt_batch_moments(rank.world, input, 1, 1, 1, DT_F32, a, b, &count, nullptr);
    call_texts[r] = dt_last_error();
    RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));  // it is whole
    return status == DT_ERR_MISMATCH && other == DT_ERR_MISMATCH ? DT_OK : DT_ERR_INTERNAL;
  }));
  for (size_t r = 0; r < 3; ++r) {
    INFO(texts[r]);
    INFO(call_texts[r]);
    CHECK(contains(texts[r],
                   ": rank 0 calls dt_batch_moments with f32, rank 1 dt_batch_moments "
                   "with f64; call the same with the same dtype on every rank"));
    CHECK(contains(call_texts[r],
                   ": rank 0 calls dt_batch_moments with f32, rank 2 "
                   "dt_batch_gradient_sums with f32; call the same"));
  }
}

TEST_CASE("batch_moments: ranks with other channels end in an error that names the counts") {
  const auto outcomes = run_ranks(2, [](const Rank& rank) {
    const float input[6] = {};
    double mean[3], variance[3];
    int64_t count = 0;
    return dt_batch_moments(rank.world, input, 2, rank.rank == 0 ? 2 : 3, 1, DT_F32, mean, variance,
                            &count, nullptr);
  });
  for (size_t r = 0; r < outcomes.size(); ++r) {
    INFO(outcomes[r].message);
    CHECK(outcomes[r].status == DT_ERR_MISMATCH);
    CHECK(contains(outcomes[r].message,
                   "dt_batch_moments of " + std::to_string(r + 2) + " channels of f32"));
    CHECK(contains(outcomes[r].message, "7"));
    CHECK(contains(outcomes[r].message, "9"));
  }
}

}  // namespace dt_test::batch_norm_test
