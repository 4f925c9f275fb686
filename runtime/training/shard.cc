// SPDX-License-Identifier: Apache-2.0
#include "training/shard.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "collective/blocks.h"
#include "training/file_call.h"

namespace dt::training {
namespace {

using backend::Collective;
using backend::Kind;

constexpr int64_t kLastGatherMs = 1'000;  // that destruction gives to what is under way
/// The last one of each stream stands for those before it.
void add_mark(std::vector<MarkPtr>* marks, const MarkPtr& mark) {
  std::erase_if(*marks, [&](const MarkPtr& each) {
    return cuda::is_same_stream(each->stream(), mark->stream());
  });
  marks->push_back(mark);
}

constexpr size_t kLongestOrder = 1 << 16;  // of gathers in a step that are remembered

}  // namespace

Result<std::unique_ptr<Shard>> Shard::create(std::shared_ptr<comm::Communicator> comm,
                                             std::vector<Param> params, Options options) {
  options.reducer.stage = options.stage;
  options.reducer.prefetch = options.prefetch;
  options.reducer.shard_ranks = options.shard_ranks;
  options.reducer.rebuild = false;
  options.reducer.first_bucket_bytes = 0;
  std::unique_ptr<Shard> shard(new Shard(std::move(comm), options));
  if (auto device = shard->device()) shard->marks_ = std::make_unique<StreamMarks>(device);
  DT_TRY_VALUE(shard->reducer_, Reducer::create(shard->comm_, std::move(params), options.reducer));
  DT_TRY(shard->allocate());
  shard->gathering_ = shard->reducer_->within();
  if (!shard->whole_units()) {
    DT_TRY_VALUE(shard->gathering_, shard->gathering_->split(0, shard->gathering_->rank()));
    shard->gathering_->follow(shard->comm_);
    shard->comm_->answer_for(shard->gathering_);
  }
  return shard;
}

int64_t Shard::bytes_of(size_t bucket) const {
  const ShardBucket& layout = reducer_->layout(bucket);
  return padded_count(layout.count, layout.dtype) * dtype_bytes(layout.dtype);
}

int64_t Shard::own_bytes(size_t bucket) const {
  const ShardBucket& layout = reducer_->layout(bucket);
  return padded_count(layout.part(within().rank()), layout.dtype) * dtype_bytes(layout.dtype);
}

Status Shard::allocate() {
  set_counts_.resize(params().size());
  int64_t total = 0;
  std::vector<int64_t> starts;
  for (size_t b = 0; b < reducer_->bucket_count(); ++b) {
    starts.push_back(total);
    total += whole_units() ? bytes_of(b) : own_bytes(b);
  }
  DT_TRY(FileCall(*comm_, "shard_create").agree({obtain(std::max<int64_t>(total, 1))}));
  for (size_t b = 0; b < starts.size(); ++b) {
    const ShardBucket& layout = reducer_->layout(b);
    Bucket& bucket = buckets_.emplace_back();
    bucket.unit = layout.unit;
    bucket.own = static_cast<char*>(memory_) + starts[b];
    if (!whole_units()) continue;
    bucket.data = bucket.own;
    if (options_.stage > 0) {
      bucket.own += layout.cuts[static_cast<size_t>(within().rank())] * dtype_bytes(layout.dtype);
    }
  }
  return {};
}

/// Allocates `memory_`. It also tries the directory: an optimizer is made by each rank alone, so an
/// unusable directory is reported to all ranks here.
Status Shard::obtain(int64_t bytes) {
  if (!options_.offload.empty()) {
    const bool on_disk = !whole_units() && marks_ == nullptr;
    DT_TRY_VALUE(auto file, MappedMemory::create(on_disk ? bytes : 0, options_.offload));
    if (on_disk) {
      file_ = std::move(file);
      memory_ = file_->data();
      return {};
    }
    if (!whole_units()) {
      DT_TRY_VALUE(memory_, device()->allocate_pinned(bytes));
      pinned_ = std::shared_ptr<void>(
          memory_, [runtime = device()](void* unused) { (void)runtime->release_pinned(unused); });
      std::memset(memory_, 0, static_cast<size_t>(bytes));
      return {};
    }
  }
  DT_TRY_VALUE(memory_, comm_->backend().allocate(bytes));
  reducer_->count_memory(bytes);
  return {};
}

Shard::~Shard() {
  // What is under way still uses the memory, which then stays with the communicator.
  const auto ended = [&] {
    if (!gathering_->backend().wait(*last_, Wait{Deadline::after_ms(kLastGatherMs)})) return false;
    return marks_ == nullptr || last_->status().ok();  // a failed one is done before the GPU is
  };
  if ((last_ != nullptr && !ended()) || !await_written(Deadline::after_ms(kLastGatherMs))) {
    slabs_.leave();
    if (file_ != nullptr) file_->leave();
    if (pinned_ != nullptr) comm_->backend().keep(std::move(pinned_));
    return;
  }
  for (Bucket& bucket : buckets_) slabs_.give(bucket.data);
  if (file_ == nullptr && pinned_ == nullptr) (void)comm_->backend().release(memory_);
}

/// Whether the GPU has done with what was written. After a failure nobody knows.
bool Shard::await_written(Deadline deadline) const {
  if (marks_ == nullptr) return true;
  const auto passed = [&](const MarkPtr& mark) {
    const Result<bool> is = marks_->passed(*mark);
    return is.ok() && is.value();
  };
  while (failed_.ok() && !deadline.passed()) {
    if (std::all_of(written_.begin(), written_.end(), passed)) return true;
    sched_yield();
  }
  return false;
}

Result<void*> Shard::param(int32_t index) const {
  const Bucket& bucket = buckets_[static_cast<size_t>(reducer_->bucket_of(index))];
  const Param& param = params()[static_cast<size_t>(index)];
  if (!whole_units() && !bucket.in_use) {
    return Status(Code::kInvalidState,
                  format("dt_shard_param: parameter #%d \"%s\" is not gathered; with stage 3 call "
                         "dt_shard_gather of its unit %d before its use, and dt_shard_release "
                         "behind that",
                         index, param.name.c_str(), param.unit));
  }
  return static_cast<void*>(bucket.data + reducer_->start_of(index) * dtype_bytes(param.dtype));
}

char* Shard::own_piece(int32_t index) const {
  const auto at = static_cast<size_t>(reducer_->bucket_of(index));
  const ShardBucket& layout = reducer_->layout(at);
  const int64_t from = options_.stage > 0 ? layout.cuts[static_cast<size_t>(within().rank())] : 0;
  const int64_t begin = reducer_->start_of(index) + reducer_->result(index).offset;
  return buckets_[at].own + (begin - from) * dtype_bytes(layout.dtype);
}

Status Shard::check_stream(const char* function, cuda::Stream stream) const {
  if (marks_ == nullptr) return {};
  DT_TRY_VALUE(const bool capturing, device()->is_capturing(stream));
  if (!capturing) return {};
  return DeviceStep::capture_refused(std::string(function) + " on comm \"" + comm_->name() + "\"");
}

Status Shard::check_stream_of_all(const char* function, cuda::Stream stream) {
  const Status status = check_stream(function, stream);
  const bool refused = status.code() == Code::kInvalidArgument;
  return status.ok() || refused ? status : fail(status);
}

Status Shard::mark_written(cuda::Stream stream) {
  if (marks_ == nullptr) return {};
  DT_TRY_VALUE(const MarkPtr mark, marks_->set(stream));
  add_mark(&written_, mark);
  return {};
}

Status Shard::wait_for_written(cuda::Stream stream) const {
  for (const MarkPtr& mark : written_) {
    if (!cuda::is_same_stream(mark->stream(), stream)) DT_TRY(marks_->wait(stream, *mark));
  }
  return {};
}

Status Shard::check_whole() const {
  DT_TRY(failed_);
  return comm_->broken();
}

Result<Shard::Piece> Shard::piece(int32_t index, cuda::Stream stream) {
  DT_TRY(check_stream("dt_shard_piece", stream));
  DT_TRY(wait_for_written(stream));
  DT_TRY(end_gather(static_cast<size_t>(reducer_->bucket_of(index)), stream));
  const Reducer::Part result = reducer_->result(index);
  if (result.count == 0) return Piece{};
  return Piece{result.offset, result.count, own_piece(index), result.data};
}

std::vector<collective::Extent> Shard::plan(int32_t index) const {
  const int64_t count = params()[static_cast<size_t>(index)].count;
  const auto ranks = static_cast<size_t>(within().size());
  if (options_.stage == 0) return std::vector<collective::Extent>(ranks, {0, count});
  const ShardBucket& layout = reducer_->layout(static_cast<size_t>(reducer_->bucket_of(index)));
  const int64_t start = reducer_->start_of(index);
  std::vector<collective::Extent> pieces;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const int64_t begin = std::clamp<int64_t>(layout.cuts[rank] - start, 0, count);
    const int64_t end = std::clamp<int64_t>(layout.cuts[rank + 1] - start, 0, count);
    pieces.push_back({begin, end - begin});
  }
  return pieces;
}

