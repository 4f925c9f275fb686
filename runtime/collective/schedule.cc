// SPDX-License-Identifier: Apache-2.0
#include "collective/schedule.h"

#include <algorithm>

namespace dt::collective {
namespace {

// A segment that overlaps with others is reduced, scattered, gathered and broadcast, in this order,
// each in a round of its own.
constexpr int64_t kOverlappedSteps = 4;

void append(std::vector<Stage>* out, Stage stage) {
  if (!stage.empty()) out->push_back(std::move(stage));
}

void add(std::vector<NetworkStep>* steps, NetworkStep step) {
  if (step.bytes > 0) steps->push_back(step);
}

}  // namespace

Schedule::Schedule(const Collective& collective, const Topology& topology, int32_t rank)
    : topology_(topology),
      rank_(rank),
      host_(topology.host[rank]),
      local_(topology.local[rank]),
      kind_(collective.kind),
      dtype_(collective.dtype),
      op_(collective.op),
      root_(collective.root),
      count_(collective.kind == Kind::kBarrier ? 0 : collective.count),
      element_bytes_(dtype_bytes(collective.dtype)) {
  const int64_t others = topology_.host_count() - 1;
  int64_t scratch_pieces = 0;  // of round_elements_ each
  int64_t segment_bytes = 0;
  round_elements_ = count_;
  switch (kind_) {
    case Kind::kAllreduce:
      if (bytes(count_) <= kWholeBytes) {
        scratch_bytes_ = others * bytes(count_);
        break;
      }
      slices_ = topology_.local_size_min;
      overlaps_ = topology_.size() > topology_.host_count();
      segment_bytes = overlaps_ ? kOverlappedBytes : kSegmentBytes;
      round_elements_ = slices_ * (segment_bytes / element_bytes_);
      scratch_bytes_ = std::min(bytes(count_), segment_bytes) +
                       others * element_bytes_;  // parts of a slice differ by one element
      break;
    case Kind::kReduce: scratch_pieces = std::max<int64_t>(others, 1); break;
    case Kind::kReduceScatter: scratch_pieces = others + topology_.represented_max; break;
    case Kind::kBroadcast:
    case Kind::kAllgather:
      round_elements_ = std::max<int64_t>(1, kSegmentBytes / element_bytes_);
      break;
    default: break;
  }
  if (scratch_pieces > 0) {
    round_elements_ = std::max<int64_t>(
        1, kSegmentBytes / std::max<int64_t>(scratch_pieces / 2, 1) / element_bytes_);
    scratch_bytes_ = scratch_pieces * bytes(std::min(round_elements_, count_));
  }
  rounds_ = count_ == 0 ? 0 : 1 + (count_ - 1) / round_elements_;
  if (overlaps_) rounds_ += kOverlappedSteps - 1;
}

Schedule::Span Schedule::part(int64_t index, int64_t parts, Span whole) {
  const int64_t begin = whole.count * index / parts;
  return {whole.begin + begin, whole.count * (index + 1) / parts - begin};
}

/// Empty outside of the buffer.
Schedule::Span Schedule::segment(int64_t index) const {
  const int64_t begin = index * round_elements_;
  if (index < 0 || begin >= count_) return {0, 0};
  return {begin, std::min(round_elements_, count_ - begin)};
}

std::vector<Stage> Schedule::round(int64_t index) const {
  const Span span = segment(index);
  std::vector<Stage> stages;
  switch (kind_) {
    case Kind::kAllreduce:
      if (overlaps_) {
        allreduce_overlapped(index, &stages);
      } else if (bytes(count_) <= kWholeBytes) {
        allreduce_whole(span, &stages);
      } else {
        allreduce_parts(span, &stages);
      }
      break;
    case Kind::kReduce: reduce(span, &stages); break;
    case Kind::kBroadcast: broadcast(span, &stages); break;
    case Kind::kAllgather: allgather(span, &stages); break;
    case Kind::kReduceScatter: reduce_scatter(span, &stages); break;
    default: break;
  }
  return stages;
}

LocalStep Schedule::reduce_locally(int32_t root, Piece send, Piece recv, int64_t count) const {
  LocalStep step;
  step.kind = Kind::kReduce;
  step.op = op_;
  if (op_ == ReduceOp::kAvg) {
    if (is_integer(dtype_)) {
      step.op = ReduceOp::kSum;
    } else {
      step.divisor = topology_.size();
    }
  }
  step.root = root;
  step.send = send;
  step.recv = recv;
  step.count = count;
  return step;
}

LocalStep Schedule::broadcast_locally(int32_t root, Piece send, Piece recv, int64_t count) const {
  LocalStep step;
  step.root = root;
  step.send = local_ == root ? send : recv;
  step.recv = recv;
  step.count = count;
  return step;
}

/// The sources are filled in by the caller.
SumStep Schedule::sum_hosts(Piece target, int64_t count) const {
  SumStep step;
  step.target = target;
  step.op = op_;
  if (op_ == ReduceOp::kAvg) {
    if (is_integer(dtype_)) {
      step.divisor = topology_.size();
    } else {
      step.op = ReduceOp::kSum;
    }
  }
  step.count = count;
  return step;
}

void Schedule::allreduce_whole(Span span, std::vector<Stage>* out) const {
  Stage first;
  Stage exchange;
  Stage last;
  reduce_slices(span, &first);
  append(out, std::move(first));
  if (local_ < slices_) {
    const Piece own = at(Space::kRecv, span.begin);
    SumStep sum = sum_hosts(own, span.count);
    int64_t used = 0;
    for (int32_t host = 0; host < topology_.host_count(); ++host) {
      if (host == host_) {
        sum.sources.push_back(own);
        continue;
      }
      const int32_t peer = topology_.hosts[host][local_];
      const Piece theirs{Space::kScratch, used};
      add(&exchange.sends, {peer, own, bytes(span.count)});
      add(&exchange.receives, {peer, theirs, bytes(span.count)});
      sum.sources.push_back(theirs);
      used += bytes(span.count);
    }
    exchange.sums.push_back(std::move(sum));
    append(out, std::move(exchange));
  }
  if (topology_.hosts[host_].size() > 1) {
    broadcast_slices(span, &last);
    append(out, std::move(last));
  }
}

void Schedule::allreduce_parts(Span span, std::vector<Stage>* out) const {
  Stage first;
  Stage scatter;
  Stage gather;
  reduce_slices(span, &first);
  scatter_parts(span, &scatter);
  gather_parts(span, &gather);
  append(out, std::move(first));
  append(out, std::move(scatter));
  append(out, std::move(gather));
}

/// What the steps of a round read and write lies in different segments, but for the scratch memory,
/// which one of them uses. All ranks of a host have the same local operations in the same order,
/// and each pair the same messages: both follow from the number of the round.
void Schedule::allreduce_overlapped(int64_t index, std::vector<Stage>* out) const {
  Stage stage;
  scatter_parts(segment(index - 1), &stage);
  gather_parts(segment(index - 2), &stage);
  if (topology_.hosts[host_].size() > 1) broadcast_slices(segment(index - 3), &stage);
  reduce_slices(segment(index), &stage);
  append(out, std::move(stage));
}

/// Each slice onto its mover.
void Schedule::reduce_slices(Span span, Stage* stage) const {
  for (int64_t mover = 0; mover < slices_; ++mover) {
    const Span slice = part(mover, slices_, span);
    if (slice.count == 0) continue;
    stage->local.push_back(reduce_locally(static_cast<int32_t>(mover),
                                          at(Space::kSend, slice.begin),
                                          at(Space::kRecv, slice.begin), slice.count));
  }
}

void Schedule::broadcast_slices(Span span, Stage* stage) const {
  for (int64_t mover = 0; mover < slices_; ++mover) {
    const Span slice = part(mover, slices_, span);
    if (slice.count == 0) continue;
    const Piece result = at(Space::kRecv, slice.begin);
    stage->local.push_back(
        broadcast_locally(static_cast<int32_t>(mover), result, result, slice.count));
  }
}

/// A reduce-scatter among the movers of a slice, host h's owning part h.
void Schedule::scatter_parts(Span span, Stage* stage) const {
  if (local_ >= slices_) return;
  const int32_t hosts = topology_.host_count();
  const Span slice = part(local_, slices_, span);
  const Span own = part(host_, hosts, slice);
  SumStep sum = sum_hosts(at(Space::kRecv, own.begin), own.count);
  int64_t used = 0;
  for (int32_t host = 0; host < hosts; ++host) {
    if (host == host_) {
      sum.sources.push_back(sum.target);
      continue;
    }
    const int32_t peer = topology_.hosts[host][local_];
    const Span theirs = part(host, hosts, slice);
    const Piece partial{Space::kScratch, used};
    add(&stage->sends, {peer, at(Space::kRecv, theirs.begin), bytes(theirs.count)});
    add(&stage->receives, {peer, partial, bytes(own.count)});
    sum.sources.push_back(partial);
    used += bytes(own.count);
  }
  if (own.count > 0) stage->sums.push_back(std::move(sum));
}

/// The all-gather of what scatter_parts() has summed.
void Schedule::gather_parts(Span span, Stage* stage) const {
  if (local_ >= slices_) return;
  const int32_t hosts = topology_.host_count();
  const Span slice = part(local_, slices_, span);
  const Span own = part(host_, hosts, slice);
  for (int32_t host = 0; host < hosts; ++host) {
    if (host == host_) continue;
    const int32_t peer = topology_.hosts[host][local_];
    const Span theirs = part(host, hosts, slice);
    add(&stage->sends, {peer, at(Space::kRecv, own.begin), bytes(own.count)});
    add(&stage->receives, {peer, at(Space::kRecv, theirs.begin), bytes(theirs.count)});
  }
}

void Schedule::reduce(Span span, std::vector<Stage>* out) const {
  const int32_t deputy = topology_.deputy(root_, host_);
  const bool is_root = rank_ == root_;
  const Piece partial = is_root ? at(Space::kRecv, span.begin) : at(Space::kScratch, 0);
  Stage first;
  first.local.push_back(
      reduce_locally(topology_.local[deputy], at(Space::kSend, span.begin), partial, span.count));
  append(out, std::move(first));
  if (rank_ != deputy) return;
  Stage second;
  if (!is_root) {
    add(&second.sends, {root_, partial, bytes(span.count)});
  } else {
    SumStep sum = sum_hosts(partial, span.count);
    int64_t used = 0;
    for (int32_t host = 0; host < topology_.host_count(); ++host) {
      if (host == host_) {
        sum.sources.push_back(partial);
        continue;
      }
      const Piece theirs{Space::kScratch, used};
      add(&second.receives, {topology_.deputy(root_, host), theirs, bytes(span.count)});
      sum.sources.push_back(theirs);
      used += bytes(span.count);
    }
    second.sums.push_back(std::move(sum));
  }
  append(out, std::move(second));
}

void Schedule::broadcast(Span span, std::vector<Stage>* out) const {
  const int32_t deputy = topology_.deputy(root_, host_);
  const Piece source = at(Space::kSend, span.begin);
  const Piece result = at(Space::kRecv, span.begin);
  Stage local;
  local.local.push_back(broadcast_locally(topology_.local[deputy], rank_ == root_ ? source : result,
                                          result, span.count));
  Stage network;
  if (rank_ == root_) {
    // Its own host is served while the bytes leave.
    for (int32_t host = 0; host < topology_.host_count(); ++host) {
      if (host == host_) continue;
      add(&local.sends, {topology_.deputy(root_, host), source, bytes(span.count)});
    }
  } else if (rank_ == deputy) {
    add(&network.receives, {root_, result, bytes(span.count)});
    if (topology_.hosts[host_].size() == 1) local.local.clear();
  }
  append(out, std::move(network));
  append(out, std::move(local));
}

void Schedule::allgather(Span span, std::vector<Stage>* out) const {
  const Piece own = at(Space::kSend, span.begin);
  const std::vector<int32_t>& locals = topology_.hosts[host_];
  Stage first;
  Stage second;
  for (const int32_t member : locals) {
    first.local.push_back(broadcast_locally(
        topology_.local[member], own, at(Space::kRecv, member * count_ + span.begin), span.count));
  }
  for (int32_t host = 0; host < topology_.host_count(); ++host) {
    if (host == host_) continue;
    add(&first.sends, {topology_.deputy(rank_, host), own, bytes(span.count)});
  }
  for (int32_t peer = 0; peer < topology_.size(); ++peer) {
    if (topology_.host[peer] == host_) continue;
    const Piece block = at(Space::kRecv, peer * count_ + span.begin);
    const int32_t deputy = topology_.deputy(peer, host_);
    if (deputy == rank_) add(&first.receives, {peer, block, bytes(span.count)});
    if (locals.size() > 1) {
      second.local.push_back(broadcast_locally(topology_.local[deputy], block, block, span.count));
    }
  }
  append(out, std::move(first));
  append(out, std::move(second));
}

void Schedule::reduce_scatter(Span span, std::vector<Stage>* out) const {
  Stage first;
  Stage second;
  const Piece own = at(Space::kRecv, span.begin);
  int64_t used = 0;
  const auto take_scratch = [&] {
    const Piece piece{Space::kScratch, used};
    used += bytes(span.count);
    return piece;
  };
  for (int32_t target = 0; target < topology_.size(); ++target) {
    const int32_t deputy = topology_.deputy(target, host_);
    Piece partial = own;
    if (deputy == rank_ && target != rank_) {
      partial = take_scratch();
      add(&second.sends, {target, partial, bytes(span.count)});
    }
    first.local.push_back(reduce_locally(topology_.local[deputy],
                                         at(Space::kSend, target * count_ + span.begin), partial,
                                         span.count));
  }
  SumStep sum = sum_hosts(own, span.count);
  for (int32_t host = 0; host < topology_.host_count(); ++host) {
    if (host == host_) {
      sum.sources.push_back(own);
      continue;
    }
    const Piece theirs = take_scratch();
    add(&second.receives, {topology_.deputy(rank_, host), theirs, bytes(span.count)});
    sum.sources.push_back(theirs);
  }
  second.sums.push_back(std::move(sum));
  append(out, std::move(first));
  append(out, std::move(second));
}

}  // namespace dt::collective
