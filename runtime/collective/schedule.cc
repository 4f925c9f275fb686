// SPDX-License-Identifier: Apache-2.0
#include "collective/schedule.h"

#include <algorithm>

namespace dt::collective {
namespace {

// A segment that overlaps with others is reduced, scattered, gathered and broadcast, in this order,
// each in a round of its own.
constexpr int64_t kOverlappedSteps = 4;
// Of a segment each, where a host sums what comes along a chain while it passes on the one before.
constexpr int64_t kChainedPieces = 3;

}  // namespace

Schedule::Schedule(const Collective& collective, const Topology& topology, int32_t rank,
                   std::optional<Way> way)
    : topology_(topology),
      rank_(rank),
      host_(topology.host[rank]),
      local_(topology.local[rank]),
      hosts_(topology.host_count()),
      kind_(collective.kind),
      dtype_(collective.dtype),
      op_(collective.op),
      divisor_(collective.divisor > 0 ? collective.divisor : topology.size()),
      root_(collective.root),
      count_(collective.kind == Kind::kBarrier ? 0 : collective.count),
      element_bytes_(collective.element_bytes()),
      way_(way.value_or(choose_way(collective.kind, collective.dtype, hosts_, bytes(count_)))) {
  const int64_t others = hosts_ - 1;
  // Not where the hosts' ranks cannot be paired off.
  const bool pairs = topology_.local_size_min * hosts_ == topology_.size();
  switch (kind_) {
    case Kind::kAllreduce: plan_allreduce(); break;
    case Kind::kReduce:
      if (way_ == Way::kHalving) way_ = Way::kDirect;
      if (way_ == Way::kRing) {
        plan_rounds(kChainedBytes, kChainedPieces);
        rounds_ += count_ == 0 ? 0 : others;
      } else {
        plan_rounds(kSegmentBytes / std::max<int64_t>(others / 2, 1), others);
      }
      break;
    case Kind::kBroadcast:
      if (way_ == Way::kHalving) way_ = Way::kDirect;
      plan_rounds(way_ == Way::kRing ? kChainedBytes : kSegmentBytes, 0);
      if (way_ == Way::kRing && count_ > 0) rounds_ += others;
      break;
    case Kind::kReduceScatter: {
      if (!pairs) way_ = Way::kDirect;
      const int64_t pieces = others + topology_.represented_max;
      plan_rounds(kSegmentBytes / std::max<int64_t>(pieces / 2, 1), pieces);
      break;
    }
    case Kind::kAllgather:
      if (!pairs) way_ = Way::kDirect;
      plan_rounds(kSegmentBytes, 0);
      break;
    default: break;
  }
  const bool one_rank_each = topology_.size() == hosts_;
  averages_last_ = is_integer(dtype_) || (one_rank_each && (whole_ || way_ == Way::kDirect));
  // Not where parts that were summed and parts that were not would leave as one, see exchange.h.
  takes_from_send_ = topology_.hosts[host_].size() == 1 && !whole_ &&
                     (op_ != ReduceOp::kAvg || averages_last_) &&
                     !(way_ == Way::kHalving && hosts_ % 2 == 1);
}

void Schedule::plan_allreduce() {
  whole_ = bytes(count_) <= std::min(kWholeBytes, kWholeBytes * kDirectHosts / hosts_);
  if (whole_) {
    plan_rounds(kWholeBytes, hosts_);
    return;
  }
  slices_ = topology_.local_size_min;
  overlaps_ = topology_.size() > hosts_;
  int64_t slice_bytes = overlaps_ ? kOverlappedBytes : kSegmentBytes;
  if (way_ == Way::kRing) slice_bytes = std::max(slice_bytes, hosts_ * kRingPartBytes);
  plan_rounds(slices_ * slice_bytes, 0);
  scratch_bytes_ = std::min(bytes(count_), slice_bytes);
  if (way_ == Way::kRing) scratch_bytes_ /= hosts_;
  scratch_bytes_ += hosts_ * element_bytes_;  // parts of a slice differ by one element
  if (overlaps_) rounds_ += kOverlappedSteps - 1;
}

/// Rounds of so many bytes; scratch memory for so many pieces of one.
void Schedule::plan_rounds(int64_t round_bytes, int64_t scratch_pieces) {
  round_elements_ = std::max<int64_t>(1, round_bytes / element_bytes_);
  rounds_ = count_ == 0 ? 0 : 1 + (count_ - 1) / round_elements_;
  scratch_bytes_ = scratch_pieces * bytes(std::min(round_elements_, count_));
}

void Schedule::append(std::vector<Stage>* out, Stage stage) {
  if (!stage.empty()) out->push_back(std::move(stage));
}

void Schedule::add(std::vector<NetworkStep>* steps, NetworkStep step) {
  if (step.bytes > 0) steps->push_back(step);
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
      } else if (whole_) {
        allreduce_whole(span, &stages);
      } else {
        allreduce_parts(span, &stages);
      }
      break;
    case Kind::kReduce:
      if (way_ == Way::kRing) {
        reduce_chained(index, &stages);
      } else {
        reduce(span, &stages);
      }
      break;
    case Kind::kBroadcast:
      if (way_ == Way::kRing) {
        broadcast_chained(index, &stages);
      } else {
        broadcast(span, &stages);
      }
      break;
    case Kind::kAllgather:
      if (way_ == Way::kDirect) {
        allgather(span, &stages);
      } else {
        allgather_stepwise(span, &stages);
      }
      break;
    case Kind::kReduceScatter:
      if (way_ == Way::kDirect) {
        reduce_scatter(span, &stages);
      } else {
        reduce_scatter_stepwise(span, &stages);
      }
      break;
    default: break;
  }
  return stages;
}

