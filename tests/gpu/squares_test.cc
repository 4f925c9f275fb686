// SPDX-License-Identifier: Apache-2.0
// The norm from exact sums on the GPU, compared with a plain loop on the host.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "gpu.h"
#include "values.h"

using dt::Dtype;
using dt::dtype_bytes;
using dt::kernels::Tensor;
using namespace dt::test;

namespace {

constexpr Dtype kSquaredDtypes[] = {Dtype::kF16, Dtype::kBf16, Dtype::kF32, Dtype::kF64};
constexpr double kTiny = 1e-6;

Gpu& squares_gpu() {
  static Gpu* const only = new Gpu;  // CUDA may be gone when destructors of statics run
  return *only;
}

struct Norm {
  double largest[3] = {};
  int64_t sum[2] = {};  ///< sum[1] less than 2^28
  float norm = 0;
  float factor = 0;

  bool operator==(const Norm& other) const {
    return std::memcmp(largest, other.largest, sizeof largest) == 0 && sum[0] == other.sum[0] &&
           sum[1] == other.sum[1] &&
           same(static_cast<double>(norm), static_cast<double>(other.norm)) &&
           factor == other.factor;
  }
};

void carry(int64_t* sum) {
  constexpr int64_t kLow = int64_t{1} << 28;
  sum[0] += sum[1] / kLow;
  sum[1] %= kLow;
}

/// By the definition, one element after the other.
Norm norm_on_host(const std::vector<double>& values, double max_norm) {
  Norm found;
  for (const double x : values) {
    if (std::isnan(x)) {
      found.largest[2] = 1;
    } else if (std::isinf(x)) {
      found.largest[1] = 1;
    } else {
      found.largest[0] = std::max(found.largest[0], std::fabs(x));
    }
  }
  found.factor = 1;
  if (found.largest[2] > 0 || found.largest[1] > 0) {
    found.norm = found.largest[2] > 0 ? std::numeric_limits<float>::quiet_NaN()
                                      : std::numeric_limits<float>::infinity();
    return found;
  }
  if (found.largest[0] <= 0) return found;
  int exponent = 0;
  static_cast<void>(std::frexp(found.largest[0], &exponent));
  for (const double x : values) {
    const double ratio = std::ldexp(x, -exponent);
    found.sum[1] += static_cast<int64_t>(ratio * ratio * 0x1p56 + 0.5);
    carry(found.sum);
  }
  const double total = std::ldexp(static_cast<double>(found.sum[0]), -28) +
                       std::ldexp(static_cast<double>(found.sum[1]), -56);
  const double norm = std::ldexp(std::sqrt(total), exponent);
  found.norm = static_cast<float>(norm);
  const double wanted = max_norm / (norm + kTiny);
  if (wanted < 1 && std::isfinite(norm)) found.factor = static_cast<float>(wanted);
  return found;
}

/// Of all elements of the calls' tensors.
Norm norm_on_gpu(const std::vector<std::vector<Tensor>>& calls, Dtype dtype, double max_norm,
                 double type = 2) {
  Gpu& gpu = squares_gpu();
  const DeviceBytes largest(&gpu, Bytes(sizeof(Norm::largest), 0));
  const DeviceBytes sum(&gpu, Bytes(sizeof(Norm::sum), 0));
  const DeviceBytes results(&gpu, size_t{8});
  auto* const largest_at = static_cast<double*>(largest.at());
  auto* const sum_at = static_cast<int64_t*>(sum.at());
  std::vector<std::shared_ptr<dt::kernels::TensorList>> lists;
  for (const auto& tensors : calls) lists.push_back(must(gpu.kernels->prepare(tensors)));
  for (const auto& list : lists) {
    must(gpu.kernels->largest(*list, dtype, largest_at, gpu.stream));
  }
  for (const auto& list : lists) {
    must(gpu.kernels->powers(*list, dtype, largest_at, type, sum_at, gpu.stream));
  }
  must(gpu.kernels->clip_factor_of_powers(largest_at, sum_at, type, max_norm, kTiny,
                                          static_cast<float*>(results.at()),
                                          static_cast<float*>(results.at(4)), gpu.stream));
  Norm found;
  std::memcpy(found.largest, largest.read().data(), sizeof found.largest);
  std::memcpy(found.sum, sum.read().data(), sizeof found.sum);
  carry(found.sum);
  const Bytes both = results.read();
  std::memcpy(&found.norm, both.data(), sizeof found.norm);
  std::memcpy(&found.factor, &both[4], sizeof found.factor);
  return found;
}

/// `count` elements from `begin` on, in tensors of `each`.
std::vector<Tensor> tensors_of(const DeviceBytes& memory, Dtype dtype, int64_t begin, int64_t count,
                               int64_t each) {
  std::vector<Tensor> tensors;
  for (int64_t at = 0; at < count; at += each) {
    tensors.push_back(
        {memory.at((begin + at) * dtype_bytes(dtype)), std::min(each, count - at), 0});
  }
  return tensors;
}

Bytes encoded_values(Dtype dtype, const std::vector<double>& values) {
  Bytes bytes(values.size() * static_cast<size_t>(dtype_bytes(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    encode(dtype, values[i], &bytes[i * static_cast<size_t>(dtype_bytes(dtype))]);
  }
  return bytes;
}

/// Finite ones, the largest of them just below 2^exponent.
std::vector<double> finite_values(Dtype dtype, int64_t count, int exponent) {
  Random random(static_cast<uint64_t>(count));
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    const double fraction = static_cast<double>(random.next() % (1U << 30)) / (1U << 29) - 1;
    values.push_back(
        rounded(dtype, std::ldexp(fraction * 0.9, exponent - static_cast<int>(i % 40))));
  }
  return values;
}

}  // namespace

TEST_CASE("squares: the host's bits, in any split of the elements") {
  constexpr int64_t kCount = 30011;
  for (const Dtype dtype : kSquaredDtypes) {
    CAPTURE(dtype_name(dtype));
    const std::vector<double> values = finite_values(dtype, kCount, 3);
    const DeviceBytes memory(&squares_gpu(), encoded_values(dtype, values));
    const auto part = [&](int64_t begin, int64_t count, int64_t each) {
      return tensors_of(memory, dtype, begin, count, each);
    };
    const std::vector<std::vector<Tensor>> splits[] = {
        {part(0, kCount, kCount)},
        {part(0, kCount, 7)},  // thousands of tensors
        {part(0, 1, 1), part(1, kCount - 1, 4096)},
        {part(10001, kCount - 10001, 5000), {}, part(0, 10001, 1001)},
    };
    for (const double max_norm : {1e9, 1.0}) {
      const Norm expected = norm_on_host(values, max_norm);
      CHECK(expected.sum[0] > 0);
      CHECK((expected.factor < 1) == (max_norm < 2));
      for (const auto& split : splits) CHECK(norm_on_gpu(split, dtype, max_norm) == expected);
    }
  }
}

TEST_CASE("squares: of the smallest and the largest numbers") {
  for (const Dtype dtype : kSquaredDtypes) {
    const int least = dtype == Dtype::kF64 ? -1022 : float_format(dtype).least_exponent;
    for (const int exponent : {least - 3, least, least + 4, -1, 0, 1, 1 - least, 2 - least}) {
      for (const int64_t count : {1, 2, 255, 5000}) {
        CAPTURE(dtype_name(dtype));
        CAPTURE(exponent);
        CAPTURE(count);
        const std::vector<double> values = finite_values(dtype, count, exponent);
        const DeviceBytes memory(&squares_gpu(), encoded_values(dtype, values));
        CHECK(norm_on_gpu({tensors_of(memory, dtype, 0, count, count)}, dtype, 0.01) ==
              norm_on_host(values, 0.01));
      }
    }
  }
}

TEST_CASE("squares: zeros, none, one infinity or NaN anywhere") {
  constexpr int64_t kCount = 9001;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const Dtype dtype : kSquaredDtypes) {
    CAPTURE(dtype_name(dtype));
    CHECK(norm_on_gpu({}, dtype, 1) == norm_on_host({}, 1));
    CHECK(norm_on_gpu({{}}, dtype, 1) == norm_on_host({}, 1));
    std::vector<double> values(kCount, -0.0);
    DeviceBytes memory(&squares_gpu(), encoded_values(dtype, values));
    const std::vector<std::vector<Tensor>> all = {tensors_of(memory, dtype, 1, kCount - 1, 4500)};
    CHECK(norm_on_gpu(all, dtype, 1) == norm_on_host(values, 1));
    values.assign(kCount, 2);
    for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
      for (const size_t place : {size_t{1}, size_t{4097}, size_t{9000}}) {
        CAPTURE(place);
        std::vector<double> with_bad = values;
        with_bad[place] = bad;
        memory.write(encoded_values(dtype, with_bad));
        CHECK(norm_on_gpu(all, dtype, 1) == norm_on_host(with_bad, 1));
        with_bad[place / 2 + 1] = std::nan("");  // both: the norm is NaN
        memory.write(encoded_values(dtype, with_bad));
        CHECK(norm_on_gpu(all, dtype, 1) == norm_on_host(with_bad, 1));
      }
    }
  }
}

