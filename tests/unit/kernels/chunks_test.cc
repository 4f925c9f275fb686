// SPDX-License-Identifier: Apache-2.0
// How lists of tensors are cut into equal parts for the GPU; no GPU needed.
#include "kernels/cuda/chunks.h"

#include <doctest/doctest.h>

#include <numeric>

#include "../../gpu/shapes.h"

using dt::Code;
using dt::kernels::ChunkPlan;
using dt::kernels::kChunkElements;
using dt::kernels::plan_chunks;
using dt::kernels::Tensor;

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

TEST_CASE("the shapes of the benchmarks are those of the models") {
  const auto total = [](const dt::test::Shapes& shapes) {
    return std::accumulate(shapes.begin(), shapes.end(), int64_t{0});
  };
  CHECK(dt::test::resnet50().size() == 161);
  CHECK(total(dt::test::resnet50()) == 25557032);
  CHECK(dt::test::gpt2().size() == 148);
  CHECK(total(dt::test::gpt2()) == 124439808);
}
