// SPDX-License-Identifier: Apache-2.0
// How gradients come into their buckets.
#include <cstring>

#include "kernels/host/cast.h"
#include "kernels/host/reduce.h"
#include "training/reducer.h"

namespace dt::training {
namespace {

size_t bytes_of(const Param& param) {
  return static_cast<size_t>(param.count * dtype_bytes(param.dtype));
}

}  // namespace

Result<void*> Reducer::grad(int32_t index, cuda::Stream stream) {
  memory_stays_.store(true, std::memory_order_relaxed);
  Slot& slot = slots_[static_cast<size_t>(index)];
  if (slot.rows != nullptr) return not_dense(index, "dt_reducer_grad");
  if (!options_.pooled()) return static_cast<void*>(slot.data);
  if (device_ != nullptr) DT_TRY(check_not_capturing("dt_reducer_grad", index, stream));
  std::lock_guard lock(slot.mutex);
  if (slot.arrived.load(std::memory_order_relaxed)) {
    return Status(
        Code::kInvalidState,
        format("dt_reducer_grad: parameter #%d \"%s\" became ready in this step, and with "
               "stage 2 its place is used for others; call it before dt_reducer_ready",
               index, params_[static_cast<size_t>(index)].name.c_str()));
  }
  Bucket& bucket = *buckets_[static_cast<size_t>(slot.bucket)];
  DT_TRY(lend(bucket));
  // In each call, because another stream may write each gradient.
  if (bucket.before != nullptr) DT_TRY(last_backend().wait_stream(*bucket.before, stream));
  slot.given = true;
  return static_cast<void*>(slot.data);
}

Status Reducer::ready(int32_t index, void* grad, cuda::Stream stream) {
  return arrive(index, grad, stream, /*unused=*/false, "dt_reducer_ready");
}

Status Reducer::arrive(int32_t index, void* grad, cuda::Stream stream, bool unused,
                       const char* call) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  const Param& param = params_[static_cast<size_t>(index)];
  const bool accumulating = accumulating_.load(std::memory_order_relaxed);
  DT_TRY(comm_->check_ungrouped(call));
  if (device_ != nullptr) DT_TRY(check_on_device(param, index, grad, stream));
  if (inside_hook_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
    return Status(Code::kInvalidState,
                  std::string(call) +
                      ": called by the reducer's own hook, which would wait for "
                      "itself");
  }
  {
    std::lock_guard lock(slot.mutex);
    if (slot.arrived.load(std::memory_order_relaxed) || slot.uses == 0) {
      return too_often(index, call);
    }
    if (unused && accumulating) return {};
    if (options_.pooled()) {
      DT_TRY(lend(*buckets_[static_cast<size_t>(slot.bucket)]));
      if (!unused) DT_TRY(check_lent(slot, index, grad, call));
    }
    const bool last =
        !accumulating && (unused || (!learning() && slot.times_ready + 1 >= slot.uses));
    begun_.store(true, std::memory_order_relaxed);
    if (!last) {
      DT_TRY(add_part(slot, param, grad, stream));
      slot.begun = true;
      if (accumulating) return {};
      ++slot.times_ready;
      if (learning()) slot.last_ready = calls_.fetch_add(1, std::memory_order_relaxed);
      slot.copied_from = outside(slot, grad);
      return {};
    }
    slot.unused = unused && !slot.begun;
    if (unused && grad == nullptr) grad = slot.copied_from;  // of the parts before
    DT_TRY(device_ != nullptr ? deliver_on_device(slot, param, grad, stream, unused)
                              : deliver(slot, param, grad, unused));
    ++slot.times_ready;
    slot.arrived.store(true, std::memory_order_release);
  }
  const int32_t position = arrived_.fetch_add(1, std::memory_order_relaxed);
  arrivals_[static_cast<size_t>(position)] = index;
  Bucket& bucket = *buckets_[static_cast<size_t>(slot.bucket)];
  if (bucket.pending.fetch_sub(1, std::memory_order_acq_rel) != 1) {
    (void)comm_->backend().help();
    if (options_.wire_8bit && replicas_ != nullptr) (void)replicas_->comm().backend().help();
    return {};
  }
  return launch(/*all=*/false, stream);
}

Status Reducer::too_often(int32_t index, const char* call) const {
  const Param& param = params_[static_cast<size_t>(index)];
  const int32_t uses = slots_[static_cast<size_t>(index)].uses;
  if (param.row_elements > 0) return not_dense(index, call);
  if (learnt_) {
    return Status(
        Code::kInvalidState,
        format("%s: parameter #%d \"%s\" became ready more often on rank %d than in step 1 (%d "
               "times), and with static_graph every step is like that; make the reducer with "
               "find_unused if steps differ",
               call, index, param.name.c_str(), comm_->rank(), uses));
  }
  return Status(
      Code::kInvalidState,
      format("%s: parameter #%d \"%s\" became ready %s in one step on "
             "rank %d; call it %s per parameter, then dt_reducer_finish",
             call, index, param.name.c_str(), uses > 1 ? "more often than its uses" : "twice",
             comm_->rank(), uses > 1 ? "as often as its uses" : "once"));
}

