// SPDX-License-Identifier: Apache-2.0
#include "fake_kernels.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "elements.h"
#include "kernels/host/optimize.h"

using dt::Code;
using dt::Dtype;
using dt::kernels::Tensor;
using dt::kernels::UpdatedTensor;
using dt::test::Bf16;
using dt::test::F16;
using dt::test::FakeCuda;

TEST_CASE("every half goes to f32 and back; others round to nearest even") {
  for (int bits = 0; bits < 65536; ++bits) {
    const F16 f16{static_cast<uint16_t>(bits)};
    const Bf16 bf16{static_cast<uint16_t>(bits)};
    const bool f16_ok = std::isnan(decoded(f16))
                            ? std::isnan(decoded(dt::test::encoded_f16(decoded(f16))))
                            : dt::test::encoded_f16(decoded(f16)).bits == bits;
    const bool bf16_ok = std::isnan(decoded(bf16))
                             ? std::isnan(decoded(dt::test::encoded_bf16(decoded(bf16))))
                             : dt::test::encoded_bf16(decoded(bf16)).bits == bits;
    if (!f16_ok || !bf16_ok) FAIL("bits " << bits);
  }
  CHECK(decoded(F16{0x3c01}) == 1.0009765625f);
  CHECK(decoded(F16{0x0001}) == std::ldexp(1.0f, -24));
  CHECK(dt::test::encoded_f16(2049.0f).bits == dt::test::encoded_f16(2048.0f).bits);
  CHECK(dt::test::encoded_f16(2051.0f).bits == dt::test::encoded_f16(2052.0f).bits);
  CHECK(dt::test::encoded_f16(65519.0f).bits == 0x7bff);
  CHECK(dt::test::encoded_f16(-65520.0f).bits == 0xfc00);
  CHECK(dt::test::encoded_f16(std::ldexp(1.5f, -25)).bits == 1);
  CHECK(dt::test::encoded_bf16(257.0f).bits == dt::test::encoded_bf16(256.0f).bits);
  CHECK(dt::test::encoded_bf16(259.0f).bits == dt::test::encoded_bf16(260.0f).bits);
}

TEST_CASE("gather and scatter cast, scale and leave the gaps alone") {
  const auto cuda = std::make_shared<FakeCuda>();
  const auto kernels = dt::test::fake_tensor_kernels(cuda);
  std::vector<float> first = {1, 2, 3};
  std::vector<float> second = {10, 20};
  const Tensor tensors[] = {{first.data(), 3, 0}, {second.data(), 2, 4}};
  auto list = kernels->prepare(tensors);
  REQUIRE(list.ok());
  CHECK(list.value()->size() == 2);
  const int64_t allocations = cuda->counters().allocations;
  std::vector<uint16_t> flat(6, 0x1234);
  REQUIRE(
      kernels->gather(*list.value(), Dtype::kF32, flat.data(), Dtype::kBf16, 0.5f, nullptr).ok());
  REQUIRE(cuda->finish(nullptr));
  const float expected[] = {0.5f, 1, 1.5f, 0, 5, 10};
  for (size_t i = 0; i < 6; ++i) {
    if (i == 3) {
      CHECK(flat[i] == 0x1234);
    } else {
      CHECK(decoded(Bf16{flat[i]}) == expected[i]);
    }
  }
  REQUIRE(
      kernels->scatter(*list.value(), Dtype::kF32, flat.data(), Dtype::kBf16, 4.0f, nullptr).ok());
  REQUIRE(cuda->finish(nullptr));
  CHECK(first == std::vector<float>{2, 4, 6});
  CHECK(second == std::vector<float>{20, 40});
  CHECK(cuda->counters().allocations == allocations);
  CHECK(kernels->gather(*list.value(), Dtype::kI32, flat.data(), Dtype::kF32, 1, nullptr).code() ==
        Code::kInvalidArgument);
  list = dt::Status(Code::kInternal, "");
  CHECK(cuda->counters().live_allocations == 0);
}

TEST_CASE("the norm is of all tensors, and says what is not finite") {
  const auto cuda = std::make_shared<FakeCuda>();
  const auto kernels = dt::test::fake_tensor_kernels(cuda);
  std::vector<double> data = {3, 4};
  const Tensor tensors[] = {{data.data(), 1, 0}, {data.data() + 1, 1, 1}};
  const auto list = kernels->prepare(tensors);
  double norm = 0;
  int32_t found_inf = 0;
  REQUIRE(kernels->squared_norm(*list.value(), Dtype::kF64, &norm, &found_inf, nullptr).ok());
  REQUIRE(cuda->finish(nullptr));
  CHECK(norm == 25);
  CHECK(found_inf == 0);
  data[1] = INFINITY;
  REQUIRE(kernels->squared_norm(*list.value(), Dtype::kF64, &norm, &found_inf, nullptr).ok());
  REQUIRE(cuda->finish(nullptr));
  CHECK(found_inf == 1);
}

