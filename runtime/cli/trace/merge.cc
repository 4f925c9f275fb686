// SPDX-License-Identifier: Apache-2.0
#include "cli/trace/merge.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "cli/trace/words.h"

namespace dt::cli::trace {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

void note_times(Stuck* stuck) {
  stuck->since_ns = kNone;
  for (const auto& [rank, entry] : stuck->inside) {
    const record::Trace& trace = *stuck->team->members.at(rank).trace;
    const int64_t called = realtime_of(trace, entry->enqueued_ns);
    stuck->since_ns = std::min(stuck->since_ns, called);
    if (stuck->trace == nullptr || stuck->entry->enqueued_ns > entry->enqueued_ns) {
      stuck->trace = &trace;
      stuck->entry = entry;
    }
  }
  // Traces are written one after the other: what was called after the last was written is no news.
  stuck->until_ns = kNone;
  stuck->waited_ns = kNone;
  for (const int32_t rank : stuck->missing) {
    const record::Trace& trace = *stuck->team->members.at(rank).trace;
    stuck->waited_ns = std::min(stuck->waited_ns, trace.recorded.realtime_ns - stuck->since_ns);
  }
  for (const auto& [rank, entry] : stuck->inside) {
    const record::Trace& trace = *stuck->team->members.at(rank).trace;
    const int64_t written =
        entry->state == record::State::kDone ? entry->completed_ns : trace.recorded.monotonic_ns;
    stuck->until_ns = std::min(stuck->until_ns, realtime_of(trace, written));
    stuck->waited_ns = std::min(stuck->waited_ns, written - entry->enqueued_ns);
  }
}

std::optional<Stuck> stuck_collective(const Team& team) {
  int64_t position = kNone;
  for (const auto& [rank, member] : team.members) {
    for (const auto& [at, entry] : member.collectives) {
      if (went_well(*entry)) continue;
      position = std::min(position, at);
      break;
    }
  }
  if (position == kNone) return std::nullopt;
  Stuck stuck;
  stuck.team = &team;
  stuck.absent = team.absent();
  for (const auto& [rank, member] : team.members) {
    const auto found = member.collectives.find(position);
    if (found != member.collectives.end()) {
      if (!went_well(*found->second)) stuck.inside.emplace(rank, found->second);
    } else if (member.record->issued < position) {
      stuck.missing.push_back(rank);
    }
  }
  note_times(&stuck);
  return stuck;
}

/// The first transfer of a pair that its other side has not called, or not ended either.
std::optional<Stuck> stuck_transfer(const Team& team, int32_t rank, const Member& member,
                                    const std::pair<int32_t, bool>& way,
                                    const std::map<int64_t, const record::Entry*>& transfers) {
  const auto first = std::find_if(transfers.begin(), transfers.end(),
                                  [](const auto& each) { return !went_well(*each.second); });
  if (first == transfers.end()) return std::nullopt;
  const auto [peer, sends] = way;
  if (peer < 0 || static_cast<size_t>(peer) >= team.world_ranks.size()) return std::nullopt;
  const int32_t other = team.world_ranks[static_cast<size_t>(peer)];
  Stuck stuck;
  stuck.team = &team;
  stuck.inside.emplace(rank, first->second);
  const auto counterpart = team.members.find(other);
  if (counterpart == team.members.end()) {
    stuck.absent = {other};
  } else {
    const auto theirs = counterpart->second.transfers.find({member.record->rank, !sends});
    const bool called = theirs != counterpart->second.transfers.end() &&
                        theirs->second.rbegin()->first >= first->first;
    if (!called) stuck.missing = {other};
  }
  note_times(&stuck);
  return stuck;
}

}  // namespace

std::vector<int32_t> Team::absent() const {
  std::vector<int32_t> ranks;
  for (const int32_t rank : world_ranks) {
    if (members.count(rank) == 0) ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<Team> teams_of(const std::vector<record::Trace>& traces) {
  std::map<std::string, Team> teams;
  for (const record::Trace& trace : traces) {
    std::vector<Member*> by_index;
    for (const record::CommunicatorRecord& record : trace.recorded.communicators) {
      Team& team = teams[record.name];
      if (team.members.empty()) {
        team.name = record.name;
        team.world_ranks = record.world_ranks;
      }
      by_index.push_back(nullptr);
      const bool own = record.world_ranks[static_cast<size_t>(record.rank)] == trace.identity.rank;
      if (!own || team.world_ranks != record.world_ranks) continue;
      const auto [member, is_new] =
          team.members.try_emplace(trace.identity.rank, Member{&trace, &record, {}, {}});
      if (!is_new) continue;
      team.on_device |= record.on_device;
      by_index.back() = &member->second;
    }
    for (const record::Entry& entry : trace.recorded.entries) {
      Member* const member = by_index[entry.communicator];
      if (member == nullptr) continue;
      if (record::is_transfer(entry.kind)) {
        member->transfers[{entry.root, entry.kind == record::kSendKind}].emplace(entry.position,
                                                                                 &entry);
      } else {
        member->collectives.emplace(entry.position, &entry);
      }
    }
  }
  std::vector<Team> all;
  for (auto& [name, team] : teams) all.push_back(std::move(team));
  return all;
}

std::vector<Stuck> stuck_in(const std::vector<Team>& teams) {
  std::vector<Stuck> all;
  for (const Team& team : teams) {
    if (auto stuck = stuck_collective(team)) all.push_back(std::move(*stuck));
    for (const auto& [rank, member] : team.members) {
      for (const auto& [way, transfers] : member.transfers) {
        if (auto stuck = stuck_transfer(team, rank, member, way, transfers)) {
          all.push_back(std::move(*stuck));
        }
      }
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Stuck& a, const Stuck& b) { return a.since_ns < b.since_ns; });
  return all;
}

}  // namespace dt::cli::trace
