// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/chunks.h"

#include "kernels/host/quantize.h"

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

int64_t chunks_of(int64_t count) { return (count - 1) / kChunkElements + 1; }

/// Gives each record its first chunk and returns the tensor of each chunk. `indices` are those of
/// the records in the caller's list.
template <class Record, class Count>
Result<std::vector<int32_t>> number_chunks(std::vector<Record>* records,
                                           const std::vector<size_t>& indices, Count count) {
  int64_t chunks = 0;
  for (size_t t = 0; t < records->size(); ++t) {
    Record& record = (*records)[t];
    record.first_chunk = chunks;
    // Before the sum, so that it cannot overflow.
    const int64_t here = chunks_of(count(record));
    if (here > kMostChunks - chunks) {
      return Status(Code::kInvalidArgument,
                    format("tensors up to %zu have more than %lld elements together", indices[t],
                           static_cast<long long>(kMostChunks * kChunkElements)));
    }
    chunks += here;
  }
  std::vector<int32_t> tensor_of_chunk;
  tensor_of_chunk.reserve(static_cast<size_t>(chunks));
  for (size_t t = 0; t < records->size(); ++t) {
    tensor_of_chunk.insert(tensor_of_chunk.end(),
                           static_cast<size_t>(chunks_of(count((*records)[t]))),
                           static_cast<int32_t>(t));
  }
  return tensor_of_chunk;
}

Status refused(size_t index, const std::string& reason) {
  return Status(Code::kInvalidArgument, format("updated tensor %zu ", index) + reason);
}

/// One of the arrays of an updated tensor.
struct Array {
  const char* name;
  const void* data;
  const void* before;  ///< the same one of the first tensor
  int64_t element_bytes;
};

Status check_update(const UpdatedTensor& tensor, const UpdatedTensor& before, size_t index,
                    Dtype dtype) {
  if (tensor.param == nullptr) {
    return refused(index,
                   format("has %lld elements but no memory", static_cast<long long>(tensor.count)));
  }
  const int64_t narrow = dtype_bytes(dtype);
  const int64_t wide = dtype == Dtype::kF64 ? narrow : dtype_bytes(Dtype::kF32);
  if ((tensor.master != nullptr) != (narrow < wide)) {
    return refused(index,
                   format(narrow < wide ? "is of %s and has no master: an f32 value per element"
                                        : "is of %s and has a master: only f16 and bf16 have",
                          dtype_name(dtype)));
  }
  if (tensor.second != nullptr && tensor.first == nullptr) {
    return refused(index, "has a second moment but no first one");
  }
  for (const Array& array : {Array{"param", tensor.param, before.param, narrow},
                             Array{"gradient", tensor.gradient, before.gradient, narrow},
                             Array{"first moment", tensor.first, before.first, wide},
                             Array{"second moment", tensor.second, before.second, wide},
                             Array{"master", tensor.master, before.master, wide}}) {
    if ((array.data == nullptr) != (array.before == nullptr)) {
      return refused(index, format("has %s %s, unlike those before it: give all tensors of a list "
                                   "the same arrays",
                                   array.data == nullptr ? "no" : "a", array.name));
    }
    if (reinterpret_cast<uintptr_t>(array.data) % static_cast<uintptr_t>(array.element_bytes) !=
        0) {
      return refused(index, format("has a %s at an address that is no multiple of %lld bytes",
                                   array.name, static_cast<long long>(array.element_bytes)));
    }
  }
  return {};
}

}  // namespace

Result<ChunkPlan> plan_chunks(std::span<const Tensor> tensors) {
  ChunkPlan plan;
  std::vector<size_t> indices;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    DT_TRY(check(tensor, i));
    if (tensor.count == 0) continue;
    plan.tensors.push_back({tensor.data, tensor.count, tensor.offset, 0});
    plan.address_bits |= reinterpret_cast<uintptr_t>(tensor.data);
    indices.push_back(i);
  }
  DT_TRY_VALUE(plan.tensor_of_chunk,
               number_chunks(&plan.tensors, indices,
                             [](const TensorRecord& record) { return record.count; }));
  return plan;
}