TEST_CASE("scale takes the factor that is on the device when it runs") {
  const auto cuda = std::make_shared<FakeCuda>();
  const auto kernels = dt::test::fake_tensor_kernels(cuda);
  std::vector<float> data = {1, 2};
  float factor = 0;
  const Tensor tensors[] = {{data.data(), 2, 0}};
  const auto list = kernels->prepare(tensors);
  REQUIRE(cuda->launch(nullptr, [&] { factor = 3; }).ok());
  REQUIRE(kernels->scale(*list.value(), Dtype::kF32, 2, &factor, nullptr).ok());
  REQUIRE(cuda->finish(nullptr));
  CHECK(data == std::vector<float>{6, 12});
}

TEST_CASE("add: floats are rounded once, integers wrap") {
  const auto cuda = std::make_shared<FakeCuda>();
  const auto kernels = dt::test::fake_tensor_kernels(cuda);
  std::vector<uint8_t> small = {250, 7};
  std::vector<float> real = {3, -6};
  const std::vector<uint8_t> small_part = {10, 7};
  const std::vector<float> real_part = {0.5f, 2};
  REQUIRE(kernels->add(small.data(), small_part.data(), Dtype::kU8, 2, nullptr).ok());
  REQUIRE(kernels->add(real.data(), real_part.data(), Dtype::kF32, 2, nullptr).ok());
  REQUIRE(cuda->finish(nullptr));
  CHECK(small == std::vector<uint8_t>{4, 14});
  CHECK(real == std::vector<float>{3.5f, -4});
}

TEST_CASE("divide truncates integers and scales the others") {
  const auto cuda = std::make_shared<FakeCuda>();
  const auto kernels = dt::test::fake_tensor_kernels(cuda);
  std::vector<int8_t> small = {-7, 7, 127};
  std::vector<uint64_t> large = {~uint64_t{0}};
  std::vector<float> real = {3, -6};
  REQUIRE(kernels->divide(small.data(), Dtype::kI8, 3, 2, nullptr).ok());
  REQUIRE(kernels->divide(large.data(), Dtype::kU64, 1, 3, nullptr).ok());
  REQUIRE(kernels->divide(real.data(), Dtype::kF32, 2, 4, nullptr).ok());
  REQUIRE(cuda->finish(nullptr));
  CHECK(small == std::vector<int8_t>{-3, 3, 63});
  CHECK(large[0] == ~uint64_t{0} / 3);
  CHECK(real == std::vector<float>{0.75f, -1.5f});
}

namespace {

constexpr dt::kernels::AdamWStep kAdamWStep = {0.1, 0.999, 0.001, 0.99, 0.25, 2, 1e-8};

/// A fake GPU with its kernels, and arrays of two parameters.
struct Parameters {
  std::shared_ptr<FakeCuda> cuda = std::make_shared<FakeCuda>();
  std::shared_ptr<dt::kernels::TensorKernels> kernels = dt::test::fake_tensor_kernels(cuda);
  std::vector<float> param = {1, 2, 3, 4};
  std::vector<float> gradient = {0.5f, -1, 2, 8};
  std::vector<float> first = {0, 1, 0, 0};
  std::vector<float> second = {0, 4, 1, 0};

  std::vector<UpdatedTensor> tensors() {
    return {
        {param.data(), gradient.data(), first.data(), second.data(), nullptr, 1},
        {nullptr, nullptr, nullptr, nullptr, nullptr, 0},
        {&param[1], &gradient[1], &first[1], &second[1], nullptr, 3},
    };
  }
};

std::vector<uint16_t> bf16_of(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(dt::test::encoded_bf16(value).bits);
  return bits;
}

}  // namespace

TEST_CASE("adamw and sgd step each parameter of a list as the host's kernels do") {
  Parameters on_gpu;
  Parameters expected;
  const auto list = on_gpu.kernels->prepare_update(on_gpu.tensors(), Dtype::kF32);
  REQUIRE(list.ok());
  REQUIRE(on_gpu.kernels->adamw(*list.value(), kAdamWStep, nullptr).ok());
  REQUIRE(on_gpu.cuda->finish(nullptr));
  dt::kernels::adamw(Dtype::kF32, kAdamWStep,
                     {expected.param.data(), expected.gradient.data(), expected.first.data(),
                      expected.second.data(), 4});
  CHECK(on_gpu.param == expected.param);
  CHECK(on_gpu.first == expected.first);
  CHECK(on_gpu.second == expected.second);

  const dt::kernels::SgdStep step = {0.5, 0.5, 1, 0.25, true};
  REQUIRE(on_gpu.kernels->sgd(*list.value(), step, nullptr).ok());
  REQUIRE(on_gpu.cuda->finish(nullptr));
  dt::kernels::sgd(Dtype::kF32, step,
                   {expected.param.data(), expected.gradient.data(), expected.first.data(), 4});
  CHECK(on_gpu.param == expected.param);
  CHECK(on_gpu.first == expected.first);
}

