// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/chunks.h"

namespace dt::kernels {
namespace {

constexpr int64_t kMostChunks = int64_t{1} << 30;  // 4 G elements times 1024: no GPU holds them

Status check(const Tensor& tensor, size_t index) {
  if (tensor.count < 0 || tensor.offset < 0) {
    return Status(
        Code::kInvalidArgument,
        format("tensor %zu has %lld elements at offset %lld: neither may be negative", index,
               static_cast<long long>(tensor.count), static_cast<long long>(tensor.offset)));
  }
  if (tensor.data == nullptr && tensor.count > 0) {
    return Status(Code::kInvalidArgument, format("tensor %zu has %lld elements but no memory",
                                                 index, static_cast<long long>(tensor.count)));
  }
  return {};
}

}  // namespace

Result<ChunkPlan> plan_chunks(std::span<const Tensor> tensors) {
  ChunkPlan plan;
  int64_t chunks = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    DT_TRY(check(tensor, i));
    if (tensor.count == 0) continue;
    plan.tensors.push_back({tensor.data, tensor.count, tensor.offset, chunks});
    plan.address_bits |= reinterpret_cast<uintptr_t>(tensor.data);
    // Before the sum, so that it cannot overflow.
    const int64_t here = (tensor.count - 1) / kChunkElements + 1;
    if (here > kMostChunks - chunks) {
      return Status(Code::kInvalidArgument,
                    format("tensors up to %zu have more than %lld elements together", i,
                           static_cast<long long>(kMostChunks * kChunkElements)));
    }
    chunks += here;
  }
  plan.tensor_of_chunk.reserve(static_cast<size_t>(chunks));
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    const int64_t here = (plan.tensors[t].count - 1) / kChunkElements + 1;
    plan.tensor_of_chunk.insert(plan.tensor_of_chunk.end(), static_cast<size_t>(here),
                                static_cast<int32_t>(t));
  }
  return plan;
}

}  // namespace dt::kernels