Status Shard::full_grad(int32_t index, void* out, cuda::Stream stream) {
  DT_TRY(comm_->check_ungrouped("dt_shard_full_grad"));
  if (!reducer_->has_results()) {
    return Status(Code::kInvalidState,
                  "dt_shard_full_grad on comm \"" + comm_->name() +
                      "\": there are no gradients; call it between dt_reducer_finish and the next "
                      "step's first dt_reducer_ready");
  }
  const Param& param = params()[static_cast<size_t>(index)];
  const Reducer::Part own = reducer_->result(index);
  if (param.count == 0) return {};
  if (options_.stage == 0) {
    DT_TRY(check_stream("dt_shard_full_grad", stream));
    return copy(out, own.data, own.count * dtype_bytes(param.dtype), stream);
  }
  auto blocks = std::make_shared<collective::Blocks>();
  blocks->outgoing.assign(static_cast<size_t>(within().size()), {0, own.count});
  blocks->incoming = plan(index);
  Collective gather;
  gather.kind = Kind::kAllgatherv;
  gather.dtype = param.dtype;
  gather.send = own.data;
  gather.recv = out;
  gather.count = param.count;
  gather.blocks = std::move(blocks);
  gather.tag = index;
  gather.stream = stream;
  gather.name = format("gradient #%d \"%s\"", index, param.name.c_str());
  return within().run(gather);
}