TEST_CASE("parameters of 16 bits are their masters, rounded") {
  Parameters arrays;
  std::vector<uint16_t> param = bf16_of({9, 9, 9, 9});  // the master counts
  const std::vector<uint16_t> gradient = bf16_of({0.5f, -1, 2, 8});
  std::vector<float> master = {1, 256, 3, 4};
  const UpdatedTensor tensors[] = {
      {param.data(), gradient.data(), nullptr, nullptr, master.data(), 4}};
  const auto list = arrays.kernels->prepare_update(tensors, Dtype::kBf16);
  REQUIRE(list.ok());
  REQUIRE(arrays.kernels->sgd(*list.value(), {0, 0, 1, 1, false}, nullptr).ok());
  REQUIRE(arrays.cuda->finish(nullptr));
  CHECK(master == std::vector<float>{0.5f, 257, 1, -4});
  CHECK(param == bf16_of({0.5f, 256, 1, -4}));

  param[2] = dt::test::encoded_bf16(7).bits;
  REQUIRE(arrays.kernels->follow(*list.value(), false, nullptr).ok());
  REQUIRE(arrays.cuda->finish(nullptr));
  CHECK(master == std::vector<float>{0.5f, 257, 7, -4});
  REQUIRE(arrays.kernels->follow(*list.value(), true, nullptr).ok());
  REQUIRE(arrays.cuda->finish(nullptr));
  CHECK(master == std::vector<float>{0.5f, 256, 7, -4});
}

TEST_CASE("a step without its arrays is refused; an empty list has nothing to do") {
  Parameters arrays;
  const auto refused = [&](std::vector<UpdatedTensor> tensors) {
    const auto list = arrays.kernels->prepare_update(tensors, Dtype::kF32);
    REQUIRE(list.ok());
    const dt::Status status = arrays.kernels->adamw(*list.value(), kAdamWStep, nullptr);
    if (!tensors.empty()) CHECK(status.code() == Code::kInvalidArgument);
    return status.message();
  };
  float* const any = arrays.param.data();
  CHECK(refused({{any, nullptr, any, any, nullptr, 1}}) ==
        "adamw of tensors without gradients: give them to prepare_update");
  CHECK(refused({{any, any, nullptr, nullptr, nullptr, 1}}) ==
        "adamw of tensors without first moments: give them to prepare_update");
  CHECK(refused({{any, any, any, nullptr, nullptr, 1}}) ==
        "adamw of tensors without second moments: give them to prepare_update");
  CHECK(refused({}).empty());
  CHECK(arrays.kernels->prepare_update({}, Dtype::kI32).status().message() ==
        "update of i32: parameters are f16, bf16, f32 or f64");
  CHECK(arrays.cuda->counters().live_allocations == 0);
}