Status check_arrays(const char* call, UpdateArrays given, UpdateArrays needed) {
  const char* lacking = nullptr;
  if (needed.second && !given.second) lacking = "second moments";
  if (needed.first && !given.first) lacking = "first moments";
  if (needed.gradient && !given.gradient) lacking = "gradients";
  if (lacking == nullptr) return {};
  return Status(Code::kInvalidArgument,
                format("%s of tensors without %s: give them to prepare_update", call, lacking));
}

Result<UpdatePlan> plan_updates(std::span<const UpdatedTensor> tensors, Dtype dtype) {
  if (!is_floating(dtype)) {
    return Status(Code::kInvalidArgument, std::string("update of ") + dtype_name(dtype) +
                                              ": parameters are f16, bf16, f32 or f64");
  }
  UpdatePlan plan;
  std::vector<size_t> indices;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const UpdatedTensor& tensor = tensors[i];
    if (tensor.count < 0) {
      return refused(i, format("has %lld elements: the count is at least 0",
                               static_cast<long long>(tensor.count)));
    }
    if (tensor.count == 0) continue;
    DT_TRY(check_update(tensor, plan.tensors.empty() ? tensor : plan.tensors.front().arrays, i,
                        dtype));
    plan.tensors.push_back({tensor, 0});
    indices.push_back(i);
  }
  if (!plan.tensors.empty()) {
    const UpdatedTensor& any = plan.tensors.front().arrays;
    plan.arrays = {any.gradient != nullptr, any.first != nullptr, any.second != nullptr};
  }
  DT_TRY_VALUE(plan.tensor_of_chunk,
               number_chunks(&plan.tensors, indices,
                             [](const UpdateRecord& record) { return record.arrays.count; }));
  return plan;
}

Result<QuantizedPlan> plan_quantized(std::span<const QuantizedTensor> tensors) {
  static_assert(kChunkElements % kQuantBlock == 0);
  QuantizedPlan plan;
  std::vector<size_t> indices;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const QuantizedTensor& tensor = tensors[i];
    DT_TRY(check({tensor.data, tensor.count, tensor.block}, i));
    if (tensor.count == 0) continue;
    for (const float* const array : {tensor.data, tensor.errors}) {
      if (reinterpret_cast<uintptr_t>(array) % sizeof(float) == 0) continue;
      return Status(Code::kInvalidArgument,
                    format("quantized tensor %zu lies at %p, no multiple of 4 bytes", i,
                           static_cast<const void*>(array)));
    }
    plan.tensors.push_back({tensor, 0});
    indices.push_back(i);
  }
  DT_TRY_VALUE(plan.tensor_of_chunk,
               number_chunks(&plan.tensors, indices,
                             [](const QuantizedRecord& record) { return record.tensor.count; }));
  return plan;
}

Status check_blocks(const char* call, const void* blocks) {
  if (reinterpret_cast<uintptr_t>(blocks) % sizeof(float) == 0) return {};
  return Status(Code::kInvalidArgument,
                format("%s of blocks at %p, no multiple of 4 bytes", call, blocks));
}

Status check_part(const char* call, const QuantizedPart& part) {
  DT_TRY(check_blocks(call, part.blocks));
  const int64_t bytes = quantized_bytes(part.count, 8);
  if (part.ranks >= 1 && part.first >= 0 && part.count >= 0 && part.stride >= bytes &&
      part.stride % static_cast<int64_t>(sizeof(float)) == 0) {
    return {};
  }
  return Status(
      Code::kInvalidArgument,
      format(
          "%s of %lld blocks from %lld on, of %d ranks every %lld bytes: there is at least one "
          "rank, no number is negative, and 4 divides the bytes, which hold all blocks of a rank",
          call, static_cast<long long>(part.count), static_cast<long long>(part.first), part.ranks,
          static_cast<long long>(part.stride)));
}

}  // namespace dt::kernels