Status Shard::copy(void* to, const void* from, int64_t bytes, cuda::Stream stream) const {
  if (marks_ != nullptr) return device()->copy(to, from, bytes, stream);
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return {};
}

Status Shard::set(int32_t index, const void* values, cuda::Stream stream) {
  DT_TRY(check_stream("dt_shard_set", stream));
  DT_TRY(wait_for_written(stream));
  const auto bucket = static_cast<size_t>(reducer_->bucket_of(index));
  DT_TRY(end_gather(bucket, stream));
  const Param& param_of = params()[static_cast<size_t>(index)];
  const int64_t element = dtype_bytes(param_of.dtype);
  if (buckets_[bucket].data != nullptr && param_of.count != 0) {
    char* const whole = buckets_[bucket].data + reducer_->start_of(index) * element;
    if (whole != values) DT_TRY(copy(whole, values, param_of.count * element, stream));
  }
  if (const auto [offset, count, result] = reducer_->result(index); !whole_units() && count != 0) {
    DT_TRY(copy(own_piece(index), static_cast<const char*>(values) + offset * element,
                count * element, stream));
  }
  ++set_counts_[static_cast<size_t>(index)];
  return mark_written(stream);
}

/// The forward pass needs last what the backward pass needs first: from the last bucket on.
Status Shard::updated(cuda::Stream stream) {
  DT_TRY(comm_->check_ungrouped("dt_shard_updated"));
  DT_TRY(check_stream_of_all("dt_shard_updated", stream));
  MarkPtr used;
  if (marks_ != nullptr) {
    auto mark = marks_->set(stream);
    if (!mark.ok()) return fail(mark.status());
    used = std::move(mark).value();
    written_.assign(1, used);
  }
  if (!whole_units()) {
    for (size_t b = 0; b < buckets_.size(); ++b) DT_TRY(give_back(b, used));
    if (!order_.empty())
      last_order_ = std::exchange(order_, {});  // else nothing was gathered since
    as_before_ = true;
    return begin_ahead();
  }
  if (options_.stage == 0) return {};
  for (size_t b = buckets_.size(); failed_.ok() && b-- > 0;) failed_ = begin_gather(b);
  return failed_;
}