TEST_CASE("the norm of powers is the same however the elements are split") {
  const auto cuda = std::make_shared<FakeCuda>();
  const auto kernels = dt::test::fake_tensor_kernels(cuda);
  std::vector<float> data = {3, -4, 12, 84, 1e-3f, 1e-4f};
  double type = 2;
  const auto norm_of = [&](std::vector<std::vector<Tensor>> calls, double max_norm, float* factor) {
    double largest[3] = {};
    int64_t sum[2] = {};
    float norm = -1;
    for (const bool second : {false, true}) {
      for (const auto& tensors : calls) {
        const auto list = kernels->prepare(tensors);
        REQUIRE((second ? kernels->powers(*list.value(), Dtype::kF32, largest, type, sum, nullptr)
                        : kernels->largest(*list.value(), Dtype::kF32, largest, nullptr))
                    .ok());
        REQUIRE(cuda->finish(nullptr));
      }
    }
    REQUIRE(kernels->clip_factor_of_powers(largest, sum, type, max_norm, 1, &norm, factor, nullptr)
                .ok());
    REQUIRE(cuda->finish(nullptr));
    return norm;
  };
  float factor = 0;
  CHECK(norm_of({{{data.data(), 4, 0}}}, 43, &factor) == 85.0f);
  CHECK(factor == 0.5f);
  CHECK(norm_of({{{data.data(), 4, 0}}}, 86, &factor) == 85.0f);
  CHECK(factor == 1.0f);
  const float whole = norm_of({{{data.data(), 6, 0}}}, 1, &factor);
  CHECK(norm_of({{{&data[4], 2, 0}}, {{&data[1], 3, 0}, {data.data(), 1, 0}}}, 1, &factor) ==
        whole);
  CHECK(norm_of({{}}, 1, &factor) == 0.0f);
  CHECK(factor == 1.0f);
  type = 1;
  CHECK(norm_of({{{data.data(), 4, 0}}}, 51, &factor) == 103.0f);
  type = 64;
  std::vector<float> halves(8, 0.5F);  // a power of two, of which high powers are tiny
  CHECK(std::fabs(norm_of({{{halves.data(), 8, 0}}}, 1, &factor) - 0.5165F) < 1e-4F);
  type = INFINITY;
  CHECK(norm_of({{{data.data(), 4, 0}}}, 17, &factor) == 84.0f);
  CHECK(factor == 0.2f);
  data[1] = -INFINITY;
  CHECK(norm_of({{{data.data(), 6, 0}}}, 1, &factor) == INFINITY);
  CHECK(factor == 1.0f);
  data[5] = NAN;
  CHECK(std::isnan(norm_of({{{data.data(), 6, 0}}}, 1, &factor)));
  CHECK(factor == 1.0f);
}

TEST_CASE("low rank: products, errors and orthonormal columns of two matrices") {
  const auto cuda = std::make_shared<FakeCuda>();
  const auto kernels = dt::test::fake_tensor_kernels(cuda);
  using dt::kernels::LowRankFactor;
  using dt::kernels::LowRankMatrix;
  std::vector<float> data = {1, 2, 3, 4, 5, 5};  // and the error: 3 rows of 1 2, 3 4, 5 6
  std::vector<float> error = {0, 0, 0, 0, 0, 1};
  std::vector<float> p(6);
  std::vector<float> q = {3, 4, 1, 0};  // columns 3 4 and 1 0
  std::vector<float> other = {2, 0, 0, 0};
  std::vector<float> other_p(4);
  std::vector<float> other_q(4);
  const LowRankMatrix matrices[] = {
      {data.data(), error.data(), p.data(), q.data(), 3, 2, 7},
      {other.data(), nullptr, other_p.data(), other_q.data(), 2, 2, 8},
  };
  const auto finish = [&](const dt::Status& status) {
    REQUIRE(status.ok());
    REQUIRE(cuda->finish(nullptr));
  };
  const auto near = [](const std::vector<float>& found, const std::vector<double>& right) {
    for (size_t i = 0; i < right.size(); ++i) {
      if (std::abs(static_cast<double>(found[i]) - right[i]) > 1e-6) return false;
    }
    return true;
  };
  const std::span first(matrices, 1);
  finish(kernels->orthonormalise(first, LowRankFactor::kQ, 2, nullptr));
  CHECK(near(q, {0.6, 0.8, 0.8, -0.6}));
  finish(kernels->find_p(first, 2, nullptr));
  CHECK(data[5] == 6.0f);
  CHECK(near(p, {2.2, 5, 7.8, -0.4, 0, 0.4}));
  p = {0, 0.6f, 0.8f, 1, 0, 0};
  finish(kernels->find_q(first, 2, nullptr));
  CHECK(near(q, {5.8, 7.2, 1, 2}));
  finish(kernels->restore(first, 2, nullptr));
  CHECK(near(data, {1, 2, 3.48, 4.32, 4.64, 5.76}));
  CHECK(near(error, {0, 0, -0.48, -0.32, 0.36, 0.24}));

  // Random numbers of the seed, and a column that depends on the one before.
  finish(kernels->draw_q(matrices, 2, nullptr));
  const auto drawn = q;
  CHECK(*std::min_element(q.begin(), q.end()) >= -1.0f);
  CHECK(*std::max_element(q.begin(), q.end()) < 1.0f);
  CHECK(q != other_q);
  finish(kernels->draw_q(matrices, 2, nullptr));
  CHECK(q == drawn);
  finish(kernels->find_p(std::span(matrices + 1, 1), 2, nullptr));
  CHECK(other_p[1] == 0.0f);
  finish(kernels->orthonormalise(std::span(matrices + 1, 1), LowRankFactor::kP, 2, nullptr));
  CHECK(std::abs(other_p[0]) == doctest::Approx(1));
  CHECK(other_p[3] == 0.0f);
  REQUIRE(kernels->restore({}, 2, nullptr).ok());
}
