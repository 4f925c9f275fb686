// SPDX-License-Identifier: Apache-2.0
// How lists of tensors are cut into equal parts for the GPU; no GPU needed.
#include "kernels/cuda/chunks.h"

#include <doctest/doctest.h>

#include <numeric>

#include "../../gpu/shapes.h"

using dt::Code;
using dt::Dtype;
using dt::kernels::check_part;
using dt::kernels::ChunkPlan;
using dt::kernels::kChunkElements;
using dt::kernels::plan_chunks;
using dt::kernels::plan_quantized;
using dt::kernels::plan_updates;
using dt::kernels::QuantizedTensor;
using dt::kernels::Tensor;
using dt::kernels::UpdatedTensor;

namespace {

// Addresses that are never looked at.
void* at(uintptr_t address) { return reinterpret_cast<void*>(address); }

// Each element of each tensor lies in one chunk, and chunks follow each other.
void check_plan(const std::vector<Tensor>& tensors, const ChunkPlan& plan) {
  size_t chunk = 0;
  size_t record = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.count == 0) continue;
    REQUIRE(record < plan.tensors.size());
    CHECK(plan.tensors[record].data == tensor.data);
    CHECK(plan.tensors[record].count == tensor.count);
    CHECK(plan.tensors[record].offset == tensor.offset);
    CHECK(plan.tensors[record].first_chunk == static_cast<int64_t>(chunk));
    for (int64_t begin = 0; begin < tensor.count; begin += kChunkElements, ++chunk) {
      REQUIRE(chunk < plan.tensor_of_chunk.size());
      CHECK(plan.tensor_of_chunk[chunk] == static_cast<int32_t>(record));
    }
    ++record;
  }
  CHECK(record == plan.tensors.size());
  CHECK(chunk == plan.tensor_of_chunk.size());
}

std::vector<Tensor> list_of(const std::vector<int64_t>& counts) {
  std::vector<Tensor> tensors;
  int64_t offset = 0;
  for (const int64_t count : counts) {
    tensors.push_back(
        {count == 0 ? nullptr : at(0x10000 + static_cast<uintptr_t>(offset) * 4), count, offset});
    offset += count;
  }
  return tensors;
}

}  // namespace

TEST_CASE("every element lies in one chunk, and empty tensors in none") {
  constexpr int64_t kChunk = kChunkElements;
  const std::vector<std::vector<int64_t>> lists = {
      {},
      {0},
      {1},
      {kChunk - 1, kChunk, kChunk + 1},
      {0, 3, 0, 0, 5 * kChunk, 0},
      std::vector<int64_t>(2000, 7),
  };
  for (const std::vector<int64_t>& counts : lists) {
    const std::vector<Tensor> tensors = list_of(counts);
    const auto plan = plan_chunks(tensors);
    REQUIRE(plan.ok());
    check_plan(tensors, plan.value());
  }
}

TEST_CASE("the addresses' common alignment is known") {
  const Tensor tensors[] = {{at(0x100), 1, 0}, {at(0x208), 1, 1}, {at(0x1000), 0, 2}};
  const auto plan = plan_chunks(tensors);
  REQUIRE(plan.ok());
  CHECK(plan.value().address_bits % 8 == 0);
  CHECK(plan.value().address_bits % 16 != 0);
}

TEST_CASE("a tensor that cannot be is refused, by its index") {
  const auto message = [](Tensor second) {
    const Tensor tensors[] = {{at(0x100), 1, 0}, second};
    const auto plan = plan_chunks(tensors);
    CHECK(plan.status().code() == Code::kInvalidArgument);
    return plan.status().message();
  };
  CHECK(message({nullptr, 3, 1}) == "tensor 1 has 3 elements but no memory");
  CHECK(message({at(0x100), -3, 1}) ==
        "tensor 1 has -3 elements at offset 1: neither may be negative");
  CHECK(message({at(0x100), 3, -1}) ==
        "tensor 1 has 3 elements at offset -1: neither may be negative");
  CHECK(message({at(0x100), INT64_MAX, 1}) ==
        "tensors up to 1 have more than 4398046511104 elements together");
}

TEST_CASE("updated tensors: every element lies in one chunk, and the arrays are known") {
  constexpr int64_t kChunk = kChunkElements;
  const UpdatedTensor tensors[] = {
      {at(0x100), at(0x200), at(0x300), nullptr, nullptr, kChunk + 1},
      {nullptr, nullptr, nullptr, at(0x1), nullptr, 0},  // empty: its arrays do not matter
      {at(0x1000), at(0x2000), at(0x3000), nullptr, nullptr, 2 * kChunk},
  };
  const auto plan = plan_updates(tensors, Dtype::kF32);
  REQUIRE(plan.ok());
  REQUIRE(plan.value().tensors.size() == 2);
  CHECK(plan.value().tensors[0].arrays == tensors[0]);
  CHECK(plan.value().tensors[0].first_chunk == 0);
  CHECK(plan.value().tensors[1].arrays == tensors[2]);
  CHECK(plan.value().tensors[1].first_chunk == 2);
  CHECK(plan.value().tensor_of_chunk == std::vector<int32_t>{0, 0, 1, 1});
  CHECK(plan.value().arrays.gradient);
  CHECK(plan.value().arrays.first);
  CHECK_FALSE(plan.value().arrays.second);

  const auto empty = plan_updates({}, Dtype::kF16);
  REQUIRE(empty.ok());
  CHECK(empty.value().tensor_of_chunk.empty());
  CHECK_FALSE(empty.value().arrays.gradient);
}