TEST_CASE("other norms: near the host's, and the same bits however the elements are split") {
  std::vector<double> values;
  for (int i = 0; i < 20'000; ++i)
    values.push_back(std::ldexp((i * 7919 % 1009) - 504, i % 9 - 12));
  const auto count = static_cast<int64_t>(values.size());
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF64}) {
    const DeviceBytes memory(&squares_gpu(), encoded_values(dtype, values));
    for (const double type : {1.0, 2.5, 3.0, 64.0, static_cast<double>(INFINITY)}) {
      CAPTURE(type);
      double largest = 0;
      double sum = 0;
      for (const double x : values) {
        largest = std::max(largest, std::fabs(x));
        if (!std::isinf(type)) sum += std::pow(std::fabs(x), type);
      }
      const double wanted = std::isinf(type) ? largest : std::pow(sum, 1 / type);
      const Norm whole =
          norm_on_gpu({tensors_of(memory, dtype, 0, count, count)}, dtype, wanted / 2, type);
      CHECK(std::fabs(static_cast<double>(whole.norm) / wanted - 1) < 1e-6);
      CHECK(std::fabs(static_cast<double>(whole.factor) - 0.5) < 1e-6);
      const int64_t cut = 7'001;
      CHECK(norm_on_gpu({tensors_of(memory, dtype, cut, count - cut, 333),
                         tensors_of(memory, dtype, 0, cut, 5'000)},
                        dtype, wanted / 2, type) == whole);
    }
  }
}

TEST_CASE("the factor of the norm scales tensors; the norm need not be asked for") {
  Gpu& gpu = squares_gpu();
  const DeviceBytes data(&gpu, encoded_values(Dtype::kF32, {3, -4}));
  const DeviceBytes largest(&gpu, Bytes(24, 0));
  const DeviceBytes sum(&gpu, Bytes(16, 0));
  const DeviceBytes factor(&gpu, size_t{4});
  auto* const largest_at = static_cast<double*>(largest.at());
  auto* const sum_at = static_cast<int64_t*>(sum.at());
  auto* const factor_at = static_cast<float*>(factor.at());
  const Tensor tensors[] = {{data.at(), 2, 0}};
  const auto list = must(gpu.kernels->prepare(tensors));
  must(gpu.kernels->largest(*list, Dtype::kF32, largest_at, gpu.stream));
  must(gpu.kernels->powers(*list, Dtype::kF32, largest_at, 2, sum_at, gpu.stream));
  must(gpu.kernels->clip_factor_of_powers(largest_at, sum_at, 2, 3, 1, nullptr, factor_at,
                                          gpu.stream));
  must(gpu.kernels->scale(*list, Dtype::kF32, 1, factor_at, gpu.stream));
  CHECK(data.read() == encoded_values(Dtype::kF32, {1.5, -2}));
}
