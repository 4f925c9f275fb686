// SPDX-License-Identifier: Apache-2.0
// Where the gradients lie: the plan, its memory, and the change to the order of arrival.
#include <algorithm>
#include <cstdint>

#include "training/reducer.h"
#include "training/stream_marks.h"

namespace dt::training {
namespace {

using backend::Collective;
using backend::Kind;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

int64_t Reducer::data_bytes(const ShardBucket& bucket) const {
  if (!options_.places.empty()) return 0;
  return round_up(bucket.count * dtype_bytes(bucket.dtype), kGradientAlignment);
}

int64_t Reducer::own_bytes(const ShardBucket& bucket) const {
  const auto [from, to] = result_of(bucket);
  return round_up((to - from) * dtype_bytes(bucket.dtype), kGradientAlignment);
}

std::vector<ShardBucket> Reducer::plan(const std::vector<int32_t>& order, int64_t cap_bytes) const {
  if (options_.by_units()) {
    std::vector<ShardParam> shard_params;
    for (const Param& param : params_) {
      shard_params.push_back({param.count, param.dtype, param.granule, param.unit});
    }
    return plan_shards(shard_params, cap_bytes, order, options_.scatter() ? within_->size() : 1);
  }
  std::vector<PlanParam> plan_params;
  for (const Param& param : params_) {
    plan_params.push_back({param.count, param.dtype, -1, param.row_elements > 0});
  }
  // A tuned cap may be less than that of the first bucket.
  const int64_t first = options_.tune_steps > 0 ? std::min(options_.first_bucket_bytes, cap_bytes)
                                                : options_.first_bucket_bytes;
  const int64_t caps[] = {first, cap_bytes};
  if (!options_.places.empty()) return plan_in_place(plan_params, caps, order);
  std::vector<ShardBucket> buckets;
  for (auto& indices : plan_buckets(plan_params, caps, order).buckets) {
    if (params_[static_cast<size_t>(indices[0])].row_elements > 0)
      continue;  // in a bucket of its own
    ShardBucket& bucket = buckets.emplace_back();
    bucket.dtype = params_[static_cast<size_t>(indices[0])].dtype;
    for (const int32_t index : indices) {
      bucket.starts.push_back(bucket.count);
      bucket.count += padded_count(params_[static_cast<size_t>(index)].count, bucket.dtype);
    }
    bucket.params = std::move(indices);
    bucket.cuts = {0, bucket.count};
  }
  return buckets;
}

/// Starts are offsets in the caller's memory. For a bucket that is sent as another dtype they are
/// offsets in the buffer that is sent.
std::vector<ShardBucket> Reducer::plan_in_place(std::span<const PlanParam> params,
                                                std::span<const int64_t> caps,
                                                const std::vector<int32_t>& order) const {
  std::vector<ShardBucket> buckets;
  for (auto& indices : training::plan_in_place(params, caps, order, neighbours_)) {
    ShardBucket& bucket = buckets.emplace_back();
    bucket.dtype = params_[static_cast<size_t>(indices[0])].dtype;
    const int64_t element = dtype_bytes(bucket.dtype);
    auto place_of = [&](int32_t index) {
      return reinterpret_cast<intptr_t>(options_.places[static_cast<size_t>(index)]);
    };
    auto count_of = [&](int32_t index) { return params_[static_cast<size_t>(index)].count; };
    // In the order of memory; those without elements come behind, since their places mean nothing.
    const auto with_elements = std::stable_partition(
        indices.begin(), indices.end(), [&](int32_t index) { return count_of(index) > 0; });
    if (!travels_apart(bucket)) {
      std::sort(indices.begin(), with_elements,
                [&](int32_t a, int32_t b) { return place_of(a) < place_of(b); });
    }
    const auto first = indices.begin();
    for (const int32_t index : indices) {
      const int64_t count = count_of(index);
      if (travels_apart(bucket)) {
        bucket.starts.push_back(bucket.count);
        bucket.count += padded_count(count, bucket.dtype);
      } else {
        bucket.starts.push_back(count > 0 ? (place_of(index) - place_of(*first)) / element : 0);
        bucket.count += count;
      }
    }
    bucket.params = std::move(indices);
    bucket.cuts = {0, bucket.count};
  }
  return buckets;
}

/// What lies side by side on one rank alone would make other buckets there.
Status Reducer::find_neighbours() {
  if (options_.places.empty()) return {};
  std::vector<PlanParam> plan_params;
  for (const Param& param : params_) {
    plan_params.push_back({param.count, param.dtype, -1, param.row_elements > 0});
  }
  neighbours_ = training::find_neighbours(plan_params, order_, options_.places);
  // The least and, with the sign changed, the largest of each over the ranks.
  std::vector<int8_t> ends;
  for (const Neighbour each : neighbours_) ends.push_back(static_cast<int8_t>(each));
  for (const Neighbour each : neighbours_) {
    ends.push_back(static_cast<int8_t>(-static_cast<int8_t>(each)));
  }
  Collective collective;
  collective.kind = Kind::kAllreduce;
  collective.dtype = Dtype::kI8;
  collective.op = ReduceOp::kMin;
  collective.send = collective.recv = ends.data();
  collective.count = static_cast<int64_t>(ends.size());
  collective.name = "neighbours in memory";
  DT_TRY(comm_->run_on_host(collective));
  for (size_t i = 0; i < neighbours_.size(); ++i) {
    const PlanParam& param = plan_params[static_cast<size_t>(order_[i])];
    if (ends[i] != -ends[neighbours_.size() + i]) neighbours_[i] = Neighbour::kNone;
    if (travels_apart(param.dtype)) neighbours_[i] = Neighbour::kAny;
  }
  return {};
}

Status Reducer::lay_out(const std::vector<int32_t>& order) {
  std::vector<std::unique_ptr<Bucket>> buckets;
  std::vector<int64_t> starts;  // bytes from the start of the memory
  int64_t total = 0;
  for (ShardBucket& planned : plan(order, cap_bytes_)) {
    auto bucket = std::make_unique<Bucket>();
    static_cast<ShardBucket&>(*bucket) = std::move(planned);
    bucket->bytes = data_bytes(*bucket);
    if (has_wire(*bucket)) {
      bucket->bytes += round_up(bucket->count * dtype_bytes(*options_.wire), kGradientAlignment);
    }
    if (is_quantized(bucket->dtype)) {
      bucket->bytes += 2 * round_up(parts_of(*bucket).bytes(), kGradientAlignment);
    }
    starts.push_back(total);
    total += options_.pooled() ? own_bytes(*bucket) : bucket->bytes;
    buckets.push_back(std::move(bucket));
  }
  // In 8 bits all of it travels, also what lies between gradients: zeros in new memory of a GPU.
  const bool must_be_new = options_.wire_8bit && device_ != nullptr;
  const bool fits = memory_ != nullptr && total <= memory_bytes_ && !must_be_new;
  const Result<void*> allocated =
      fits ? Result<void*>(memory_) : comm_->backend().allocate(std::max<int64_t>(total, 1));
  Status mine = allocated.status();
  if (mine.ok()) mine = await_last_step();
  if (mine.ok() && device_ != nullptr) mine = device_->reserve(buckets.size());
  lacks_memory_ = mine.code() == Code::kOutOfMemory;
  if (const Status agreed = agree_on_memory(mine); !agreed.ok()) {
    if (allocated.ok() && !fits) (void)comm_->backend().release(allocated.value());
    return agreed;
  }
  void* const memory = allocated.value();

  if (!fits) {
    (void)comm_->backend().release(memory_);  // nothing is under way
    count_memory(total - std::exchange(memory_bytes_, total));
  }
  if (device_ != nullptr) device_->forget();
  last_work_ = nullptr;
  memory_ = memory;
  order_ = order;
  buckets_ = std::move(buckets);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    lay_out(static_cast<int32_t>(b), static_cast<char*>(memory) + starts[b]);
  }
  statistics_.with([&](Statistics& s) {
    s.bucket_count = static_cast<int32_t>(buckets_.size());
    s.bucket_cap_bytes = cap_bytes_;
  });
  end_step();
  return {};
}

Status Reducer::await_last_step() const {
  if (device_ == nullptr) return {};
  if (last_work_ != nullptr) {
    last_backend().wait(*last_work_, Wait());
    DT_TRY(last_work_->status());
  }
  return device_->await_streams(*comm_, comm_->deadline(), /*broken_too=*/false);
}

/// `memory`: of the bucket, or pooled of what this rank keeps of it.
void Reducer::lay_out(int32_t index, char* memory) {
  Bucket& bucket = *buckets_[static_cast<size_t>(index)];
  const auto [from, to] = result_of(bucket);
  const int64_t element = dtype_bytes(bucket.dtype);
  bucket.own = options_.pooled() ? memory : memory + from * element;
  for (size_t i = 0; i < bucket.params.size(); ++i) {
    const auto param = static_cast<size_t>(bucket.params[i]);
    Slot& slot = slots_[param];
    slot.bucket = index;
    slot.start = bucket.starts[i];
    slot.offset = std::clamp<int64_t>(from - slot.start, 0, params_[param].count);
    slot.count = std::clamp<int64_t>(to - slot.start, 0, params_[param].count) - slot.offset;
    slot.own = bucket.own + (slot.start + slot.offset - from) * element;
    if (slot.result == slot.data && options_.places.empty()) {
      if (slot.result != nullptr && counts_as_result(param)) lost_results_ = true;
      slot.result = nullptr;
    }
  }
  if (!options_.pooled()) place(bucket, memory);
}

Result<int64_t> Reducer::agree(int64_t mine, ReduceOp op, const char* name) {
  Collective collective;
  collective.kind = Kind::kAllreduce;
  collective.dtype = Dtype::kI64;
  collective.op = op;
  collective.send = collective.recv = &mine;
  collective.count = 1;
  collective.name = name;
  DT_TRY(comm_->run_on_host(collective));
  return mine;
}

Result<bool> Reducer::all_say(bool mine, const char* question) {
  DT_TRY_VALUE(const int64_t least, agree(mine ? 1 : 0, ReduceOp::kMin, question));
  return least != 0;
}

/// All ranks take a new plan, or none does. Otherwise gradients of different parameters would meet.
/// Where ranks have different errors, all return the one with the largest code.
Status Reducer::agree_on_memory(const Status& mine) {
  const Result<int64_t> largest =
      agree(static_cast<int64_t>(mine.code()), ReduceOp::kMax, "bucket memory?");
  if (!mine.ok() && !largest.ok()) return mine;
  DT_TRY(largest.status());
  const auto worst = static_cast<Code>(largest.value());
  if (mine.code() == worst) return mine;
  if (worst == Code::kOutOfMemory) {
    return Status(worst,
                  format("reducer on comm \"%s\": another rank has no memory for its buckets "
                         "or for what they travel in; its own message says how much it asked "
                         "for",
                         comm_->name().c_str()));
  }
  return Status(worst,
                format("reducer on comm \"%s\": another rank could not make its buckets; its "
                       "own message says why",
                       comm_->name().c_str()));
}

bool Reducer::keeps_plan(const Status& refused) {
  // All ranks have this status. A time-out: the GPU of one has not ended the last step yet.
  const bool passes = refused.code() == Code::kOutOfMemory || refused.code() == Code::kTimeout;
  if (!passes || !comm_->broken().ok()) return false;
  if (lacks_memory_ && options_.logger != nullptr && !std::exchange(warned_of_memory_, true)) {
    options_.logger->log(LogLevel::kWarning,
                         "reducer on comm \"%s\": it goes on with the buckets that it has, because "
                         "there is no memory for others: %s",
                         comm_->name().c_str(), refused.message().c_str());
  }
  return true;
}

Status Reducer::rebuild_after_first_step() {
  if (asked_to_rebuild_ || !options_.rebuild || options_.find_unused || options_.by_units() ||
      !options_.places.empty()) {
    return {};
  }
  asked_to_rebuild_ = true;
  // Memory that was handed out never moves; if any rank handed some out, no rank rebuilds.
  DT_TRY_VALUE(const bool may_move, all_say(can_move(), "rebuild?"));
  if (!may_move) return {};
  const Status rebuilt = rebuild().status();
  return keeps_plan(rebuilt) ? Status() : rebuilt;
}

Result<std::vector<int32_t>> Reducer::agree_on_order() {
  std::vector<int32_t> order = last_arrivals_.empty() ? order_ : last_arrivals_;
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
  if (options_.by_units()) return false;  // where pieces lie is part of what their owners keep
  if (!options_.places.empty())
    return false;  // another order could only cut memory into more parts
  DT_TRY_VALUE(const std::vector<int32_t> order, agree_on_order());
  DT_TRY_VALUE(const bool changed, plan_anew(order));
  statistics_.with([](Statistics& s) { s.rebuilt = true; });
  return changed;
}

/// The order is the same on all ranks, and so are the caps and the plan that was in force: all
/// ranks find the same answer.
Result<bool> Reducer::plan_anew(const std::vector<int32_t>& order) {
  const int64_t cap_in_use = cap_bytes_;
  const bool next_cap = tuner_ && tuner_->has_result();
  if (next_cap) {
    DT_TRY_VALUE(const int64_t slowest_ns,
                 agree(tuner_->result_ns(), ReduceOp::kMax, "time of steps"));
    cap_bytes_ = tuner_->next_cap(slowest_ns);
  }
  Result<bool> changed = plan_with_cap(order);
  while (next_cap && tuner_->tuning() && !changed.ok() && keeps_plan(changed.status())) {
    cap_bytes_ = tuner_->next_cap(BucketTuner::kSlowest);  // there is no memory for it
    changed = plan_with_cap(order);
  }
  if (!changed.ok()) cap_bytes_ = cap_in_use;
  if (next_cap && !tuner_->tuning()) statistics_.with([](Statistics& s) { s.tuned = true; });
  return changed;
}

Result<bool> Reducer::plan_with_cap(const std::vector<int32_t>& order) {
  const std::vector<ShardBucket> planned = plan(order, cap_bytes_);
  const bool changed = !std::equal(
      planned.begin(), planned.end(), buckets_.begin(), buckets_.end(),
      [](const ShardBucket& now, const auto& before) { return now.params == before->params; });
  if (changed) DT_TRY(lay_out(order));
  statistics_.with([&](Statistics& s) { s.bucket_cap_bytes = cap_bytes_; });
  return changed;
}

/// With the cap that was asked for and a quarter, a sixteenth and four times of it, where these
/// give other numbers of buckets.
void Reducer::make_tuner() {
  if (options_.tune_steps == 0) return;
  const int64_t asked = options_.bucket_cap_bytes;
  std::vector<int64_t> caps = {asked};
  std::vector<size_t> counts = {buckets_.size()};
  for (const int64_t cap : {asked / 4, asked / 16, asked > INT64_MAX / 4 ? asked : asked * 4}) {
    if (cap == 0) continue;
    const size_t count = plan(order_, cap).size();
    if (std::find(counts.begin(), counts.end(), count) != counts.end()) continue;
    caps.push_back(cap);
    counts.push_back(count);
  }
  tuner_.emplace(std::move(caps), options_.tune_steps);
}

/// On a GPU the time of a step's end is when its buckets are reduced there.
Status Reducer::tune() {
  if (!tuner_ || !tuner_->tuning() || tuner_->has_result()) return {};
  if (device_ != nullptr && tuner_->wants_time()) {
    const Status passed = await_last_step();
    if (passed.code() == Code::kTimeout && comm_->broken().ok()) {
      tuner_->lose_time();
    } else if (!passed.ok()) {
      return fail_everywhere(passed);
    }
  }
  tuner_->end_step(monotonic_ns());
  if (!tuner_->has_result()) return {};
  DT_TRY_VALUE(const bool may_move, all_say(can_move(), "other buckets?"));
  if (!may_move) return {};  // rebuild() goes on
  const Status planned = plan_anew(order_).status();
  return keeps_plan(planned) ? Status() : planned;
}

}  // namespace dt::training
