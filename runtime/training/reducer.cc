// SPDX-License-Identifier: Apache-2.0
#include "training/reducer.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace dt::training {
namespace {

using backend::Collective;
using backend::Kind;

constexpr int64_t kGradientAlignment = 256;  // bytes: a cache line pair, and what NCCL likes
constexpr size_t kNamedParams = 8;           // per bucket and rank in a message

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Reducer::Reducer(std::shared_ptr<comm::Communicator> comm, std::vector<Param> params,
                 const Options& options)
    : comm_(std::move(comm)),
      params_(std::move(params)),
      options_(options),
      slots_(params_.size()),
      arrivals_(params_.size()) {}

Reducer::~Reducer() {
  for (const auto& bucket : buckets_) {
    // Destroyed inside a step: peers may still write into the memory, so it stays with the
    // communicator's arena.
    if (bucket->work != nullptr && !bucket->work->done()) return;
  }
  (void)comm_->backend().release(memory_);
}

Result<std::unique_ptr<Reducer>> Reducer::create(std::shared_ptr<comm::Communicator> comm,
                                                 std::vector<Param> params,
                                                 const Options& options) {
  if (comm->backend().device() != nullptr) {
    return Status(Code::kUnsupported,
                  format("reducer on comm \"%s\": its gradients would be on a GPU, for which this "
                         "release has no reducer; reduce them with dt_allreduce",
                         comm->name().c_str()));
  }
  std::unique_ptr<Reducer> reducer(new Reducer(std::move(comm), std::move(params), options));
  DT_TRY(reducer->check_model());
  std::vector<int32_t> order(reducer->params_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  DT_TRY(reducer->lay_out(order));
  return reducer;
}

Status Reducer::lay_out(const std::vector<int32_t>& order) {
  std::vector<PlanParam> plan_params;
  for (const Param& param : params_) plan_params.push_back({param.count, param.dtype, -1, false});
  const int64_t caps[] = {options_.first_bucket_bytes, options_.bucket_cap_bytes};
  const BucketPlan plan = plan_buckets(plan_params, caps, order);

  std::vector<std::unique_ptr<Bucket>> buckets;
  std::vector<int64_t> starts(params_.size());  // bytes from the start of the memory
  std::vector<int64_t> bucket_starts;
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
      bucket->bytes += bytes;
    }
    bucket->count = (total - bucket_starts.back()) / element;
    buckets.push_back(std::move(bucket));
  }
  const auto allocated = comm_->backend().allocate(std::max<int64_t>(total, 1));
  if (const Status agreed = agree_on_memory(allocated.status()); !agreed.ok()) {
    if (allocated.ok()) (void)comm_->backend().release(allocated.value());
    return agreed;
  }
  void* const memory = allocated.value();

  (void)comm_->backend().release(memory_);  // nothing is under way: between steps or at creation
  memory_ = memory;
  buckets_ = std::move(buckets);
  char* const base = static_cast<char*>(memory);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b]->data = base + bucket_starts[b];
    for (const int32_t index : buckets_[b]->params) {
      Slot& slot = slots_[static_cast<size_t>(index)];
      slot.bucket = static_cast<int32_t>(b);
      slot.data = base + starts[static_cast<size_t>(index)];
    }
  }
  statistics_.with([&](Statistics& s) { s.bucket_count = static_cast<int32_t>(buckets_.size()); });
  end_step();
  return {};
}

/// All ranks take a new plan, or none does: else gradients of different parameters would meet.
Status Reducer::agree_on_memory(const Status& mine) {
  int32_t enough = mine.ok() ? 1 : 0;
  Collective agree;
  agree.kind = Kind::kAllreduce;
  agree.dtype = Dtype::kI32;
  agree.op = ReduceOp::kMin;
  agree.send = agree.recv = &enough;
  agree.count = 1;
  agree.name = "bucket memory?";
  const Status status = comm_->run(agree);
  if (!mine.ok()) return mine;
  DT_TRY(status);
  if (enough != 0) return {};
  return Status(
      Code::kOutOfMemory,
      format("reducer on comm \"%s\": another rank has no memory for its buckets; its own "
             "message says how much it asked for",
             comm_->name().c_str()));
}

void* Reducer::grad(int32_t index) {
  views_given_.store(true, std::memory_order_relaxed);
  return slots_[static_cast<size_t>(index)].data;
}

Status Reducer::ready(int32_t index, void* grad) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  const Param& param = params_[static_cast<size_t>(index)];
  if (slot.arrived.exchange(true, std::memory_order_acquire)) {
    return Status(Code::kInvalidState,
                  format("dt_reducer_ready: parameter #%d \"%s\" became ready twice in one step on "
                         "rank %d; call it once per parameter, then dt_reducer_finish",
                         index, param.name.c_str(), comm_->rank()));
  }
  if (grad != nullptr && grad != slot.data) {
    std::memcpy(slot.data, grad, static_cast<size_t>(param.count * dtype_bytes(param.dtype)));
    slot.copied_from = grad;
  }
  const int32_t position = arrived_.fetch_add(1, std::memory_order_relaxed);
  arrivals_[static_cast<size_t>(position)] = index;
  Bucket& bucket = *buckets_[static_cast<size_t>(slot.bucket)];
  if (bucket.pending.fetch_sub(1, std::memory_order_acq_rel) != 1) return {};
  return launch(/*all=*/false);
}

Status Reducer::launch(bool all) {
  std::lock_guard lock(launching_);
  while (broken_.ok() && next_bucket_ < buckets_.size()) {
    Bucket& bucket = *buckets_[next_bucket_];
    const bool full = bucket.pending.load(std::memory_order_acquire) == 0;
    if (!full && !all) break;
    broken_ = launch_bucket(
        bucket, full ? nullptr : std::make_shared<const std::string>(missing_in(bucket)));
    ++next_bucket_;
  }
  return broken_;
}

