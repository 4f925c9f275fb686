// SPDX-License-Identifier: Apache-2.0
// Statistics of batches on the GPU, compared with those of the host.
#include "kernels/batch.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "gpu.h"
#include "training/batch_norm.h"
#include "values.h"

using dt::Dtype;
using namespace dt::kernels;
using namespace dt::test;

namespace {

Gpu& batch_gpu() {
  static Gpu* const only = new Gpu;  // CUDA may be gone when destructors of statics run
  return *only;
}

Bytes some_elements(Dtype dtype, int64_t count, double around, int seed) {
  Bytes bytes(static_cast<size_t>(count * dt::dtype_bytes(dtype)));
  for (int64_t i = 0; i < count; ++i) {
    const double value = around + std::sin(static_cast<double>(i) * 0.7 + seed);
    encode(dtype, value, &bytes[static_cast<size_t>(i * dt::dtype_bytes(dtype))]);
  }
  return bytes;
}

std::vector<double> doubles_of(const DeviceBytes& memory, int64_t count) {
  const Bytes bytes = memory.read();
  std::vector<double> values(static_cast<size_t>(count));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(double));
  return values;
}

/// `size`: what the numbers may be as large as before they cancel.
void check_doubles(const double* found, const std::vector<double>& right, double size,
                   const char* what) {
  CAPTURE(what);
  double most = 0;
  for (size_t c = 0; c < right.size(); ++c) {
    const double off = std::abs(found[c] - right[c]);
    most = std::isnan(off) ? HUGE_VAL : std::max(most, off);
  }
  CHECK(most <= 1e-12 * size);
}

/// Elements with room before them, so that they lie at an odd one.
struct ElementsOnGpu {
  ElementsOnGpu(Dtype dtype, const Bytes& elements)
      : bytes(&batch_gpu(), elements.size() + 16), at(dt::dtype_bytes(dtype)) {
    Bytes content(elements.size() + 16);
    std::copy(elements.begin(), elements.end(), content.begin() + at);
    bytes.write(content);
  }
  const void* data() const { return bytes.at(at); }
  DeviceBytes bytes;
  const int64_t at;
};

void check_view(int64_t batch, int64_t channels, int64_t spatial, Dtype dtype, double around) {
  CAPTURE(batch);
  CAPTURE(channels);
  CAPTURE(spatial);
  CAPTURE(dt::dtype_name(dtype));
  Gpu& gpu = batch_gpu();
  const int64_t elements = batch * channels * spatial;
  const Bytes input = some_elements(dtype, elements, around, 1);
  const Bytes gradient = some_elements(dtype, elements, 0, 2);
  const ElementsOnGpu gpu_input(dtype, input);
  const ElementsOnGpu gpu_gradient(dtype, gradient);
  const BatchView view{gpu_input.data(), gpu_gradient.data(), batch, channels, spatial, dtype};
  DeviceBytes scratch(&gpu, static_cast<size_t>(batch_scratch(channels)) * sizeof(double));
  DeviceBytes row(&gpu, static_cast<size_t>(moments_row(channels)) * sizeof(double));
  auto* const numbers = static_cast<double*>(row.at());
  const auto room = static_cast<double*>(scratch.at());
  must(gpu.kernels->batch_moments(view, room, numbers, gpu.stream));
  gpu.finish();
  const auto found = doubles_of(row, moments_row(channels));
  const dt::training::BatchShape shape{batch, channels, spatial, dtype};
  const auto right = dt::training::own_moments(input.data(), shape);
  const double size = 1 + static_cast<double>(right.count);
  CHECK(found[0] == static_cast<double>(right.count));
  check_doubles(&found[1], right.mean, 1 + std::abs(around), "mean");
  check_doubles(&found[1 + static_cast<size_t>(channels)], right.deviation, size * size,
                "deviation");
  must(gpu.kernels->batch_moments(view, room, numbers, gpu.stream));
  gpu.finish();
  CHECK(doubles_of(row, moments_row(channels)) == found);

  // Each rank's row is the same here: the whole batch several times.
  constexpr int32_t kRanks = 3;
  std::vector<double> rows;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    rows.insert(rows.end(), found.begin(), found.end());
  }
  Bytes packed(rows.size() * sizeof(double));
  std::memcpy(packed.data(), rows.data(), packed.size());
  DeviceBytes all(&gpu, packed);
  DeviceBytes merged(&gpu, static_cast<size_t>(2 * channels + 1) * sizeof(double));
  auto* const mean = static_cast<double*>(merged.at());
  double* const variance = mean + channels;
  must(gpu.kernels->merge_moments(static_cast<double*>(all.at()), kRanks, channels, mean, variance,
                                  reinterpret_cast<int64_t*>(variance + channels), gpu.stream));
  gpu.finish();
  const auto whole = doubles_of(merged, 2 * channels + 1);
  int64_t count = 0;
  std::memcpy(&count, &whole.back(), sizeof count);
  CHECK(count == kRanks * right.count);
  if (count == 0) {
    CHECK(std::isnan(whole[0]));
    CHECK(std::isnan(whole[static_cast<size_t>(channels)]));
    return;
  }
  std::vector<double> variances = right.deviation;
  for (double& each : variances) each /= static_cast<double>(right.count);
  check_doubles(whole.data(), right.mean, 1 + std::abs(around), "merged mean");
  check_doubles(&whole[static_cast<size_t>(channels)], variances, size, "variance");

  must(gpu.kernels->batch_gradient_sums(view, {mean, variance, 1e-5}, room, numbers, gpu.stream));
  gpu.finish();
  const auto sums = doubles_of(row, gradient_row(channels));
  const auto right_sums = dt::training::own_gradient_sums(
      input.data(), gradient.data(), shape, {whole.data(), whole.data() + channels, 1e-5});
  check_doubles(sums.data(), right_sums.sum, size, "sum");
  check_doubles(&sums[static_cast<size_t>(channels)], right_sums.product,
                size * (1 + std::abs(around)), "product");
}

}  // namespace

