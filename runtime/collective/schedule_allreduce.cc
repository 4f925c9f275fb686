// SPDX-License-Identifier: Apache-2.0
// What one rank does in an allreduce over several hosts.
#include <algorithm>

#include "collective/schedule.h"

namespace dt::collective {

/// Slot i of the scratch memory is for what the host i further contributes.
void Schedule::allreduce_whole(Span span, std::vector<Stage>* out) const {
  const Piece result = at(Space::kRecv, span.begin);
  const auto slot = [&](int32_t host) {
    return Piece{Space::kScratch, (host - host_ + hosts_) % hosts_ * bytes(span.count)};
  };
  Stage first;
  combine_host(0, at(Space::kSend, span.begin), slot(host_), span.count, &first);
  append(out, std::move(first));
  if (local_ == 0) {
    for (const ExchangeStep& step : allgather_steps(way_, hosts_, host_)) {
      Stage stage;
      const auto add_all = [&](const std::vector<Move>& moves, std::vector<NetworkStep>* steps) {
        for (const Move& move : moves) {
          add(steps,
              {topology_.hosts[move.host][0], slot(move.first), move.parts * bytes(span.count)});
        }
      };
      add_all(step.sends, &stage.sends);
      add_all(step.receives, &stage.receives);
      append(out, std::move(stage));
    }
    SumStep sum = sum_hosts(result, span.count);
    for (int32_t host = 0; host < hosts_; ++host) sum.sources.push_back(slot(host));
    out->back().sums.push_back(std::move(sum));
  }
  if (topology_.hosts[host_].size() > 1) {
    Stage last;
    last.local.push_back(broadcast_locally(0, result, result, span.count));
    append(out, std::move(last));
  }
}

void Schedule::allreduce_parts(Span span, std::vector<Stage>* out) const {
  Stage first;
  std::vector<Stage> scatter;
  std::vector<Stage> gather;
  reduce_slices(span, &first);
  scatter_parts(span, &scatter);
  gather_parts(span, &gather);
  append(out, std::move(first));
  for (Stage& stage : scatter) append(out, std::move(stage));
  for (Stage& stage : gather) append(out, std::move(stage));
}

/// What the steps of a round read and write lies in different segments, but for the scratch memory,
/// which one of them uses. All ranks of a host have the same local operations in the same order,
/// and each pair the same messages: both follow from the number of the round.
void Schedule::allreduce_overlapped(int64_t index, std::vector<Stage>* out) const {
  std::vector<Stage> stages(1);
  scatter_parts(segment(index - 1), &stages);
  gather_parts(segment(index - 2), &stages);
  if (topology_.hosts[host_].size() > 1) broadcast_slices(segment(index - 3), &stages[0]);
  reduce_slices(segment(index), &stages[0]);
  for (Stage& stage : stages) append(out, std::move(stage));
}

/// Each slice onto its mover.
void Schedule::reduce_slices(Span span, Stage* stage) const {
  for (int64_t mover = 0; mover < slices_; ++mover) {
    const Span slice = part(mover, slices_, span);
    if (slice.count == 0) continue;
    combine_host(static_cast<int32_t>(mover), at(Space::kSend, slice.begin),
                 at(Space::kRecv, slice.begin), slice.count, stage);
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

/// The parts of a move as pieces of the slice: two, where they go on with its first part.
std::vector<Schedule::Span> Schedule::pieces(const Move& move, Span slice) const {
  const int32_t before_end = std::min(move.parts, hosts_ - move.first);
  const auto span_of = [&](int32_t first, int32_t parts) {
    const int64_t begin = part(first, hosts_, slice).begin;
    const Span last = part(first + parts - 1, hosts_, slice);
    return Span{begin, last.begin + last.count - begin};
  };
  std::vector<Span> spans = {span_of(move.first, before_end)};
  if (before_end < move.parts) spans.push_back(span_of(0, move.parts - before_end));
  return spans;
}

void Schedule::add_moves(const std::vector<Move>& moves, Span slice, Space space,
                         std::vector<NetworkStep>* steps) const {
  for (const Move& move : moves) {
    for (const Span& each : pieces(move, slice)) {
      add(steps, {topology_.hosts[move.host][local_], at(space, each.begin), bytes(each.count)});
    }
  }
}

/// A reduce-scatter among the movers of a slice, host h's owning part h: step i in stage i.
void Schedule::scatter_parts(Span span, std::vector<Stage>* stages) const {
  if (local_ >= slices_) return;
  const Span slice = part(local_, slices_, span);
  const std::vector<ExchangeStep> steps = reduce_scatter_steps(way_, hosts_, host_);
  if (stages->size() < steps.size()) stages->resize(steps.size());
  const Space first = takes_from_send_ ? Space::kSend : Space::kRecv;
  for (size_t i = 0; i < steps.size(); ++i) {
    Stage& stage = (*stages)[i];
    add_moves(steps[i].sends, slice, i == 0 ? first : Space::kRecv, &stage.sends);
    int64_t used = 0;
    // All that comes in a step is for the same parts, and summed in the order of the hosts.
    for (const Span& target : pieces(steps[i].receives.front(), slice)) {
      if (target.count == 0) continue;
      SumStep sum = sum_hosts(at(Space::kRecv, target.begin), target.count, i + 1 == steps.size());
      for (const Move& move : steps[i].receives) {
        const Piece partial{Space::kScratch, used};
        used += bytes(target.count);
        add(&stage.receives, {topology_.hosts[move.host][local_], partial, bytes(target.count)});
        sum.sources.push_back(partial);
      }
      const auto own = std::find_if(steps[i].receives.begin(), steps[i].receives.end(),
                                    [&](const Move& move) { return move.host > host_; });
      // On a ring each step is for another part, else each is for parts of the one before.
      const Space own_space = i == 0 || way_ == Way::kRing ? first : Space::kRecv;
      sum.sources.insert(sum.sources.begin() + (own - steps[i].receives.begin()),
                         at(own_space, target.begin));
      stage.sums.push_back(std::move(sum));
    }
  }
}

/// The all-gather of what scatter_parts() has summed.
void Schedule::gather_parts(Span span, std::vector<Stage>* stages) const {
  if (local_ >= slices_) return;
  const Span slice = part(local_, slices_, span);
  const std::vector<ExchangeStep> steps = allgather_steps(way_, hosts_, host_);
  if (stages->size() < steps.size()) stages->resize(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    add_moves(steps[i].sends, slice, Space::kRecv, &(*stages)[i].sends);
    add_moves(steps[i].receives, slice, Space::kRecv, &(*stages)[i].receives);
  }
}

}  // namespace dt::collective
