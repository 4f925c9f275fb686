// SPDX-License-Identifier: Apache-2.0
#include "training/reducer.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "collective/blocks.h"
#include "training/stream_marks.h"

namespace dt::training {
namespace {

using backend::Collective;
using backend::Kind;

constexpr size_t kNamedParams = 8;  // per bucket and rank in a message

/// Of several operations that are one to the caller, the first has what comes before them, and the
/// last what is behind.
std::shared_ptr<const collective::StreamSteps> part_of(
    const std::shared_ptr<const collective::StreamSteps>& whole, bool first, bool last) {
  if (whole == nullptr || (first && last)) return whole;
  struct Part : collective::StreamSteps {
    std::shared_ptr<const collective::StreamSteps> whole;  // stays
  };
  auto part = std::make_shared<Part>();
  part->whole = whole;
  if (first) {
    part->after = whole->after;
    part->began = whole->began;
    part->before = whole->before;
  }
  if (last) {
    part->behind = whole->behind;
    part->ended = whole->ended;
  }
  return part;
}

}  // namespace

Reducer::Reducer(std::shared_ptr<comm::Communicator> comm, std::vector<Param> params,
                 const Options& options)
    : comm_(std::move(comm)),
      params_(std::move(params)),
      options_(options),
      within_(comm_),
      slots_(params_.size()),
      arrivals_(params_.size()),
      slabs_(comm_),
      watched_(params_.size()),
      digester_(comm_) {
  cap_bytes_ = options_.bucket_cap_bytes;
  for (size_t i = 0; i < params_.size(); ++i) {
    slots_[i].uses = params_[i].uses;
    if (params_[i].row_elements > 0) {
      slots_[i].uses = 0;
      slots_[i].bucket = -1;
      slots_[i].rows =
          std::make_unique<RowGradient>(params_[i].dtype, params_[i].rows, params_[i].row_elements);
    }
    step_bytes_ += params_[i].count * dtype_bytes(params_[i].dtype);
  }
  dense_ = static_cast<int32_t>(std::count_if(
      params_.begin(), params_.end(), [](const Param& each) { return each.row_elements == 0; }));
  auto behind = arrivals_.begin() + dense_;  // the others never arrive
  for (size_t i = 0; i < params_.size(); ++i) {
    if (slots_[i].rows != nullptr) *behind++ = static_cast<int32_t>(i);
  }
  if (auto runtime = comm_->backend().device()) {
    device_ = std::make_shared<DeviceStep>(std::move(runtime), comm_->backend().kernels());
  }
}

Reducer::~Reducer() {
  const bool is_idle = idle();
  if (replicas_ != nullptr) replicas_->shut();  // it uses what ends below
  if (is_idle) {
    for (const auto& bucket : buckets_) take_back(*bucket);
    (void)comm_->backend().release(memory_);
    (void)comm_->backend().release(errors_memory_);
    return;
  }
  if (!options_.places.empty() && device_ == nullptr) leave_places();
  if (device_ != nullptr) {
    slabs_.leave();
    comm_->backend().keep(device_);
  }
  // A hook's buffers may be in use for ever. PowerSGD's on a GPU stay with the communicator.
  if (hook_ && (device_ == nullptr || power_sgd_ == nullptr)) (void)new Hook(std::move(hook_));
}

/// The caller may free its gradients afterwards. Peers that come within a second end what is under
/// way; else the communicators that reduce them break, with the reason.
void Reducer::leave_places() {
  const Wait wait{Deadline::after_ms(kLastStepMs)};
  for (const auto& bucket : buckets_) {
    if (travels_apart(*bucket)) continue;
    const auto& [hooked_on, hooked] = bucket->hooked;
    const auto& comm = hooked != nullptr ? hooked_on : comm_;
    const auto& work = hooked != nullptr ? hooked : bucket->work;
    if (work == nullptr || comm->backend().wait(*work, wait)) continue;
    ErrorInfo info;
    info.code = Code::kAborted;
    info.rank = comm_->world_rank(comm_->rank());
    info.pid = getpid();
    info.operation = kind_name(Kind::kAllreduce);
    info.message = format(
        "comm \"%s\": rank %d (pid %lld) destroyed its reducer inside a step, while a bucket "
        "was being reduced in its caller's memory; call dt_reducer_finish before",
        comm->name().c_str(), info.rank, static_cast<long long>(info.pid));
    comm->backend().fail(Status(std::move(info)));
    (void)comm->backend().quiesce(Wait{Deadline::after_ms(kLastStepMs)});
  }
}

/// Where not, peers or the GPU may still write into the memory, so it stays with the communicator.
bool Reducer::idle() {
  if (hooks_lost_) return false;
  const Deadline last = Deadline::after_ms(kLastStepMs);
  if (device_ != nullptr && !device_->await_streams(*comm_, last, /*broken_too=*/true).ok()) {
    return false;
  }
  for (const auto& bucket : buckets_) {
    const auto& [comm, work] = bucket->hooked;
    if (work == nullptr) continue;
    if (!comm->backend().wait(*work, Wait{Deadline::after_ms(kLastStepMs)})) return false;
    if (device_ != nullptr && !work->status().ok()) return false;  // done before the GPU is
  }
  if (last_work_ == nullptr) return true;
  if (device_ == nullptr) {
    return last_work_->done() &&
           std::all_of(buckets_.begin(), buckets_.end(), [](const auto& each) {
             return each->last_work() == nullptr || each->last_work()->done();
           });
  }
  const Wait wait{Deadline::after_ms(kLastStepMs)};
  // After a failure operations are done before the GPU is.
  return last_backend().wait(*last_work_, wait) && last_work_->status().ok();
}

Result<std::unique_ptr<Reducer>> Reducer::create(std::shared_ptr<comm::Communicator> comm,
                                                 std::vector<Param> params,
                                                 const Options& options) {
  std::unique_ptr<Reducer> reducer(new Reducer(std::move(comm), std::move(params), options));
  DT_TRY(reducer->check_model());
  DT_TRY(reducer->make_replicas());
  std::vector<int32_t> order(reducer->params_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  if (!options.order.empty()) {
    order = options.order;
    reducer->asked_to_rebuild_ = true;
  }
  reducer->order_ = order;
  DT_TRY(reducer->find_neighbours());
  DT_TRY(reducer->lay_out(order));
  reducer->make_tuner();
  return reducer;
}

Status Reducer::make_replicas() {
  const int32_t ranks = options_.shard_ranks;
  if (options_.wire_8bit && device_ == nullptr) {
    DT_TRY_VALUE(auto all, comm_->split(0, comm_->rank()));
    DT_TRY_VALUE(replicas_, Replicas::create(std::move(all), comm_, "its first exchange failed: "));
  }
  if (options_.wire_8bit) return make_errors();
  if (!options_.scatter() || ranks == 0 || ranks == comm_->size()) return {};
  DT_TRY_VALUE(within_, comm_->split(comm_->rank() / ranks, comm_->rank()));
  within_->follow(comm_);
  comm_->answer_for(within_);
  DT_TRY_VALUE(auto across, comm_->split(comm_->rank() % ranks, comm_->rank()));
  comm_->answer_for(across);
  DT_TRY_VALUE(replicas_, Replicas::create(std::move(across), comm_, "its replica has failed: "));
  return {};
}

Status Reducer::launch(bool all, cuda::Stream stream) {
  const Status status = launch_in_order(all, stream);
  if (status.ok() || (device_ == nullptr && !hook_)) return status;
  return fail_everywhere(status);
}

Status Reducer::launch_in_order(bool all, cuda::Stream stream) {
  std::lock_guard lock(launching_);
  while (broken_.ok() && next_bucket_ < buckets_.size()) {
    Bucket& bucket = *buckets_[next_bucket_];
    const bool full = bucket.pending.load(std::memory_order_acquire) == 0;
    if (!full && !all) break;
    broken_ = launch_bucket(bucket, full, stream);
    ++next_bucket_;
  }
  if (broken_.ok() || replicas_ == nullptr || hook_ || device_ != nullptr) return broken_;
  // The other replicas wait for every bucket of this one, and in 8 bits all other ranks.
  for (; next_bucket_ < buckets_.size(); ++next_bucket_) {
    Bucket* const left = buckets_[next_bucket_].get();
    if (is_quantized(left->dtype)) gather_parts(left)(broken_);
    if (!options_.wire_8bit) sum_replicas(left, nullptr, nullptr)(broken_);
  }
  return broken_;
}

/// As the operation does, and not by a factor before or behind it.
bool Reducer::averages(Dtype dtype) const {
  return !options_.sum && !options_.divide_by_users &&
         (options_.predivide == 0 || !is_floating(dtype));
}

Status Reducer::launch_bucket(Bucket& bucket, bool full, cuda::Stream stream) {
  if (full && learnt_) DT_TRY(bring_zeros(bucket, stream));
  if (hook_) return full ? launch_hook(bucket) : missing_and_broken();
  // One that lacks all gradients has no memory yet. Without any this rank gives nothing, too.
  const Status lent = options_.pooled() ? lend(bucket) : Status();
  full = full && lent.ok();
  Collective collective;
  collective.kind = Kind::kAllreduce;
  const bool avg = averages(bucket.dtype);
  collective.dtype = has_wire(bucket) ? *options_.wire : bucket.dtype;
  collective.op = avg ? ReduceOp::kAvg : ReduceOp::kSum;
  collective.recv = !lent.ok() ? bucket.own : has_wire(bucket) ? bucket.wire : bucket.data;
  collective.send = collective.recv;
  collective.count = bucket.count;
  if (is_quantized(bucket.dtype)) {
    collective = parts_of(bucket).send_parts(bucket.wire, bucket.received);
  }
  collective.name = format("bucket %zu", next_bucket_);
  if (options_.scatter()) scatter(bucket, &collective);
  if (device_ != nullptr) {
    DT_TRY(lent);
    if (!full) return missing_and_broken();
    if (is_quantized(bucket.dtype)) return reduce_quantized(&bucket, std::move(collective));
    void* const flat = has_wire(bucket) ? bucket.wire : bucket.data;
    DT_TRY(device_->attach(next_bucket_, steps_around(bucket, avg), {flat, bucket.count},
                           &collective));
  } else if (!full) {
    collective.withheld =
        std::make_shared<const std::string>(lent.ok() ? missing_in(bucket) : lent.message());
  }
  bucket.launched_ns = monotonic_ns();
  DT_TRY(reduce(&bucket, std::move(collective)));
  if (!options_.pooled() || !lent.ok()) return {};
  std::lock_guard lock(lending_);
  under_way_.push_back(&bucket);
  return {};
}

/// Of several works, which end in their order and fail alike, the last stands for all.
Status Reducer::reduce(Bucket* bucket, Collective collective) {
  std::function<void(const Status&)> next;
  if (is_quantized(bucket->dtype)) {
    next = gather_parts(bucket);
  } else if (replicas_ != nullptr && !options_.wire_8bit) {
    next = sum_replicas(bucket, collective.recv,
                        part_of(collective.steps, /*first=*/false, /*last=*/true));
    collective.divisor = comm_->size();
    if (!is_floating(bucket->dtype)) collective.op = ReduceOp::kSum;
  }
  const int32_t operations = collective.blocks == nullptr ? 1 : within_->size();
  for (int32_t root = 0; root < operations; ++root) {
    Collective each = collective.blocks == nullptr
                          ? collective
                          : collective::reduce_for(collective, root, within_->rank());
    const bool last = root + 1 == operations;
    each.steps = part_of(collective.steps, root == 0, last && !next);
    const auto work = within_->new_work();
    if (next && last && device_ == nullptr) work->then(next);
    if (Status status = within_->submit(each, work); !status.ok()) {
      if (next) next(status);
      return status;
    }
    bucket->work = work;
    if (!next) last_work_ = work;
  }
  if (next && device_ != nullptr) next(Status());
  return {};
}

/// Behind what a replica has reduced. Floats are scaled before the first sum, integers divided
/// behind the last.
std::function<void(const Status&)> Reducer::sum_replicas(
    Bucket* bucket, void* reduced, std::shared_ptr<const collective::StreamSteps> steps) {
  const auto [from, to] = result_of(*bucket);
  const bool divides = averages(bucket->dtype) && !is_floating(bucket->dtype);
  Collective sum;
  sum.kind = Kind::kAllreduce;
  sum.dtype = has_wire(*bucket) ? *options_.wire : bucket->dtype;
  sum.op = divides ? ReduceOp::kAvg : ReduceOp::kSum;
  sum.divisor = comm_->size();
  sum.send = sum.recv = reduced;
  sum.count = to - from;
  sum.steps = std::move(steps);
  sum.name = format("bucket %zu of all replicas", next_bucket_);
  auto [work, begin] = replicas_->sum(std::move(sum));
  bucket->summed = last_work_ = std::move(work);
  return std::move(begin);
}

void Reducer::await(const Bucket& bucket) const {
  if (bucket.work != nullptr) within_->backend().wait(*bucket.work, Wait{});
  if (bucket.summed != nullptr) replicas_->comm().backend().wait(*bucket.summed, Wait{});
}

/// Each rank's part of the bucket onto that rank, to where it stays. With blocks: for reduce_for().
void Reducer::scatter(const Bucket& bucket, Collective* collective) const {
  const auto [from, to] = result_of(bucket);
  auto* const begin = static_cast<char*>(collective->recv);
  collective->kind = Kind::kReduceScatter;
  const bool stays = options_.pooled() && bucket.wire == nullptr;
  collective->recv = stays ? bucket.own : begin + from * dtype_bytes(collective->dtype);
  collective->count = to - from;
  if (bucket.is_equally_cut()) return;
  auto blocks = std::make_shared<collective::Blocks>();
  for (size_t rank = 0; rank + 1 < bucket.cuts.size(); ++rank) {
    blocks->outgoing.push_back({bucket.cuts[rank], bucket.part(static_cast<int32_t>(rank))});
  }
  collective->blocks = std::move(blocks);
}

/// What travels as another dtype comes from and goes to the places in the bucket that has the
/// gradients' own, or outside.
BucketSteps Reducer::steps_around(const Bucket& bucket, bool avg) const {
  BucketSteps steps;
  steps.dtype = bucket.dtype;
  steps.before = factor_before(bucket.dtype);
  if (avg && is_floating(bucket.dtype)) {
    steps.before = 1.0 / comm_->size();
  } else if (!options_.divide_by_users) {
    steps.behind = factor_behind(static_cast<size_t>(bucket.params[0]));
  }
  for (const int32_t index : bucket.params) {
    const Slot& slot = slots_[static_cast<size_t>(index)];
    const int64_t count = params_[static_cast<size_t>(index)].count;
    if (count == 0) continue;
    if (slot.unused) steps.zeros.emplace_back(slot.data, count * dtype_bytes(bucket.dtype));
    if (slot.wire != nullptr) {
      void* const own = !slot.unused && slot.copied_from != nullptr ? slot.copied_from : slot.data;
      steps.outside.push_back({own, slot.start, count});
    } else if (slot.unused) {
      // Nobody scatters its result.
      steps.all_outside = steps.all_outside && (steps.behind == 1 || options_.by_units());
    } else if (slot.copied_from == nullptr) {
      steps.all_outside = false;
    } else {
      steps.outside.push_back({slot.copied_from, slot.start, count});
    }
  }
  if (options_.by_units()) steps.kept = kept_of(bucket);
  return steps;
}

/// scatter() has let the reduction write where this rank's part stays, unless that travels as
/// another dtype, or a hook reduces the whole bucket.
KeptResult Reducer::kept_of(const Bucket& bucket) const {
  const auto [from, to] = result_of(bucket);
  KeptResult kept{bucket.own, bucket.own, to - from};
  if (bucket.wire != nullptr) {
    kept.from = bucket.wire + from * dtype_bytes(*options_.wire);
  } else if (options_.pooled() && hook_) {
    kept.from = bucket.data + from * dtype_bytes(bucket.dtype);
  }
  return kept;
}

std::string Reducer::missing_in(const Bucket& bucket) const {
  std::string text = "no gradient for";
  size_t named = 0;
  size_t missing = 0;
  for (const int32_t index : bucket.params) {
    const Slot& slot = slots_[static_cast<size_t>(index)];
    if (slot.arrived.load(std::memory_order_relaxed) || slot.uses == 0) continue;
    if (++missing > kNamedParams) continue;
    const Param& param = params_[static_cast<size_t>(index)];
    text += format("%s #%d \"%s\"", named++ == 0 ? "" : ",", index, param.name.c_str());
    if (slot.uses > 1 || learnt_) {
      text += format(" (ready %d of %d times%s)", slot.times_ready, slot.uses,
                     learnt_ ? ", as in step 1" : "");
    }
  }
  if (missing > named) text += format(" and %zu more", missing - named);
  return text;
}

const char* Reducer::each_step_needs() const {
  return learnt_
             ? "with static_graph each step has the gradients of step 1, in as many parts; make "
               "the reducer with find_unused if steps differ"
             : "every rank must call dt_reducer_ready for every parameter in each step";
}

Status Reducer::missing_and_broken() const {
  std::string text;
  for (const auto& bucket : buckets_) {
    if (bucket->pending.load(std::memory_order_acquire) == 0) continue;
    text += (text.empty() ? "" : "; ") + missing_in(*bucket);
  }
  ErrorInfo info;
  info.code = Code::kInvalidState;
  info.rank = comm_->world_rank(comm_->rank());
  info.pid = getpid();
  info.operation = kind_name(Kind::kAllreduce);
  info.message =
      format("reducer on comm \"%s\": rank %d (pid %lld): %s; %s; go on with dt_comm_shrink",
             comm_->name().c_str(), info.rank, static_cast<long long>(info.pid), text.c_str(),
             each_step_needs());
  return Status(std::move(info));
}

Status Reducer::finish(cuda::Stream stream) {
  DT_TRY(comm_->check_ungrouped("dt_reducer_finish"));
  if (device_ != nullptr) {
    const Result<bool> capturing = device_->is_capturing(stream);
    if (!capturing.ok()) return fail_everywhere(capturing.status());
    if (capturing.value()) {
      return DeviceStep::capture_refused("dt_reducer_finish on comm \"" + comm_->name() + "\"");
    }
  }
  if (accumulating_.load(std::memory_order_relaxed)) {
    return Status(Code::kInvalidState,
                  "dt_reducer_finish on comm \"" + comm_->name() +
                      "\": the reducer accumulates; call dt_reducer_accumulate(reducer, 0) before "
                      "the step's last backward pass");
  }
  const bool complete = !learnt_ && arrived_.load(std::memory_order_acquire) == dense_;
  const bool asks = options_.find_unused || learning();               // who had a gradient for what
  const Status rest = asks ? take_rest_as_unused(stream) : Status();  // what cannot be is missing
  // On a GPU the reason is this one, and not that gradients are missing then.
  if (!rest.ok() && device_ != nullptr) (void)fail_everywhere(rest);
  (void)launch(/*all=*/true, stream);
  const int64_t began_waiting_ns = monotonic_ns();
  const Status by_rows = reduce_rows();
  const int64_t rows_done_ns = monotonic_ns();
  const Status agreed = asks ? agree_on_used() : Status();
  Status status = hook_                ? end_hooks(stream)
                  : device_ != nullptr ? order_buckets(stream)
                                       : wait_buckets();
  if (!status.ok() && device_ != nullptr) status = fail_everywhere(status);  // may be of this rank
  if (status.ok()) status = by_rows;
  if (status.ok()) status = agreed;
  if (status.ok() && device_ != nullptr && has_users()) {
    status = bring_unused(stream);
    if (status.ok()) status = share_by_users(stream);
    const Status marked = device_->record_finished(stream);
    if (status.ok()) status = marked;
    if (!status.ok()) status = fail_everywhere(status);  // the others have no error in this step
  }
  if (status.ok() && learning()) status = learn();
  has_results_ = status.ok();
  lost_results_ = false;
  has_norm_ = false;
  if (has_results_) ++state_steps_;
  for (const auto& bucket : buckets_) {
    if (status.ok() && device_ == nullptr && options_.pooled() &&
        bucket->lent.load(std::memory_order_relaxed)) {
      keep_own(*bucket);
    }
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.result = slot.rows != nullptr ? slot.rows->values() : result_place(slot);
    if (slot.rows != nullptr) slot.count = slot.rows->elements();
    // The caller may still ask grad() for what it has given no place.
    const bool only_here = has_results_ && slot.rows == nullptr && slot.result == slot.data;
    if (only_here && counts_as_result(i)) memory_stays_ = true;
  }
  if (!status.ok()) {
    end_step();
    return device_ != nullptr && replicas_ != nullptr ? fail_everywhere(status) : status;
  }
  if (device_ != nullptr) {
    count_step_on_device();
  } else {
    give_results();
    count_step(began_waiting_ns, rows_done_ns);
  }
  if (complete) last_arrivals_ = arrivals_;
  end_step();
  log_steps();
  DT_TRY(rebuild_after_first_step());
  DT_TRY(tune());
  return check_watched(stream);
}

/// The communicator's stream carries the buckets in order: behind the last all have ended. Waits
/// until that one is enqueued.
Status Reducer::order_buckets(cuda::Stream stream) {
  if (!broken_.ok()) return comm_->broken();
  const Status came = device_->times().record_came(stream);
  if (buckets_.empty()) return came;  // all gradients come as rows
  const Status ordered = last_backend().wait_stream(*last_work_, stream);
  for (const auto& bucket : buckets_) {
    DT_TRY(bucket->work->status());
    DT_TRY(bucket->last_work()->status());
  }
  return came.ok() ? ordered : came;
}

/// Waits for every bucket, also after a failure: their memory is in use until they are done.
Status Reducer::wait_buckets() {
  Status first = broken_;
  std::string missing;
  bool other_failed = false;
  for (const auto& bucket : buckets_) {
    if (bucket->last_work() == nullptr) break;  // not launched: the communicator is broken
    await(*bucket);
    Status status = bucket->work != nullptr ? bucket->work->status() : Status();
    const bool of_others = status.ok();
    if (of_others) status = bucket->last_work()->status();
    if (status.ok()) continue;
    if (of_others && status.code() == Code::kTimeout && !options_.wire_8bit) {
      ErrorInfo late = status.info();
      late.message += "; a rank that is late here may itself wait for one of its own replica";
      status = Status(std::move(late));
    }
    if (first.ok()) first = status;
    if (status.code() != Code::kInvalidState) continue;
    const bool other = replicas_ != nullptr &&
                       status.message().find(replicas_->failed_text()) != std::string::npos;
    if (other && std::exchange(other_failed, true)) continue;
    missing += (missing.empty() ? "" : "; ") + status.message();
  }
  if (first.ok()) return first;
  if (const Status broken = comm_->broken(); replicas_ != nullptr && !broken.ok()) return broken;
  if (missing.empty() || first.code() != Code::kInvalidState) return first;
  ErrorInfo info = first.info();
  if (other_failed) {
    info.code = Code::kPeerLost;
    info.rank = -1;  // the text names it
    info.message = missing + (options_.wire_8bit
                                  ? "; go on with dt_comm_shrink"
                                  : "; go on from a checkpoint, without that replica or with a new "
                                    "one");
  } else {
    info.message = missing + "; " + each_step_needs();
  }
  return Status(std::move(info));
}

void Reducer::count_step(int64_t began_waiting_ns, int64_t rows_done_ns) {
  const bool has_rows = dense_ != param_count();
  int64_t communication_ns = has_rows ? rows_done_ns - began_waiting_ns : 0;
  int64_t end_ns = 0;  // of the buckets so far; works complete in launch order
  for (const auto& bucket : buckets_) {
    if (bucket->work == nullptr) continue;  // a hook's, done at once
    const int64_t done_ns = bucket->last_work()->completed_ns();
    communication_ns += std::max<int64_t>(done_ns - std::max(bucket->launched_ns, end_ns), 0);
    end_ns = std::max(end_ns, done_ns);
  }
  if (has_rows) end_ns = std::max(end_ns, rows_done_ns);
  const int64_t exposed_ns =
      std::min(std::max<int64_t>(end_ns - began_waiting_ns, 0), communication_ns);
  statistics_.with([&](Statistics& s) {
    ++s.steps;
    s.bytes = step_bytes_ + row_bytes_;
    s.communication_ns = communication_ns;
    s.exposed_ns = exposed_ns;
    s.total_bytes += s.bytes;
    s.total_communication_ns += communication_ns;
    s.total_exposed_ns += exposed_ns;
  });
  if (record::Meter* const meter = comm_->meter()) {
    meter->stepped(step_bytes_ + row_bytes_, communication_ns, exposed_ns);
  }
}

void Reducer::count_step_on_device() {
  take_times();
  // A hook's operations record no times.
  const bool is_timed = !hook_ && !buckets_.empty() && device_->times().end_step(buckets_.size());
  if (is_timed) return;  // counted when it has passed
  int64_t bytes = 0;
  statistics_.with([&](Statistics& s) {
    bytes = take_step_bytes();
    ++s.steps;
    s.bytes = bytes;
    s.total_bytes += bytes;
  });
  if (record::Meter* const meter = comm_->meter()) meter->stepped(bytes, 0, 0);
}

/// With the rows of all steps that are not counted yet. Under the lock of statistics_.
int64_t Reducer::take_step_bytes() { return step_bytes_ + std::exchange(uncounted_row_bytes_, 0); }

void Reducer::take_times() {
  statistics_.with([&](Statistics& s) {
    for (const StepTimes::Times& times : device_->times().take_passed()) {
      const int64_t bytes = take_step_bytes();
      ++s.steps;
      s.bytes = bytes;
      s.communication_ns = times.communication_ns;
      s.exposed_ns = times.exposed_ns;
      s.total_bytes += bytes;
      s.total_communication_ns += times.communication_ns;
      s.total_exposed_ns += times.exposed_ns;
      if (record::Meter* const meter = comm_->meter()) {
        meter->stepped(bytes, times.communication_ns, times.exposed_ns);
      }
    }
  });
}

void Reducer::end_step() {
  if (device_ != nullptr) device_->end_step();
  // First: a slot that opens below may arrive at once, and its place in arrivals_ must exist.
  arrived_.store(0, std::memory_order_seq_cst);
  begun_.store(false, std::memory_order_relaxed);
  for (Slot& slot : slots_) {
    slot.copied_from = nullptr;
    slot.unused = false;
    slot.begun = false;
    slot.given = false;
    slot.times_ready = 0;
    if (slot.rows != nullptr) slot.rows->begin_step();
    slot.arrived.store(false, std::memory_order_release);
  }
  for (const auto& bucket : buckets_) {
    if (options_.pooled()) take_back(*bucket);
    bucket->work = bucket->summed = nullptr;
    bucket->hooked = {};
    bucket->pending.store(expected_in(*bucket), std::memory_order_relaxed);
  }
  if (device_ != nullptr) device_->times().begin_step();
  under_way_.clear();
  last_users_.clear();
  std::lock_guard lock(launching_);
  next_bucket_ = 0;
  broken_ = {};
}

Reducer::Part Reducer::result(int32_t index) const {
  const Slot& slot = slots_[static_cast<size_t>(index)];
  return {slot.offset, slot.count, has_results() ? slot.result : nullptr};
}

Reducer::Statistics Reducer::statistics() {
  if (device_ != nullptr) take_times();
  return statistics_.with([](const Statistics& s) { return s; });
}

}  // namespace dt::training
