// SPDX-License-Identifier: Apache-2.0
// What one rank does over more than two hosts where it does not exchange with all of them at once.
#include <algorithm>

#include "collective/schedule.h"

namespace dt::collective {

Way choose_way(Kind kind, Dtype dtype, int32_t hosts, int64_t bytes) {
  if (hosts <= 2) return Way::kDirect;
  const bool rounds_each_hop = reduces(kind) && (dtype == Dtype::kF16 || dtype == Dtype::kBf16);
  if (kind == Kind::kBroadcast || kind == Kind::kReduce) {
    return bytes < Schedule::kChainFromBytes || rounds_each_hop ? Way::kDirect : Way::kRing;
  }
  // Of these `bytes` are one block of many.
  if (kind == Kind::kAllgather || kind == Kind::kReduceScatter) bytes *= hosts;
  if (bytes <= Schedule::kDirectBytes) {
    return hosts <= Schedule::kDirectHosts ? Way::kDirect : Way::kHalving;
  }
  const bool ring_pays =
      bytes >= Schedule::kRingFromBytes && bytes / hosts >= Schedule::kRingPartBytes;
  return ring_pays && !rounds_each_hop ? Way::kRing : Way::kHalving;
}

/// The root's host first, then each host after the one before: in round r the host at place d
/// receives segment r - d + 1 and passes on segment r - d, which it hands out as well.
void Schedule::broadcast_chained(int64_t index, std::vector<Stage>* out) const {
  const int32_t first = topology_.host[root_];
  const int32_t place = (host_ - first + hosts_) % hosts_;
  const auto deputy_at = [&](int32_t at) { return topology_.deputy(root_, (first + at) % hosts_); };
  const Span incoming = segment(index - place + 1);
  const Span outgoing = segment(index - place);
  const Space source = rank_ == root_ ? Space::kSend : Space::kRecv;
  Stage stage;
  if (rank_ == deputy_at(place)) {
    if (place > 0) {
      add(&stage.receives,
          {deputy_at(place - 1), at(Space::kRecv, incoming.begin), bytes(incoming.count)});
    }
    if (place + 1 < hosts_) {
      add(&stage.sends, {deputy_at(place + 1), at(source, outgoing.begin), bytes(outgoing.count)});
    }
  }
  // At home the root's own result is part of it.
  if (outgoing.count > 0 && (place == 0 || topology_.hosts[host_].size() > 1)) {
    stage.local.push_back(broadcast_locally(topology_.local[deputy_at(place)],
                                            at(source, outgoing.begin),
                                            at(Space::kRecv, outgoing.begin), outgoing.count));
  }
  append(out, std::move(stage));
}

/// The other way round: the host at place d, counted from the far end, sums segment r - d in round
/// r and passes on the one before. Three pieces of scratch memory: two of sums in turn, and what
/// comes in.
void Schedule::reduce_chained(int64_t index, std::vector<Stage>* out) const {
  const int32_t last = topology_.host[root_];
  const int32_t place = (last - host_ + 2 * hosts_ - 1) % hosts_;
  const auto deputy_at = [&](int32_t at) {
    return topology_.deputy(root_, (last - at + 2 * hosts_ - 1) % hosts_);
  };
  const int64_t piece_bytes = bytes(std::min(round_elements_, count_));
  const auto sum_of = [&](int64_t number, Span span) {
    if (rank_ == root_) return at(Space::kRecv, span.begin);
    return Piece{Space::kScratch, number % 2 * piece_bytes};
  };
  const auto own = [&](int64_t number, Span span) {
    return takes_from_send_ ? at(Space::kSend, span.begin) : sum_of(number, span);
  };
  const int64_t summed = index - place;
  const Span span = segment(summed);
  const Span outgoing = segment(summed - 1);
  const int32_t deputy = deputy_at(place);
  Stage stage;
  if (span.count > 0) {
    combine_host(topology_.local[deputy], at(Space::kSend, span.begin), sum_of(summed, span),
                 span.count, &stage);
  }
  if (rank_ == deputy && place > 0 && span.count > 0) {
    const Piece incoming{Space::kScratch, 2 * piece_bytes};
    add(&stage.receives, {deputy_at(place - 1), incoming, bytes(span.count)});
    SumStep sum = sum_hosts(sum_of(summed, span), span.count, place + 1 == hosts_);
    sum.sources = {incoming, own(summed, span)};
    stage.sums.push_back(std::move(sum));
  }
  if (rank_ == deputy && place + 1 < hosts_) {
    const Piece passed_on = place == 0 ? own(summed - 1, outgoing) : sum_of(summed - 1, outgoing);
    add(&stage.sends, {deputy_at(place + 1), passed_on, bytes(outgoing.count)});
  }
  append(out, std::move(stage));
}

/// Each rank with those of the same index on the other hosts.
void Schedule::allgather_stepwise(Span span, std::vector<Stage>* out) const {
  const auto block = [&](int32_t rank) { return at(Space::kRecv, rank * count_ + span.begin); };
  const Piece own = at(Space::kSend, span.begin);
  const std::vector<int32_t>& locals = topology_.hosts[host_];
  std::vector<Stage> stages(1);
  for (const int32_t member : locals) {
    stages[0].local.push_back(
        broadcast_locally(topology_.local[member], own, block(member), span.count));
  }
  const std::vector<ExchangeStep> steps = allgather_steps(way_, hosts_, host_);
  stages.resize(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto add_all = [&](const std::vector<Move>& moves, std::vector<NetworkStep>* to) {
      for (const Move& move : moves) {
        const int32_t peer = topology_.hosts[move.host][local_];
        for (int32_t part = move.first; part < move.first + move.parts; ++part) {
          const int32_t rank = topology_.hosts[part % hosts_][local_];
          add(to, {peer, rank == rank_ ? own : block(rank), bytes(span.count)});
        }
      }
    };
    add_all(steps[i].sends, &stages[i].sends);
    add_all(steps[i].receives, &stages[i].receives);
  }
  Stage last;
  for (int32_t peer = 0; peer < topology_.size() && locals.size() > 1; ++peer) {
    if (topology_.host[peer] == host_) continue;
    last.local.push_back(
        broadcast_locally(topology_.local[peer], block(peer), block(peer), span.count));
  }
  stages.push_back(std::move(last));
  for (Stage& stage : stages) append(out, std::move(stage));
}

/// Likewise. What is for host h lies in piece h of the scratch memory, or in the result.
void Schedule::reduce_scatter_stepwise(Span span, std::vector<Stage>* out) const {
  const int64_t piece_bytes = bytes(span.count);
  const auto sum_for = [&](int32_t host) {
    if (host == host_) return at(Space::kRecv, span.begin);
    return Piece{Space::kScratch, (host < host_ ? host : host - 1) * piece_bytes};
  };
  std::vector<Stage> stages(1);
  std::vector<Piece> own(hosts_);  // for each host, for the rank of this one's index there
  for (int32_t target = 0; target < topology_.size(); ++target) {
    const int32_t host = topology_.host[target];
    const Piece partial =
        combine_host(topology_.local[target], at(Space::kSend, target * count_ + span.begin),
                     sum_for(host), span.count, &stages[0]);
    if (topology_.local[target] == local_) own[host] = partial;
  }
  const std::vector<ExchangeStep> steps = reduce_scatter_steps(way_, hosts_, host_);
  for (size_t i = 0; i < steps.size(); ++i) {
    Stage stage;
    const Move& sent = steps[i].sends.front();
    for (int32_t part = sent.first; part < sent.first + sent.parts; ++part) {
      const Piece passed_on = i == 0 ? own[part % hosts_] : sum_for(part % hosts_);
      add(&stage.sends, {topology_.hosts[sent.host][local_], passed_on, piece_bytes});
    }
    const Move& received = steps[i].receives.front();
    for (int32_t k = 0; k < received.parts; ++k) {
      const Piece incoming{Space::kScratch, (hosts_ - 1 + k) * piece_bytes};
      add(&stage.receives, {topology_.hosts[received.host][local_], incoming, piece_bytes});
      const int32_t host = (received.first + k) % hosts_;
      SumStep sum = sum_hosts(sum_for(host), span.count, i + 1 == steps.size());
      sum.sources = {incoming, i == 0 || way_ == Way::kRing ? own[host] : sum.target};
      if (host_ < received.host) std::swap(sum.sources[0], sum.sources[1]);
      stage.sums.push_back(std::move(sum));
    }
    stages.push_back(std::move(stage));
  }
  for (Stage& stage : stages) append(out, std::move(stage));
}

}  // namespace dt::collective
