// SPDX-License-Identifier: Apache-2.0
// Buckets that a hook reduces.
#include "training/reducer.h"
#include "training/stream_marks.h"

namespace dt::training {
namespace {

constexpr int64_t kLookMs = 100;  // how often a wait for a hook checks its reducer's communicator
// How long a step that fails waits for all ranks to learn so in the order of operations.
constexpr int64_t kRefusalMs = 5'000;

}  // namespace

Status Reducer::check_hookable(const char* call, bool has_hook) const {
  if (begun_.load(std::memory_order_acquire)) {
    return Status(Code::kInvalidState,
                  format("%s: inside a step; call it after dt_reducer_finish", call));
  }
  if (has_hook &&
      (options_.wire || options_.wire_8bit || options_.predivide > 0 || options_.divide_by_users)) {
    return Status(
        Code::kInvalidState,
        format("%s: the reducer was made with wire, predivide or divide_by_users, which a "
               "hook would have to do; make it without (dt_reducer_power_sgd has a wire "
               "of its own)",
               call));
  }
  return {};
}

Status Reducer::set_hook(Hook hook) {
  DT_TRY(check_hookable("dt_reducer_set_hook", static_cast<bool>(hook)));
  hook_ = std::move(hook);
  power_sgd_ = nullptr;
  return {};
}

Status Reducer::compress(std::span<const int64_t> rows, const PowerSgd::Options& options) {
  if (options_.sum) {
    return Status(Code::kInvalidState,
                  "dt_reducer_power_sgd: the reducer sums, and PowerSGD averages; make it without "
                  "sum");
  }
  std::vector<PowerSgd::Matrix> matrices;
  for (size_t i = 0; i < params_.size(); ++i) {
    const bool whole = rows[i] > 0 && params_[i].count % rows[i] == 0;
    if (rows[i] != 0 && !whole) {
      return Status(
          Code::kInvalidArgument,
          format("dt_reducer_power_sgd: rows[%zu] is %lld, which does not divide the %lld "
                 "elements of \"%s\"",
                 i, static_cast<long long>(rows[i]), static_cast<long long>(params_[i].count),
                 params_[i].name.c_str()));
    }
    const int64_t n = std::max<int64_t>(rows[i], 1);
    const bool in_rows = params_[i].row_elements > 0;  // in no bucket
    matrices.push_back({n, in_rows ? 0 : params_[i].count / n, params_[i].dtype});
  }
  DT_TRY(check_hookable("dt_reducer_power_sgd", true));
  auto made = PowerSgd::create(comm_, std::move(matrices), options);
  Status mine = made.status();
  if (!mine.ok()) mine = mine.within("dt_reducer_power_sgd on comm \"" + comm_->name() + "\"");
  if (device_ != nullptr) {
    DT_TRY(agree_on_memory(mine));
  } else {
    DT_TRY(mine);
  }
  const std::shared_ptr<PowerSgd> state = std::move(made).value();
  DT_TRY(set_hook(
      [state](const HookBucket& bucket, int32_t stage) { return state->run(bucket, stage); }));
  power_sgd_ = state;
  return {};
}

/// Under launching_.
Status Reducer::launch_hook(Bucket& bucket) {
  const Status status = start_hook(bucket);
  if (!status.ok()) hooks_lost_ = device_ != nullptr;  // no work tells when the GPU is done
  return status;
}

Status Reducer::start_hook(Bucket& bucket) {
  if (device_ != nullptr) {
    DT_TRY_VALUE(hook_stream_, device_->begin_hook(next_bucket_, steps_around(bucket, false),
                                                   {bucket.data, bucket.count}));
  }
  bucket.launched_ns = monotonic_ns();
  DT_TRY(call_hook(bucket, 0));
  bucket.work = bucket.hooked.work;
  return {};
}

/// All ranks call it for the same buckets and stages in the same order: what it issues matches.
Status Reducer::call_hook(Bucket& bucket, int32_t stage) {
  const auto at = std::find_if(buckets_.begin(), buckets_.end(),
                               [&](const auto& each) { return each.get() == &bucket; });
  HookBucket view;
  view.index = static_cast<int32_t>(at - buckets_.begin());
  view.last = at + 1 == buckets_.end();
  view.params = bucket.params;
  view.starts = bucket.starts;
  view.data = bucket.data;
  view.count = bucket.count;
  view.dtype = bucket.dtype;
  view.stream = hook_stream_;
  bucket.hooked = {};
  // A hook that uses other communicators alone would not see it.
  if (const Status broken = comm_->broken(); !broken.ok()) return broken;
  inside_hook_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  auto started = hook_(view, stage);
  inside_hook_.store({}, std::memory_order_relaxed);
  if (started.ok()) {
    bucket.hooked = std::move(started).value();
    return {};
  }
  if (const Status broken = comm_->broken(); !broken.ok()) return broken;
  ErrorInfo info = started.status().info();
  info.rank = comm_->world_rank(comm_->rank());
  info.message =
      format("reducer on comm \"%s\": the hook failed on rank %d, bucket %d, stage %d: %s",
             comm_->name().c_str(), info.rank, view.index, stage, info.message.c_str());
  return Status(std::move(info));
}

/// Otherwise the others would wait for this rank. On GPUs the control plane reports the failure.
Status Reducer::fail_everywhere(const Status& status) {
  if (device_ == nullptr) return refuse_step(status);
  comm_->backend().fail(status);
  if (replicas_ != nullptr) {
    within_->backend().fail(status);
    replicas_->comm().backend().fail(status);
  }
  return comm_->broken();
}

/// Issues an operation that matches no other, with the reason. It fails on each rank behind what
/// that rank has issued before, so no rank loses a step that another rank has ended. Ranks that do
/// not come to it may wait in a hook on another communicator: the control plane reports to them.
Status Reducer::refuse_step(const Status& status) {
  if (comm_->size() == 1) return status;  // the next step may succeed
  std::shared_ptr<backend::Work> refusal;
  {
    // Several threads may come here, each from its ready(): one of them issues it.
    std::lock_guard lock(launching_);
    if (const Status broken = comm_->broken(); !broken.ok()) return broken;
    if (refusal_ == nullptr) {
      backend::Collective collective;
      collective.kind = backend::Kind::kBarrier;
      collective.dtype = Dtype::kU8;
      collective.name = "failed step";
      collective.timeout_ms = -1;  // the control plane reports before one is over
      collective.withheld = std::make_shared<const std::string>(status.message());
      auto work = comm_->new_work();
      if (comm_->submit(collective, work).ok()) refusal_ = std::move(work);
    }
    refusal = refusal_;
  }
  if (refusal != nullptr) {
    (void)comm_->backend().wait(*refusal, Wait{Deadline::after_ms(kRefusalMs)});
  }
  // Where all ranks refuse, the operations match and break nothing.
  if (comm_->broken().ok()) comm_->backend().fail(status);
  return status;
}

/// In host memory, until the operation is done. Its communicator may be another one, whose ranks do
/// not come any more once this one is broken: it then breaks for the same reason.
void Reducer::await_hook(const HookWork& started) const {
  backend::Backend& backend = started.comm->backend();
  while (!backend.wait(*started.work, Wait{Deadline::after_ms(kLookMs)})) {
    const Status broken = comm_->broken();
    if (broken.ok()) continue;
    backend.fail(broken);
    backend.wait(*started.work, Wait{});
    (void)backend.quiesce(Wait{Deadline::after_ms(kLastStepMs)});
    return;
  }
}

/// Waits for every work, also after a failure: their memory is in use until they are done.
Status Reducer::end_hooks(cuda::Stream stream) {
  Status first = broken_;
  bool more = true;
  for (int32_t stage = 1; more; ++stage) {
    more = false;
    for (const auto& bucket : buckets_) {
      const HookWork started = bucket->hooked;
      if (started.work == nullptr) continue;
      if (device_ == nullptr) {
        await_hook(started);
      } else if (first.ok()) {
        first = started.comm->backend().wait_stream(*started.work, hook_stream_);
      }
      if (!first.ok()) continue;
      first = started.work->status();
      if (first.ok()) first = call_hook(*bucket, stage);
      if (!first.ok()) {
        first = fail_everywhere(first);  // a work's communicator may be one of few ranks
      } else {
        more = more || bucket->hooked.work != nullptr;
      }
    }
  }
  if (first.ok()) return device_ != nullptr ? device_->end_hooks(buckets_.size(), stream) : first;
  hooks_lost_ = device_ != nullptr;
  return first;
}

}  // namespace dt::training
