// SPDX-License-Identifier: Apache-2.0
// Where buckets lie, and memory that they have in their part of a step only.
#include <cstring>

#include "kernels/host/cast.h"
#include "training/reducer.h"

namespace dt::training {
namespace {

constexpr size_t kUnderWay = 2;  // reductions that keep memory before a further bucket waits

}  // namespace

/// The gradients, aligned, and behind them what travels; with the caller's gradients that alone.
void Reducer::place(Bucket& bucket, char* memory) {
  const int64_t element = dtype_bytes(bucket.dtype);
  const auto first = static_cast<size_t>(bucket.params[0]);  // has elements, if any in it has
  bucket.data = options_.places.empty()     ? memory
                : travels_apart(bucket)     ? nullptr
                : params_[first].count == 0 ? memory
                                            : options_.places[first];
  bucket.wire = has_wire(bucket) ? memory + data_bytes(bucket) : nullptr;
  const bool quantized = is_quantized(bucket.dtype);
  if (quantized) {
    const int64_t bytes = (bucket.bytes - data_bytes(bucket)) / 2;
    bucket.wire = memory + data_bytes(bucket);
    bucket.received = bucket.wire + bytes;
    // All of it travels. Memory of a GPU is zeros already.
    if (device_ == nullptr) std::memset(bucket.wire, 0, static_cast<size_t>(2 * bytes));
  }
  for (const int32_t index : bucket.params) {
    const auto param = static_cast<size_t>(index);
    Slot& slot = slots_[param];
    slot.data = options_.places.empty()     ? bucket.data + slot.start * element
                : params_[param].count == 0 ? memory
                                            : options_.places[param];
    slot.wire = slot.received = nullptr;
    if (quantized) {
      const int64_t at = kernels::quantized_bytes(slot.start / kernels::kQuantBlock, 8);
      slot.wire = bucket.wire + at;
      slot.received = bucket.received + at;
    } else if (bucket.wire != nullptr) {
      slot.wire = bucket.wire + slot.start * dtype_bytes(*options_.wire);
    }
  }
}

/// That of a bucket whose reduction has ended; where kUnderWay go on, of the first of these, once
/// it has; else more. Ranks launch buckets in one order, and the first that has not ended waits
/// for no other: this wait ends. On GPUs streams wait instead, for what is still under way then.
Status Reducer::lend(Bucket& bucket) {
  if (bucket.lent.load(std::memory_order_acquire)) return {};
  std::lock_guard lock(lending_);
  if (bucket.lent.load(std::memory_order_relaxed)) return {};
  while (!under_way_.empty()) {
    Bucket& first = *under_way_.front();
    const bool must_wait = under_way_.size() >= kUnderWay && !slabs_.has_free(bucket.bytes);
    if (!first.last_work()->done() && !must_wait) break;
    if (device_ != nullptr) {
      last_users_[first.data] = first.last_work();
    } else {
      await(first);
      if (first.last_work()->status().ok()) keep_own(first);
    }
    take_back(first);
    under_way_.pop_front();
  }
  const int64_t before = slabs_.bytes();
  DT_TRY_VALUE(char* const memory, slabs_.take(bucket.bytes));
  count_memory(slabs_.bytes() - before);
  place(bucket, memory);
  const auto user = last_users_.find(memory);
  bucket.before = user != last_users_.end() ? user->second : nullptr;
  bucket.lent.store(true, std::memory_order_release);
  return {};
}

/// Under lending_, or behind the step.
void Reducer::take_back(Bucket& bucket) {
  if (!bucket.lent.load(std::memory_order_relaxed)) return;
  slabs_.give(bucket.data);
  bucket.lent.store(false, std::memory_order_relaxed);
}

/// The reduction wrote to where this rank's part stays, but for what a hook reduced or what came as
/// another dtype.
void Reducer::keep_own(const Bucket& bucket) {
  const auto [from, to] = result_of(bucket);
  if (bucket.wire != nullptr) {
    kernels::cast(*options_.wire, bucket.wire + from * dtype_bytes(*options_.wire), bucket.dtype,
                  bucket.own, to - from);
  } else if (hook_ && to > from) {
    const int64_t element = dtype_bytes(bucket.dtype);
    std::memcpy(bucket.own, bucket.data + from * element,
                static_cast<size_t>((to - from) * element));
  }
}

/// The caller's gradient lies where this step's place is, or outside.
Status Reducer::check_lent(const Slot& slot, int32_t index, const void* grad, const char* call) {
  const char* const name = params_[static_cast<size_t>(index)].name.c_str();
  if (grad == nullptr || grad == slot.data) {
    if (slot.given || slot.begun || params_[static_cast<size_t>(index)].count == 0) return {};
    return Status(Code::kInvalidState,
                  format("%s: parameter #%d \"%s\": dt_reducer_grad gave no place for its gradient "
                         "in this step; with stage 2 call it in each step",
                         call, index, name));
  }
  std::lock_guard lock(lending_);
  if (!slabs_.contain(grad)) return {};
  return Status(Code::kInvalidArgument,
                format("%s: parameter #%d \"%s\": its gradient lies where dt_reducer_grad gave a "
                       "place in an earlier step, or for another parameter; with stage 2 call it "
                       "in each step",
                       call, index, name));
}

}  // namespace dt::training
