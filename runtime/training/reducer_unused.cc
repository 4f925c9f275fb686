// SPDX-License-Identifier: Apache-2.0
// Parameters that have no gradient in a step.
#include "training/reducer.h"

namespace dt::training {

Status Reducer::unused(int32_t index, void* grad, cuda::Stream stream) {
  if (slots_[static_cast<size_t>(index)].rows != nullptr) {
    return not_dense(index, "dt_reducer_unused");
  }
  if (options_.static_graph) return place_unused(index, grad, stream);
  if (!options_.find_unused) {
    return Status(Code::kInvalidState,
                  format("dt_reducer_unused: parameter #%d \"%s\": the reducer was not made with "
                         "find_unused, with which ranks tell each other what they used",
                         index, params_[static_cast<size_t>(index)].name.c_str()));
  }
  return arrive(index, grad, stream, /*unused=*/true, "dt_reducer_unused");
}

Result<bool> Reducer::used(int32_t index) const {
  if (has_users()) return users_.empty() || users_[static_cast<size_t>(index)] != 0;
  return Status(
      Code::kInvalidState,
      "dt_reducer_used: the reducer was not made with find_unused or static_graph, so every "
      "parameter is used");
}

Result<int32_t> Reducer::active() const {
  if (!options_.find_unused) {
    return Status(Code::kInvalidState,
                  "dt_reducer_active: the reducer was not made with find_unused, so every rank has "
                  "all gradients in each step");
  }
  return users_.empty() ? comm_->size() : users_.back();
}

Status Reducer::take_rest_as_unused(cuda::Stream stream) {
  Status first;
  if (arrived_.load(std::memory_order_acquire) == dense_) return first;
  for (const auto& bucket : buckets_) {  // in their order, so that memory of one serves the next
    for (const int32_t index : bucket->params) {
      const Slot& slot = slots_[static_cast<size_t>(index)];
      if (slot.rows != nullptr || slot.arrived.load(std::memory_order_acquire)) continue;
      const Status status = arrive(index, nullptr, stream, /*unused=*/true, "dt_reducer_finish");
      if (first.ok()) first = status;
    }
  }
  return first;
}

/// Over GPUs beside the buckets, in host memory: this waits for the other ranks, and not for GPUs.
Status Reducer::agree_on_used() {
  users_.assign(params_.size() + 1, 0);
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].unused) users_[i] = users_.back() = 1;
  }
  backend::Collective collective;
  collective.kind = backend::Kind::kAllreduce;
  collective.dtype = Dtype::kI32;
  collective.op = ReduceOp::kSum;
  collective.send = users_.data();
  collective.recv = users_.data();
  collective.count = static_cast<int64_t>(users_.size());
  collective.name = "used parameters";
  return comm_->run_on_host(collective);
}

/// The average of what this rank did not use, but another one.
Status Reducer::bring_unused(cuda::Stream stream) {
  if (options_.by_units()) return {};  // nothing goes back outside
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (!slot.unused || slot.copied_from == nullptr || users_[i] == 0) continue;
    DT_TRY(device_->copy(slot.copied_from, slot.data,
                         params_[i].count * dtype_bytes(params_[i].dtype), stream));
  }
  return {};
}

}  // namespace dt::training