/// `mine`: failed where this rank has no memory, which all ranks then hear of; on GPUs by a broken
/// communicator.
Status Shard::begin_gather(size_t index, const Status& mine) {
  Bucket& bucket = buckets_[index];
  const ShardBucket& layout = reducer_->layout(index);
  const int32_t rank = within().rank();
  Collective gather;
  gather.kind = Kind::kAllgather;
  gather.dtype = layout.dtype;
  gather.send = bucket.own;
  gather.recv = bucket.data;
  gather.count = layout.part(rank);
  gather.name = format("parameters of bucket %zu", index);
  gather.tag = static_cast<int32_t>(index);
  if (!layout.is_equally_cut()) {
    gather.kind = Kind::kAllgatherv;
    gather.count = layout.count;
    auto blocks = std::make_shared<collective::Blocks>();
    blocks->outgoing.assign(static_cast<size_t>(within().size()), {0, layout.part(rank)});
    for (int32_t from = 0; from < within().size(); ++from) {
      blocks->incoming.push_back({layout.cuts[static_cast<size_t>(from)], layout.part(from)});
    }
    gather.blocks = std::move(blocks);
  }
  if (marks_ != nullptr) {
    if (!mine.ok()) return fail(mine);
    std::vector<MarkPtr> behind = written_;
    const auto& used = unused_[bucket.data];
    behind.insert(behind.end(), used.begin(), used.end());
    std::function<Status(cuda::Stream)> bring_up;
    if (pinned_ != nullptr) {
      const int64_t element = dtype_bytes(layout.dtype);
      char* const place = bucket.data + layout.cuts[static_cast<size_t>(rank)] * element;
      gather.send = place;
      if (const int64_t bytes = layout.part(rank) * element; bytes > 0) {
        bring_up = [runtime = device(), place, from = bucket.own, bytes](cuda::Stream stream) {
          return runtime->copy(place, from, bytes, stream);
        };
      }
    }
    gather.steps = steps_behind(std::move(behind), std::move(bring_up));
  } else if (!mine.ok()) {
    gather.withheld = std::make_shared<const std::string>(mine.message());
  }
  const auto work = gathering_->new_work();
  const Status submitted = gathering_->submit(gather, work);
  if (!submitted.ok()) return fail(submitted);
  bucket.gathered = last_ = work;
  return mine;
}

Status Shard::fail(const Status& status) {
  if (failed_.ok()) failed_ = status;
  if (marks_ == nullptr) return status;
  gathering_->backend().fail(status);
  comm_->backend().fail(status);
  return status;
}

/// On GPUs several streams may wait for one gather.
Status Shard::end_gather(size_t index, cuda::Stream stream) {
  const auto work = buckets_[index].gathered;
  if (marks_ == nullptr) buckets_[index].gathered = nullptr;
  if (work == nullptr || !failed_.ok()) return failed_;
  const int64_t began_ns = monotonic_ns();
  failed_ = in_words_of_shards(gathering_->backend().wait_stream(*work, stream));
  reducer_->count_gather(monotonic_ns() - began_ns);
  return failed_.ok() ? failed_ : fail(failed_);
}