TEST_CASE("an updated tensor that cannot be is refused, by its index") {
  const auto message = [](Dtype dtype, UpdatedTensor first, UpdatedTensor second) {
    const UpdatedTensor tensors[] = {first, second};
    const auto plan = plan_updates(tensors, dtype);
    CHECK(plan.status().code() == Code::kInvalidArgument);
    return plan.status().message();
  };
  const UpdatedTensor f32 = {at(0x100), at(0x200), at(0x300), at(0x400), nullptr, 4};
  const UpdatedTensor f16 = {at(0x100), at(0x200), at(0x300), at(0x400), at(0x500), 4};
  const auto second_f32 = [&](auto change) {
    UpdatedTensor second = f32;
    change(&second);
    return message(Dtype::kF32, f32, second);
  };
  CHECK(second_f32([](UpdatedTensor* tensor) { tensor->count = -1; }) ==
        "updated tensor 1 has -1 elements: the count is at least 0");
  CHECK(second_f32([](UpdatedTensor* tensor) { tensor->param = nullptr; }) ==
        "updated tensor 1 has 4 elements but no memory");
  CHECK(second_f32([](UpdatedTensor* tensor) { tensor->gradient = nullptr; }) ==
        "updated tensor 1 has no gradient, unlike those before it: give all tensors of a list the "
        "same arrays");
  CHECK(second_f32([](UpdatedTensor* tensor) { tensor->second = nullptr; }) ==
        "updated tensor 1 has no second moment, unlike those before it: give all tensors of a list "
        "the same arrays");
  CHECK(second_f32([](UpdatedTensor* tensor) { tensor->first = nullptr; }) ==
        "updated tensor 1 has a second moment but no first one");
  CHECK(second_f32([](UpdatedTensor* tensor) { tensor->gradient = at(0x202); }) ==
        "updated tensor 1 has a gradient at an address that is no multiple of 4 bytes");
  CHECK(second_f32([](UpdatedTensor* tensor) { tensor->count = INT64_MAX; }) ==
        "tensors up to 1 have more than 4398046511104 elements together");
  CHECK(message(Dtype::kF16, f16, f32) ==
        "updated tensor 1 is of f16 and has no master: an f32 value per element");
  CHECK(message(Dtype::kF32, f32, f16) ==
        "updated tensor 1 is of f32 and has a master: only f16 and bf16 have");
  UpdatedTensor plain = f32;
  plain.first = plain.second = nullptr;
  CHECK(message(Dtype::kF32, plain, f32) ==
        "updated tensor 1 has a first moment, unlike those before it: give all tensors of a list "
        "the same arrays");
  UpdatedTensor odd = f16;
  odd.param = at(0x102);  // allowed: a multiple of 2
  odd.first = at(0x302);
  CHECK(message(Dtype::kF16, odd, f16) ==
        "updated tensor 0 has a first moment at an address that is no multiple of 4 bytes");
  CHECK(message(Dtype::kI64, f32, f32) == "update of i64: parameters are f16, bf16, f32 or f64");
}

TEST_CASE("quantized tensors are cut like others; what cannot be is refused with its number") {
  const auto floats = [](uintptr_t address) { return static_cast<float*>(at(address)); };
  const QuantizedTensor tensors[] = {{floats(0x100), floats(0x200), kChunkElements + 1, 0},
                                     {nullptr, nullptr, 0, 65},
                                     {floats(0x300), nullptr, 1, 65}};
  const auto plan = plan_quantized(tensors);
  REQUIRE(plan.ok());
  REQUIRE(plan.value().tensors.size() == 2);
  CHECK(plan.value().tensors[1].tensor == tensors[2]);
  CHECK(plan.value().tensors[1].first_chunk == 2);
  CHECK(plan.value().tensor_of_chunk == std::vector<int32_t>{0, 0, 1});
  const auto refusal = [&](QuantizedTensor second) {
    const QuantizedTensor both[] = {tensors[0], second};
    const auto made = plan_quantized(both);
    return made.ok() ? "" : made.status().message();
  };
  CHECK(refusal({nullptr, nullptr, 3, 0}) == "tensor 1 has 3 elements but no memory");
  CHECK(refusal({floats(0x100), nullptr, 3, -1}) ==
        "tensor 1 has 3 elements at offset -1: neither may be negative");
  CHECK(refusal({floats(0x100), floats(0x202), 3, 0}) ==
        "quantized tensor 1 lies at 0x202, no multiple of 4 bytes");
  CHECK(check_part("sum_parts", {at(0x100), 136, 2, 0, 2}).ok());
  CHECK(check_part("sum_parts", {at(0x102), 136, 2, 0, 2}).code() == Code::kInvalidArgument);
  CHECK(check_part("sum_parts", {at(0x100), 132, 2, 0, 2}).code() == Code::kInvalidArgument);
  CHECK(check_part("sum_parts", {at(0x100), 136, 0, 0, 2}).code() == Code::kInvalidArgument);
}

TEST_CASE("the shapes of the benchmarks are those of the models") {
  const auto total = [](const dt::test::Shapes& shapes) {
    return std::accumulate(shapes.begin(), shapes.end(), int64_t{0});
  };
  CHECK(dt::test::resnet50().size() == 161);
  CHECK(total(dt::test::resnet50()) == 25557032);
  CHECK(dt::test::gpt2().size() == 148);
  CHECK(total(dt::test::gpt2()) == 124439808);
}