Status Reducer::launch_bucket(Bucket& bucket, std::shared_ptr<const std::string> withheld) {
  Collective collective;
  collective.kind = Kind::kAllreduce;
  collective.dtype = bucket.dtype;
  collective.op = options_.sum ? ReduceOp::kSum : ReduceOp::kAvg;
  collective.send = bucket.data;
  collective.recv = bucket.data;
  collective.count = bucket.count;
  collective.name = format("bucket %zu", next_bucket_);
  collective.withheld = std::move(withheld);
  bucket.launched_ns = monotonic_ns();
  bucket.work = std::make_shared<backend::Work>();
  const Status status = comm_->submit(collective, bucket.work);
  if (!status.ok()) bucket.work = nullptr;
  return status;
}

std::string Reducer::missing_in(const Bucket& bucket) const {
  std::string text = "no gradient for";
  size_t named = 0;
  size_t missing = 0;
  for (const int32_t index : bucket.params) {
    if (slots_[static_cast<size_t>(index)].arrived.load(std::memory_order_relaxed)) continue;
    if (++missing > kNamedParams) continue;
    text += format("%s #%d \"%s\"", named++ == 0 ? "" : ",", index,
                   params_[static_cast<size_t>(index)].name.c_str());
  }
  if (missing > named) text += format(" and %zu more", missing - named);
  return text;
}

Status Reducer::finish() {
  const bool complete =
      arrived_.load(std::memory_order_acquire) == static_cast<int32_t>(params_.size());
  (void)launch(/*all=*/true);
  const int64_t began_waiting_ns = monotonic_ns();
  Status status = wait_buckets();
  if (!status.ok()) {
    end_step();
    return status;
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.copied_from == nullptr) continue;
    std::memcpy(slot.copied_from, slot.data,
                static_cast<size_t>(params_[i].count * dtype_bytes(params_[i].dtype)));
  }
  count_step(began_waiting_ns);
  if (complete) last_arrivals_ = arrivals_;
  end_step();
  return rebuild_after_first_step();
}

/// Waits for every bucket, also after a failure: their memory is in use until they are done.
Status Reducer::wait_buckets() {
  Status first = broken_;
  std::string missing;
  for (const auto& bucket : buckets_) {
    if (bucket->work == nullptr) break;  // not launched: the communicator is broken
    comm_->backend().wait(*bucket->work, Wait{});
    const Status status = bucket->work->status();
    if (status.ok()) continue;
    if (status.code() == Code::kInvalidState)
      missing += (missing.empty() ? "" : "; ") + status.message();
    if (first.ok()) first = status;
  }
  if (missing.empty() || first.code() != Code::kInvalidState) return first;
  ErrorInfo info = first.info();
  info.message =
      missing + "; every rank must call dt_reducer_ready for every parameter in each step";
  return Status(std::move(info));
}

void Reducer::count_step(int64_t began_waiting_ns) {
  int64_t bytes = 0;
  int64_t communication_ns = 0;
  int64_t end_ns = 0;  // of the buckets so far; works complete in launch order
  for (const auto& bucket : buckets_) {
    bytes += bucket->bytes;
    const int64_t done_ns = bucket->work->completed_ns();
    communication_ns += std::max<int64_t>(done_ns - std::max(bucket->launched_ns, end_ns), 0);
    end_ns = std::max(end_ns, done_ns);
  }
  const int64_t exposed_ns =
      std::min(std::max<int64_t>(end_ns - began_waiting_ns, 0), communication_ns);
  statistics_.with([&](Statistics& s) {
    ++s.steps;
    s.bytes = bytes;
    s.communication_ns = communication_ns;
    s.exposed_ns = exposed_ns;
    s.total_bytes += bytes;
    s.total_communication_ns += communication_ns;
    s.total_exposed_ns += exposed_ns;
  });
}

void Reducer::end_step() {
  // First: a slot that opens below may arrive at once, and its place in arrivals_ must exist.
  arrived_.store(0, std::memory_order_seq_cst);
  for (Slot& slot : slots_) {
    slot.copied_from = nullptr;
    slot.arrived.store(false, std::memory_order_release);
  }
  for (const auto& bucket : buckets_) {
    bucket->work = nullptr;
    bucket->pending.store(static_cast<int32_t>(bucket->params.size()), std::memory_order_relaxed);
  }
  std::lock_guard lock(launching_);
  next_bucket_ = 0;
  broken_ = {};
}

Status Reducer::rebuild_after_first_step() {
  if (asked_to_rebuild_ || !options_.rebuild) return {};
  asked_to_rebuild_ = true;
  // Memory that was handed out never moves; if any rank handed some out, no rank rebuilds.
  int32_t may_move = views_given_.load(std::memory_order_relaxed) ? 0 : 1;
  Collective agree;
  agree.kind = Kind::kAllreduce;
  agree.dtype = Dtype::kI32;
  agree.op = ReduceOp::kMin;
  agree.send = agree.recv = &may_move;
  agree.count = 1;
  agree.name = "rebuild?";
  DT_TRY(comm_->run(agree));
  if (may_move == 0) return {};
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
  DT_TRY(comm_->run(collective));
  return order;
}

Result<bool> Reducer::rebuild() {
  if (arrived_.load(std::memory_order_acquire) != 0) {
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

Reducer::Statistics Reducer::statistics() const {
  return statistics_.with([](const Statistics& s) { return s; });
}

}  // namespace dt::training