TEST_CASE("batch: moments and gradient sums are those of the host, and the same bits again") {
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBf16, Dtype::kF32, Dtype::kF64}) {
    for (const int64_t channels : {1, 31, 33, 257}) {
      for (const int64_t spatial : {1, 2, 31, 32, 33, 1000}) {
        check_view(5, channels, spatial, dtype, 3);
      }
    }
    check_view(0, 3, 1, dtype, 3);
    check_view(1, 3, 1, dtype, 3);
  }
}

TEST_CASE("batch: many slices, many channels, and a mean of a million") {
  check_view(7, 3, 20'011, Dtype::kF32, 1);
  check_view(70'001, 3, 1, Dtype::kF32, 1);
  check_view(2, 20'000, 1, Dtype::kF32, 1);
  check_view(2, 20'000, 33, Dtype::kBf16, 1);
  check_view(64, 5, 49, Dtype::kF64, 1e6);
}

TEST_CASE("batch: NaN and infinities stay in their channel, as on the host") {
  Gpu& gpu = batch_gpu();
  constexpr int64_t kChannels = 5;
  const auto infinity = static_cast<float>(HUGE_VAL);
  // An infinity first, which is no pivot; one later; both; a NaN; none.
  const float rows[] = {infinity, 1, infinity, NAN, 1, 2, infinity, -infinity, 2, 3, 3, 3, 3, 3, 5};
  Bytes input(sizeof rows);
  std::memcpy(input.data(), rows, sizeof rows);
  DeviceBytes memory(&gpu, input);
  DeviceBytes scratch(&gpu, static_cast<size_t>(batch_scratch(kChannels)) * sizeof(double));
  DeviceBytes row(&gpu, static_cast<size_t>(moments_row(kChannels)) * sizeof(double));
  must(gpu.kernels->batch_moments({memory.at(), nullptr, 3, kChannels, 1, Dtype::kF32},
                                  static_cast<double*>(scratch.at()),
                                  static_cast<double*>(row.at()), gpu.stream));
  gpu.finish();
  const auto found = doubles_of(row, moments_row(kChannels));
  const auto right = dt::training::own_moments(rows, {3, kChannels, 1, Dtype::kF32});
  for (size_t c = 0; c < kChannels; ++c) {
    CAPTURE(c);
    CHECK(std::isnan(found[1 + c]) == std::isnan(right.mean[c]));
    CHECK(std::isnan(found[1 + kChannels + c]) == std::isnan(right.deviation[c]));
    if (!std::isnan(right.mean[c])) CHECK(found[1 + c] == right.mean[c]);
    if (!std::isnan(right.deviation[c])) CHECK(found[1 + kChannels + c] == right.deviation[c]);
  }
}
