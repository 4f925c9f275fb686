// SPDX-License-Identifier: Apache-2.0
// Gradients of f32 that travel in 8 bits, with the errors of their rounding kept for the next step.
#include <algorithm>
#include <new>

#include "training/error_feedback.h"
#include "training/reducer.h"

namespace dt::training {
namespace {

/// The blocks of a gradient from element `at` on, which is the first of its block.
template <class T>
T* block_at(T* blocks, int64_t at) {
  return blocks + kernels::quantized_bytes(at / kernels::kQuantBlock, 8);
}

}  // namespace

/// Collective.
Status Reducer::make_errors() {
  Status mine;
  try {
    errors_.resize(params_.size());
    for (size_t i = 0; i < params_.size(); ++i) {
      if (params_[i].dtype != Dtype::kF32) continue;
      errors_[i].resize(static_cast<size_t>(params_[i].count));
      count_memory(params_[i].count * static_cast<int64_t>(sizeof(float)));
    }
  } catch (const std::bad_alloc&) {
    mine = Status(Code::kOutOfMemory, "dt_reducer_create on comm \"" + comm_->name() +
                                          "\": no memory for the errors of 8 bits, 4 bytes for "
                                          "each element of f32");
  }
  return agree_on_memory(mine);
}

/// What has arrived in the slot, from there to its place in what travels. A rank that has no
/// gradient sends zeros, so that errors are not spent on a result that no rank uses.
void Reducer::quantize(const Slot& slot, size_t index, const void* from, double factor) {
  const int64_t count = params_[index].count;
  if (slot.unused) {
    kernels::quantize(8, static_cast<const float*>(from), count, slot.wire);
    return;
  }
  quantize_with_errors(static_cast<const float*>(from), count, static_cast<float>(factor),
                       errors_[index].data(), slot.wire);
}

/// Once all ranks have sent this rank its part of the bucket.
void Reducer::sum_part(const Bucket& bucket) {
  const QuantizedParts parts = parts_of(bucket);
  const auto [from, count] = parts.part(comm_->rank());
  const float factor = averages(bucket.dtype) ? 1.0F / static_cast<float>(comm_->size()) : 1.0F;
  for (size_t i = 0; i < bucket.params.size(); ++i) {
    const auto index = static_cast<size_t>(bucket.params[i]);
    const int64_t start = bucket.starts[i];
    const int64_t first = std::max(from, start);
    const int64_t last = std::min(from + count, start + params_[index].count);
    if (first >= last) continue;
    sum_with_errors(block_at(bucket.received, first - from), parts.part_bytes(), comm_->size(),
                    last - first, factor,
                    slots_[index].unused ? nullptr : errors_[index].data() + (first - start),
                    block_at(bucket.wire, first - from));
  }
}

/// Prepares what follows the operation that is being launched; as sum_replicas().
std::function<void(const Status&)> Reducer::gather_parts(Bucket* bucket) {
  backend::Collective gather = parts_of(*bucket).send_result(bucket->wire, bucket->received);
  gather.name = format("bucket %zu, sums", next_bucket_);
  auto [work, begin] = replicas_->sum(std::move(gather), [this, bucket] { sum_part(*bucket); });
  bucket->summed = last_work_ = std::move(work);
  return std::move(begin);
}

}  // namespace dt::training