Status Reducer::check_on_device(const Param& param, int32_t index, const void* grad,
                                cuda::Stream stream) const {
  const auto address = reinterpret_cast<uintptr_t>(grad);
  if (address % static_cast<uintptr_t>(dtype_bytes(param.dtype)) != 0) {
    return Status(
        Code::kInvalidArgument,
        format("dt_reducer_ready: gradient #%d \"%s\" lies at %p, no multiple of the %lld "
               "bytes of its elements",
               index, param.name.c_str(), grad, static_cast<long long>(dtype_bytes(param.dtype))));
  }
  return check_not_capturing("dt_reducer_ready", index, stream);
}

Status Reducer::check_not_capturing(const char* call, int32_t index, cuda::Stream stream) const {
  DT_TRY_VALUE(const bool capturing, device_->is_capturing(stream));
  if (!capturing) return {};
  return DeviceStep::capture_refused(format("%s of #%d \"%s\" on comm \"%s\"", call, index,
                                            params_[static_cast<size_t>(index)].name.c_str(),
                                            comm_->name().c_str()));
}

/// `part` is added to what the slot has of this step. One in the slot was added by the caller.
Status Reducer::add_part(const Slot& slot, const Param& param, const void* part,
                         cuda::Stream stream) {
  if (device_ != nullptr) return add_part_on_device(slot, param, part, stream);
  if (part == nullptr || part == slot.data) return {};
  if (!slot.begun) {
    std::memcpy(slot.data, part, bytes_of(param));
    return {};
  }
  const void* const parts[] = {slot.data, part};
  kernels::reduce({.dtype = param.dtype, .op = ReduceOp::kSum}, slot.data, parts, 2, param.count);
  return {};
}

Status Reducer::add_part_on_device(const Slot& slot, const Param& param, const void* part,
                                   cuda::Stream stream) {
  const auto bucket = static_cast<size_t>(slot.bucket);
  if (const auto& before = buckets_[bucket]->before; before != nullptr) {
    DT_TRY(last_backend().wait_stream(*before, stream));
  }
  if (slot.begun) DT_TRY(device_->wait_for_parts(bucket, stream));
  if (part != nullptr && part != slot.data) {
    DT_TRY(slot.begun
               ? device_->add(slot.data, part, param.dtype, param.count, stream)
               : device_->copy(slot.data, part, static_cast<int64_t>(bytes_of(param)), stream));
  }
  return device_->record(bucket, stream);
}

/// The last part of the gradient; `unused`: there is none, and `grad` only takes the result.
Status Reducer::deliver(Slot& slot, const Param& param, void* grad, bool unused) {
  slot.copied_from = outside(slot, grad);
  const void* from = slot.data;
  if (slot.unused) {
    std::memset(slot.data, 0, bytes_of(param));
  } else if (!unused && slot.begun) {
    DT_TRY(add_part(slot, param, grad, nullptr));
  } else if (!unused && slot.copied_from != nullptr) {
    from = slot.copied_from;
  }
  const double factor = factor_before(param.dtype);
  if (slot.received != nullptr) {
    quantize(slot, static_cast<size_t>(&slot - slots_.data()), from, factor);
  } else if (slot.wire != nullptr) {
    kernels::cast(param.dtype, from, *options_.wire, slot.wire, param.count, factor);
  } else if (factor != 1) {
    kernels::cast(param.dtype, from, param.dtype, slot.data, param.count, factor);
  } else if (from != slot.data) {
    std::memcpy(slot.data, from, bytes_of(param));
  }
  return {};
}

/// A gradient outside its bucket is gathered when that is launched: parts that wait in the slot are
/// added to it beforehand.
Status Reducer::deliver_on_device(Slot& slot, const Param& param, void* grad, cuda::Stream stream,
                                  bool unused) {
  const auto bucket = static_cast<size_t>(slot.bucket);
  slot.copied_from = outside(slot, grad);
  if (slot.begun) {
    DT_TRY(device_->wait_for_parts(bucket, stream));
    if (options_.by_units()) {  // nothing is written to what the caller gave
      if (slot.copied_from != nullptr && !unused) {
        DT_TRY(device_->add(slot.data, grad, param.dtype, param.count, stream));
      }
      slot.copied_from = nullptr;
    } else if (slot.copied_from != nullptr && unused) {
      DT_TRY(device_->copy(grad, slot.data, static_cast<int64_t>(bytes_of(param)), stream));
    } else if (slot.copied_from != nullptr) {
      DT_TRY(device_->add(grad, slot.data, param.dtype, param.count, stream));
    }
  }
  return device_->record(bucket, stream);
}

}  // namespace dt::training
