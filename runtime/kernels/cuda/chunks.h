// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/tensors.h"

namespace dt::kernels {

/// Elements that a thread block handles at once: a chunk is a part of one tensor, and all but a
/// tensor's last are of this size. 16 KiB of f32: small enough that the blocks end together even
/// for ResNet-50 (6,300 chunks), large enough that finding its tensor costs a block little.
inline constexpr int32_t kChunkElements = 4096;

/// One tensor as the kernels see it.
struct TensorRecord {
  void* data = nullptr;
  int64_t count = 0;
  int64_t offset = 0;
  int64_t first_chunk = 0;
};

/// The work on a list of tensors in equal parts.
struct ChunkPlan {
  std::vector<TensorRecord> tensors;     ///< without the empty ones
  std::vector<int32_t> tensor_of_chunk;  ///< index into `tensors`
  /// All addresses together by bitwise or: what divides it divides each of them.
  uintptr_t address_bits = 0;
};

/// Pure. INVALID_ARGUMENT names the tensor with a negative count or offset, or without memory.
Result<ChunkPlan> plan_chunks(std::span<const Tensor> tensors);

/// One updated tensor as the kernels see it.
struct UpdateRecord {
  UpdatedTensor arrays;
  int64_t first_chunk = 0;
};

/// Which arrays the tensors of a list have, besides those that their dtype requires.
struct UpdateArrays {
  bool gradient = false;
  bool first = false;
  bool second = false;
};

/// INVALID_ARGUMENT where `call` needs arrays that the tensors do not have.
Status check_arrays(const char* call, UpdateArrays given, UpdateArrays needed);

/// The steps of a list of parameters in equal parts.
struct UpdatePlan {
  std::vector<UpdateRecord> tensors;     ///< without the empty ones
  std::vector<int32_t> tensor_of_chunk;  ///< index into `tensors`
  UpdateArrays arrays;                   ///< of each tensor
};

/// Pure. INVALID_ARGUMENT names the tensor whose arrays lack one, have one too many, differ from
/// those of the tensors before it, or lie at an address that the size of their elements does not
/// divide.
Result<UpdatePlan> plan_updates(std::span<const UpdatedTensor> tensors, Dtype dtype);

/// One quantized tensor as the kernels see it.
struct QuantizedRecord {
  QuantizedTensor tensor;
  int64_t first_chunk = 0;
};

/// The blocks of quantized tensors in equal parts.
struct QuantizedPlan {
  std::vector<QuantizedRecord> tensors;  ///< without the empty ones
  std::vector<int32_t> tensor_of_chunk;  ///< index into `tensors`
};

/// Pure. INVALID_ARGUMENT names the tensor with a negative count or block, without memory, or at an
/// address that 4 does not divide.
Result<QuantizedPlan> plan_quantized(std::span<const QuantizedTensor> tensors);

/// INVALID_ARGUMENT where `call` cannot work on blocks at this address.
Status check_blocks(const char* call, const void* blocks);
/// Likewise on such parts.
Status check_part(const char* call, const QuantizedPart& part);

}  // namespace dt::kernels
