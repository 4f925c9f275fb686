// SPDX-License-Identifier: Apache-2.0
// Where the gradients lie: the plan, its memory, and the change to the order of arrival.
#include <algorithm>

#include "training/reducer.h"

namespace dt::training {
namespace {

using backend::Collective;
using backend::Kind;

constexpr int64_t kHookLimitMs = 60'000;     // for what hooks have enqueued on a GPU
constexpr int64_t kGradientAlignment = 256;  // bytes: a cache line pair, and what NCCL likes

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Status Reducer::lay_out(const std::vector<int32_t>& order) {
  std::vector<PlanParam> plan_params;
  for (const Param& param : params_) plan_params.push_back({param.count, param.dtype, -1, false});
  const int64_t caps[] = {options_.first_bucket_bytes, options_.bucket_cap_bytes};
  const BucketPlan plan = plan_buckets(plan_params, caps, order);

  std::vector<std::unique_ptr<Bucket>> buckets;
  std::vector<int64_t> starts(params_.size());  // bytes from the start of the memory
  std::vector<int64_t> bucket_starts;
  std::vector<int64_t> wire_starts;  // -1: none
  int64_t total = 0;
  for (const auto& indices : plan.buckets) {
    auto bucket = std::make_unique<Bucket>();
    bucket->params = indices;
    bucket->dtype = params_[static_cast<size_t>(indices[0])].dtype;
    bucket_starts.push_back(total);
    const int64_t element = dtype_bytes(bucket->dtype);
    for (const int32_t index : indices) {
      const int64_t bytes = params_[static_cast<size_t>(index)].count * element;
      starts[static_cast<size_t>(index)] = total;
      total += round_up(bytes, kGradientAlignment);
    }
    bucket->count = (total - bucket_starts.back()) / element;
    buckets.push_back(std::move(bucket));
  }
  for (const auto& bucket : buckets) {
    const bool has_wire = options_.wire.has_value() && bucket->dtype == Dtype::kF32;
    wire_starts.push_back(has_wire ? total : -1);
    if (has_wire) {
      total += round_up(bucket->count * dtype_bytes(*options_.wire), kGradientAlignment);
    }
  }
  const auto allocated = comm_->backend().allocate(std::max<int64_t>(total, 1));
  Status mine = allocated.status();
  if (mine.ok() && device_ != nullptr && last_work_ != nullptr) {  // the GPU may be behind
    comm_->backend().wait(*last_work_, Wait());
    mine = last_work_->status();
  }
  if (mine.ok() && device_ != nullptr && !device_->await_hooks(Deadline::after_ms(kHookLimitMs))) {
    mine = Status(Code::kTimeout, "what a hook enqueued has not passed on the GPU");
  }
  if (mine.ok() && device_ != nullptr) mine = device_->reserve(buckets.size());
  if (const Status agreed = agree_on_memory(mine); !agreed.ok()) {
    if (allocated.ok()) (void)comm_->backend().release(allocated.value());
    return agreed;
  }
  void* const memory = allocated.value();

  (void)comm_->backend().release(memory_);  // nothing is under way
  if (device_ != nullptr) device_->forget();
  last_work_ = nullptr;
  memory_ = memory;
  order_ = order;
  buckets_ = std::move(buckets);
  char* const base = static_cast<char*>(memory);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b]->data = base + bucket_starts[b];
    buckets_[b]->wire = wire_starts[b] < 0 ? nullptr : base + wire_starts[b];
    for (const int32_t index : buckets_[b]->params) {
      Slot& slot = slots_[static_cast<size_t>(index)];
      slot.bucket = static_cast<int32_t>(b);
      if (slot.result == slot.data) slot.result = nullptr;
      slot.data = base + starts[static_cast<size_t>(index)];
      slot.wire = nullptr;
      if (buckets_[b]->wire != nullptr) {
        slot.wire = buckets_[b]->wire + (slot.data - buckets_[b]->data) /
                                            dtype_bytes(buckets_[b]->dtype) *
                                            dtype_bytes(*options_.wire);
      }
    }
  }
  statistics_.with([&](Statistics& s) { s.bucket_count = static_cast<int32_t>(buckets_.size()); });
  end_step();
  return {};
}

Result<bool> Reducer::all_say(bool mine, const char* question) {
  int32_t answer = mine ? 1 : 0;
  Collective agree;
  agree.kind = Kind::kAllreduce;
  agree.dtype = Dtype::kI32;
  agree.op = ReduceOp::kMin;
  agree.send = agree.recv = &answer;
  agree.count = 1;
  agree.name = question;
  DT_TRY(comm_->run_on_host(agree));
  return answer != 0;
}

/// All ranks take a new plan, or none does: else gradients of different parameters would meet.
Status Reducer::agree_on_memory(const Status& mine) {
  const Result<bool> enough = all_say(mine.ok(), "bucket memory?");
  if (!mine.ok()) return mine;
  DT_TRY(enough.status());
  if (enough.value()) return {};
  return Status(
      Code::kOutOfMemory,
      format("reducer on comm \"%s\": another rank has no memory for its buckets; its own "
             "message says how much it asked for",
             comm_->name().c_str()));
}

Status Reducer::rebuild_after_first_step() {
  if (asked_to_rebuild_ || !options_.rebuild || options_.find_unused) return {};
  asked_to_rebuild_ = true;
  // Memory that was handed out never moves; if any rank handed some out, no rank rebuilds.
  DT_TRY_VALUE(const bool may_move,
               all_say(!views_given_.load(std::memory_order_relaxed), "rebuild?"));
  if (!may_move) return {};
  return rebuild().status();
}

Result<std::vector<int32_t>> Reducer::agree_on_order() {
  std::vector<int32_t> order = last_arrivals_;
  if (order.empty()) {  // no step yet: as planned
    for (const auto& bucket : buckets_) {
      order.insert(order.end(), bucket->params.begin(), bucket->params.end());
    }
  }
  Collective collective;
  collective.kind = Kind::kBroadcast;
  collective.dtype = Dtype::kI32;
  collective.send = collective.recv = order.data();
  collective.count = static_cast<int64_t>(order.size());
  collective.name = "arrival order";
  DT_TRY(comm_->run_on_host(collective));
  return order;
}

Result<bool> Reducer::rebuild() {
  DT_TRY(comm_->check_ungrouped("dt_reducer_rebuild"));
  if (begun_.load(std::memory_order_acquire)) {
    return Status(Code::kInvalidState,
                  "dt_reducer_rebuild: inside a step; call it after dt_reducer_finish");
  }
  DT_TRY_VALUE(const std::vector<int32_t> order, agree_on_order());
  std::vector<std::vector<int32_t>> before;
  for (const auto& bucket : buckets_) before.push_back(bucket->params);
  // The broadcast order is the same on all ranks, and so is the plan that was in force: all ranks
  // find the same answer.
  std::vector<PlanParam> plan_params;
  for (const Param& param : params_) plan_params.push_back({param.count, param.dtype, -1, false});
  const int64_t caps[] = {options_.first_bucket_bytes, options_.bucket_cap_bytes};
  const bool changed = plan_buckets(plan_params, caps, order).buckets != before;
  if (changed) DT_TRY(lay_out(order));
  statistics_.with([](Statistics& s) { s.rebuilt = true; });
  return changed;
}

}  // namespace dt::training