/// The caller has not seen the communicator of gathers.
Status Shard::in_words_of_shards(const Status& status) const {
  if (status.code() != Code::kMismatch) return status;
  ErrorInfo info = status.info();
  info.message = "dt_shard_gather on comm \"" + comm_->name() +
                 "\": all ranks must gather and release the same units in the same order; make a "
                 "new shard, from a checkpoint: " +
                 info.message;
  return Status(std::move(info));
}

Status Shard::gather(int32_t unit, cuda::Stream stream) {
  DT_TRY(comm_->check_ungrouped("dt_shard_gather"));
  DT_TRY(whole_units() ? check_stream("dt_shard_gather", stream)
                       : check_stream_of_all("dt_shard_gather", stream));
  if (const Status waits = wait_for_written(stream); !waits.ok()) {
    return whole_units() ? waits : fail(waits);  // the others wait for this rank, or do not
  }
  if (!whole_units()) {
    DT_TRY(begin_unit(unit));
    const size_t at = order_.size();
    as_before_ = as_before_ && at < last_order_.size() && last_order_[at] == unit;
    if (at < kLongestOrder) order_.push_back(unit);
    DT_TRY(begin_ahead());
  }
  for (size_t b = buckets_.size(); b-- > 0;) {
    if (buckets_[b].unit != unit) continue;
    DT_TRY(end_gather(b, stream));
    buckets_[b].in_use = true;
  }
  return {};
}

/// As updated(), from the last bucket on.
Status Shard::begin_unit(int32_t unit) {
  for (size_t b = buckets_.size(); failed_.ok() && b-- > 0;) {
    Bucket& bucket = buckets_[b];
    if (bucket.unit != unit || bucket.data != nullptr) continue;
    const int64_t before = slabs_.bytes();
    const auto taken = slabs_.take(bytes_of(b));
    reducer_->count_memory(slabs_.bytes() - before);
    if (taken.ok()) bucket.data = taken.value();
    failed_ = begin_gather(b, taken.status());
  }
  return failed_;
}

std::span<const int32_t> Shard::ahead() const {
  if (!as_before_) return {};
  const size_t past = order_.size();
  const auto depth = static_cast<size_t>(options_.prefetch);
  return std::span(last_order_).subspan(past, std::min(depth, last_order_.size() - past));
}

Status Shard::begin_ahead() {
  for (const int32_t unit : ahead()) DT_TRY(begin_unit(unit));
  return failed_;
}

Status Shard::release(int32_t unit, cuda::Stream stream) {
  if (whole_units()) return {};
  DT_TRY(check_stream("dt_shard_release", stream));
  MarkPtr used;
  if (marks_ != nullptr) {
    DT_TRY_VALUE(used, marks_->set(stream));
  }
  const auto next = ahead();
  const bool stays = std::find(next.begin(), next.end(), unit) != next.end();  // needed again
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (buckets_[b].unit != unit) continue;
    buckets_[b].in_use = false;
    if (used != nullptr) add_mark(&buckets_[b].used, used);
    if (!stays) DT_TRY(give_back(b, nullptr));
  }
  return {};
}

/// On a GPU a gather into the same memory is behind this one, and who writes the piece waits for
/// it.
Status Shard::give_back(size_t index, const MarkPtr& used) {
  Bucket& bucket = buckets_[index];
  bucket.in_use = false;
  if (marks_ == nullptr) {
    DT_TRY(end_gather(index, nullptr));
  } else if (bucket.gathered != nullptr) {
    if (failed_.ok()) failed_ = in_words_of_shards(bucket.gathered->status());
    DT_TRY(failed_);
  }
  if (bucket.data == nullptr) return {};
  if (used != nullptr) add_mark(&bucket.used, used);
  unused_[bucket.data] = std::exchange(bucket.used, {});
  slabs_.give(std::exchange(bucket.data, nullptr));
  return {};
}

}  // namespace dt::training