/// Where what this host contributes lies then, on `root`: in `recv`, or still in `send`.
Piece Schedule::combine_host(int32_t root, Piece send, Piece recv, int64_t count,
                             Stage* stage) const {
  if (takes_from_send_) return send;
  LocalStep step;
  step.kind = Kind::kReduce;
  step.op = op_;
  if (op_ == ReduceOp::kAvg) {
    if (averages_last_) {
      step.op = ReduceOp::kSum;
    } else {
      step.divisor = divisor_;
    }
  }
  step.root = root;
  step.send = send;
  step.recv = recv;
  step.count = count;
  stage->local.push_back(std::move(step));
  return recv;
}

LocalStep Schedule::broadcast_locally(int32_t root, Piece send, Piece recv, int64_t count) const {
  LocalStep step;
  step.root = root;
  step.send = local_ == root ? send : recv;
  step.recv = recv;
  step.count = count;
  return step;
}

/// The sources are filled in by the caller. `complete`: all hosts' are in it then.
SumStep Schedule::sum_hosts(Piece target, int64_t count, bool complete) const {
  SumStep step;
  step.target = target;
  step.op = op_;
  if (op_ == ReduceOp::kAvg) {
    if (averages_last_ && complete) {
      step.divisor = divisor_;
    } else {
      step.op = ReduceOp::kSum;
    }
  }
  step.count = count;
  return step;
}

void Schedule::reduce(Span span, std::vector<Stage>* out) const {
  const int32_t deputy = topology_.deputy(root_, host_);
  const bool is_root = rank_ == root_;
  const Piece result = at(Space::kRecv, span.begin);
  Stage first;
  const Piece partial = combine_host(topology_.local[deputy], at(Space::kSend, span.begin),
                                     is_root ? result : at(Space::kScratch, 0), span.count, &first);
  append(out, std::move(first));
  if (rank_ != deputy) return;
  Stage second;
  if (!is_root) {
    add(&second.sends, {root_, partial, bytes(span.count)});
  } else {
    SumStep sum = sum_hosts(result, span.count);
    int64_t used = 0;
    for (int32_t host = 0; host < hosts_; ++host) {
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
    for (int32_t host = 0; host < hosts_; ++host) {
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
  for (int32_t host = 0; host < hosts_; ++host) {
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
  const Piece result = at(Space::kRecv, span.begin);
  Piece own;
  int64_t used = 0;
  const auto take_scratch = [&] {
    const Piece piece{Space::kScratch, used};
    used += bytes(span.count);
    return piece;
  };
  for (int32_t target = 0; target < topology_.size(); ++target) {
    const int32_t deputy = topology_.deputy(target, host_);
    const bool passed_on = deputy == rank_ && target != rank_;
    const Piece partial =
        combine_host(topology_.local[deputy], at(Space::kSend, target * count_ + span.begin),
                     passed_on ? take_scratch() : result, span.count, &first);
    if (passed_on) add(&second.sends, {target, partial, bytes(span.count)});
    if (target == rank_) own = partial;
  }
  SumStep sum = sum_hosts(result, span.count);
  for (int32_t host = 0; host < hosts_; ++host) {
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
