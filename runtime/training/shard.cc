// SPDX-License-Identifier: Apache-2.0
#include "training/shard.h"

#include <algorithm>
#include <cstring>

#include "collective/blocks.h"

namespace dt::training {
namespace {

using backend::Collective;
using backend::Kind;

constexpr int64_t kLastGatherMs = 1'000;  // that destruction gives to what is under way

}  // namespace

Result<std::unique_ptr<Shard>> Shard::create(std::shared_ptr<comm::Communicator> comm,
                                             std::vector<Param> params, Options options) {
  if (comm->backend().device() != nullptr) {
    return Status(Code::kUnsupported,
                  "dt_shard_create on comm \"" + comm->name() +
                      "\": shards are in host memory for now; use a communicator over it");
  }
  options.reducer.by_units = true;
  options.reducer.scatter = options.stage > 0;
  options.reducer.pooled = options.stage > 1;
  options.reducer.rebuild = false;
  options.reducer.first_bucket_bytes = 0;
  std::unique_ptr<Shard> shard(new Shard(std::move(comm), options));
  DT_TRY_VALUE(shard->reducer_, Reducer::create(shard->comm_, std::move(params), options.reducer));
  DT_TRY(shard->allocate());
  return shard;
}

Status Shard::allocate() {
  set_counts_.resize(params().size());
  int64_t total = 0;
  std::vector<int64_t> starts;
  for (size_t b = 0; b < reducer_->bucket_count(); ++b) {
    const ShardBucket& layout = reducer_->layout(b);
    starts.push_back(total);
    total += padded_count(layout.count, layout.dtype) * dtype_bytes(layout.dtype);
  }
  const auto allocated = comm_->backend().allocate(std::max<int64_t>(total, 1));
  if (const Status agreed = reducer_->agree_on_memory(allocated.status()); !agreed.ok()) {
    if (allocated.ok()) (void)comm_->backend().release(allocated.value());
    return agreed;
  }
  memory_ = allocated.value();
  for (const int64_t start : starts) {
    buckets_.push_back({static_cast<char*>(memory_) + start, nullptr});
  }
  return {};
}

Shard::~Shard() {
  // What is under way still writes into the memory, which then stays with the communicator.
  if (last_ != nullptr && !comm_->backend().wait(*last_, Wait{Deadline::after_ms(kLastGatherMs)})) {
    return;
  }
  (void)comm_->backend().release(memory_);
}

void* Shard::param(int32_t index) const {
  const auto bucket = static_cast<size_t>(reducer_->bucket_of(index));
  return buckets_[bucket].data +
         reducer_->start_of(index) * dtype_bytes(reducer_->layout(bucket).dtype);
}

Result<Shard::Piece> Shard::piece(int32_t index) {
  DT_TRY(end_gather(static_cast<size_t>(reducer_->bucket_of(index))));
  const Reducer::Part result = reducer_->result(index);
  if (result.count == 0) return Piece{};
  const int64_t skipped = result.offset * dtype_bytes(params()[static_cast<size_t>(index)].dtype);
  return Piece{result.offset, result.count, static_cast<char*>(param(index)) + skipped,
               result.data};
}

Status Shard::set(int32_t index, const void* values) {
  DT_TRY(end_gather(static_cast<size_t>(reducer_->bucket_of(index))));
  const Param& param_of = params()[static_cast<size_t>(index)];
  const auto bytes = static_cast<size_t>(param_of.count * dtype_bytes(param_of.dtype));
  if (bytes != 0) std::memcpy(param(index), values, bytes);
  ++set_counts_[static_cast<size_t>(index)];
  return {};
}

/// The forward pass needs last what the backward pass needs first: from the last bucket on.
Status Shard::updated() {
  DT_TRY(comm_->check_ungrouped("dt_shard_updated"));
  if (options_.stage == 0) return {};
  for (size_t b = buckets_.size(); failed_.ok() && b-- > 0;) failed_ = begin_gather(b);
  return failed_;
}

Status Shard::begin_gather(size_t index) {
  Bucket& bucket = buckets_[index];
  const ShardBucket& layout = reducer_->layout(index);
  const int32_t rank = comm_->rank();
  const auto own = static_cast<size_t>(rank);
  Collective gather;
  gather.kind = Kind::kAllgather;
  gather.dtype = layout.dtype;
  gather.send = bucket.data + layout.cuts[own] * dtype_bytes(layout.dtype);
  gather.recv = bucket.data;
  gather.count = layout.part(rank);
  gather.name = format("parameters of bucket %zu", index);
  if (!layout.is_equally_cut()) {
    gather.kind = Kind::kAllgatherv;
    gather.count = layout.count;
    auto blocks = std::make_shared<collective::Blocks>();
    blocks->outgoing.assign(static_cast<size_t>(comm_->size()), {0, layout.part(rank)});
    for (int32_t from = 0; from < comm_->size(); ++from) {
      blocks->incoming.push_back({layout.cuts[static_cast<size_t>(from)], layout.part(from)});
    }
    gather.blocks = std::move(blocks);
  }
  const auto work = comm_->new_work();
  DT_TRY(comm_->submit(gather, work));
  bucket.gathered = last_ = work;
  return {};
}

Status Shard::end_gather(size_t index) {
  const auto work = std::exchange(buckets_[index].gathered, nullptr);
  if (work == nullptr || !failed_.ok()) return failed_;
  return failed_ = comm_->backend().wait_stream(*work, nullptr);
}

Status Shard::gather(int32_t unit) {
  DT_TRY(comm_->check_ungrouped("dt_shard_gather"));
  for (size_t b = buckets_.size(); b-- > 0;) {
    if (reducer_->layout(b).unit == unit) DT_TRY(end_gather(b));
  }
  return {};
}

}  // namespace dt::training
