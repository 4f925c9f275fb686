// SPDX-License-Identifier: Apache-2.0
#include "cli/trace/verdict.h"

#include <algorithm>
#include <optional>
#include <set>

#include "cli/trace/merge.h"
#include "cli/trace/words.h"
#include "store/text.h"

namespace dt::cli::trace {
namespace {

using store::ranks_text;

/// Everything that the judgement looks at.
struct Scene {
  const std::vector<record::Trace>& traces;
  JudgeOptions options;
  std::vector<Team> teams;
  std::vector<Stuck> stuck;
  const record::Trace* first_failed = nullptr;  ///< the trace with the earliest failure

  const record::Trace* trace_of(int32_t rank) const {
    for (const record::Trace& trace : traces) {
      if (trace.identity.rank == rank) return &trace;
    }
    return nullptr;
  }
  std::string who(int32_t rank) const {
    const record::Trace* const trace = trace_of(rank);
    if (trace != nullptr) return rank_text(*trace);
    // Others may know where it was.
    for (const record::Trace& each : traces) {
      const ErrorInfo& failure = each.failure;
      if (failure.code == Code::kOk || failure.rank != rank || failure.host.empty()) continue;
      return format("rank %d (%s pid %lld)", rank, failure.host.c_str(),
                    static_cast<long long>(failure.pid));
    }
    return format("rank %d", rank);
  }
  std::string who(const std::vector<int32_t>& ranks) const {
    return ranks.size() == 1 ? who(ranks[0]) : ranks_text(ranks);
  }
};

std::vector<int32_t> ranks_of(const std::map<int32_t, const record::Entry*>& entries) {
  std::vector<int32_t> ranks;
  for (const auto& [rank, entry] : entries) ranks.push_back(rank);
  return ranks;
}

const record::Entry* last_done(const record::Trace& trace) {
  const record::Entry* last = nullptr;
  for (const record::Entry& entry : trace.recorded.entries) {
    if (!went_well(entry)) continue;
    if (last == nullptr || entry.completed_ns >= last->completed_ns) last = &entry;
  }
  return last;
}

const record::Entry* current(const record::Trace& trace) {
  for (const record::Entry& entry : trace.recorded.entries) {
    if (!went_well(entry)) return &entry;
  }
  return nullptr;
}

/// "it is in barrier #3 on comm "b" for 2.0 s; it last completed ..."
std::string doing(const record::Trace& trace) {
  std::string text;
  if (const record::Entry* const inside = current(trace)) {
    text = "it is in " + operation_text(trace, *inside) + " for " +
           duration_text(ago_ns(trace, inside->enqueued_ns)) + "; ";
  } else {
    text = "it is in no operation; ";
  }
  const record::Entry* const last = last_done(trace);
  if (last == nullptr) return text + "it completed none";
  return text + "it last completed " + operation_text(trace, *last) + ", " +
         duration_text(ago_ns(trace, last->completed_ns)) + " before";
}

Verdict about(const Stuck& stuck, Case found) {
  Verdict verdict;
  verdict.found = found;
  verdict.communicator = stuck.team->name;
  verdict.position = stuck.entry->position;
  return verdict;
}

// ---- dead ----

std::optional<Verdict> dead(const Scene& scene) {
  if (scene.first_failed == nullptr || scene.first_failed->failure.code != Code::kPeerLost) {
    return std::nullopt;
  }
  const ErrorInfo& failure = scene.first_failed->failure;
  if (failure.rank < 0) return std::nullopt;
  const record::Trace* const own = scene.trace_of(failure.rank);
  // It wrote of a failure itself, and ended because of that one.
  if (own != nullptr && own->failure.code != Code::kOk) return std::nullopt;
  Verdict verdict;
  verdict.found = Case::kRankDead;
  verdict.ranks = {failure.rank};
  std::vector<int32_t> witnesses;
  for (const record::Trace& trace : scene.traces) {
    const bool names = trace.failure.code == Code::kPeerLost && trace.failure.rank == failure.rank;
    if (names) witnesses.push_back(trace.identity.rank);
  }
  verdict.sentence = scene.who(failure.rank) + " is dead: " + ranks_text(witnesses) +
                     (witnesses.size() == 1 ? " says so" : " say so");
  for (const Stuck& stuck : scene.stuck) {
    const std::vector<int32_t>& of = stuck.team->world_ranks;
    if (std::find(of.begin(), of.end(), failure.rank) == of.end()) continue;
    verdict.communicator = stuck.team->name;
    verdict.position = stuck.entry->position;
    verdict.sentence += ", " + ranks_text(ranks_of(stuck.inside)) +
                        (stuck.inside.size() == 1 ? " was in " : " were in ") +
                        operation_text(*stuck.trace, *stuck.entry);
    break;
  }
  return verdict;
}

// ---- different calls ----

using Sides = std::map<std::string, std::vector<int32_t>>;  // by signature

/// The first position of the communicator at which ranks called something else.
std::optional<std::pair<int64_t, Sides>> first_difference(const Team& team) {
  std::set<int64_t> positions;
  for (const auto& [rank, member] : team.members) {
    for (const auto& [position, entry] : member.collectives) positions.insert(position);
  }
  for (const int64_t position : positions) {
    Sides sides;
    for (const auto& [rank, member] : team.members) {
      const auto entry = member.collectives.find(position);
      if (entry == member.collectives.end()) continue;
      sides[signature_text(*entry->second)].push_back(rank);
    }
    if (sides.size() > 1) return std::pair{position, std::move(sides)};
  }
  return std::nullopt;
}

std::optional<Verdict> different(const Scene& scene) {
  for (const Team& team : scene.teams) {
    const auto difference = first_difference(team);
    if (!difference) continue;
    const auto& [position, sides] = *difference;
    const auto most = std::max_element(
        sides.begin(), sides.end(),
        [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    Verdict verdict;
    verdict.communicator = team.name;
    verdict.position = position;
    std::set<std::pair<uint8_t, int32_t>> kinds;
    std::string others;
    for (const auto& [signature, ranks] : sides) {
      const record::Entry& entry = *team.members.at(ranks[0]).collectives.at(position);
      kinds.insert({entry.kind, entry.root});
      if (signature == most->first) continue;
      others += (others.empty() ? "" : ", ") + scene.who(ranks) +
                (ranks.size() == 1 ? " calls " : " call ") + signature;
      verdict.ranks.insert(verdict.ranks.end(), ranks.begin(), ranks.end());
    }
    std::sort(verdict.ranks.begin(), verdict.ranks.end());
    verdict.found = kinds.size() > 1 ? Case::kOtherOrder : Case::kMismatch;
    verdict.sentence = format("call #%lld on comm \"%s\" differs: %s, but %s %s %s",
                              static_cast<long long>(position), team.name.c_str(), others.c_str(),
                              scene.who(most->second).c_str(),
                              most->second.size() == 1 ? "calls" : "call", most->first.c_str());
    return verdict;
  }
  return std::nullopt;
}

// ---- waiting ----

const Stuck* stuck_with(const Scene& scene, int32_t rank) {
  for (const Stuck& stuck : scene.stuck) {
    if (stuck.inside.count(rank) != 0) return &stuck;
  }
  return nullptr;
}

/// From an operation to the one in which those are that are missing in it, to the end of the chain.
/// Null: it closes, and `path` has each once.
const Stuck* root_of(const Scene& scene, const Stuck* start, std::vector<const Stuck*>* path) {
  const Stuck* at = start;
  for (;;) {
    if (std::find(path->begin(), path->end(), at) != path->end()) return nullptr;
    path->push_back(at);
    const Stuck* next = nullptr;
    for (const int32_t rank : at->missing) {
      next = stuck_with(scene, rank);
      if (next == nullptr) return at;  // it is in no operation at all: here it began
    }
    if (next == nullptr) return at;
    at = next;
  }
}

Verdict circle(const Scene& scene, const std::vector<const Stuck*>& path) {
  Verdict verdict = about(*path[0], Case::kOtherOrder);
  std::string text;
  for (const Stuck* stuck : path) {
    if (!text.empty()) text += ", ";
    text += ranks_text(ranks_of(stuck->inside)) + (stuck->inside.size() == 1 ? " is" : " are") +
            " in " + operation_text(*stuck->trace, *stuck->entry) + ", which waits for " +
            scene.who(stuck->missing);
  }
  verdict.sentence = "ranks wait for each other: " + text;
  return verdict;
}

Verdict missing(const Scene& scene, const Stuck& stuck) {
  Verdict verdict = about(stuck, Case::kMissingCall);
  verdict.ranks = stuck.missing;
  const std::string what = operation_text(*stuck.trace, *stuck.entry);
  const bool transfer = record::is_transfer(stuck.entry->kind);
  verdict.sentence = scene.who(stuck.missing) + " never called " +
                     (transfer ? "the other side of " + what : what) + ", in which " +
                     ranks_text(ranks_of(stuck.inside)) +
                     (stuck.inside.size() == 1 ? " waits" : " wait");
  const Member& first = stuck.team->members.at(stuck.missing[0]);
  if (stuck.missing.size() == 1) verdict.sentence += ": " + doing(*first.trace);
  if (first.record->ended) verdict.sentence += "; it has destroyed its communicator";
  return verdict;
}

Verdict silent(const Scene& scene, const Stuck& stuck) {
  Verdict verdict = about(stuck, Case::kRankSilent);
  verdict.ranks = stuck.absent;
  verdict.sentence = scene.who(stuck.absent) + (stuck.absent.size() == 1 ? " is" : " are") +
                     " dead, stopped or cut off: no trace is here, and " +
                     ranks_text(ranks_of(stuck.inside)) +
                     (stuck.inside.size() == 1 ? " waits in " : " wait in ") +
                     operation_text(*stuck.trace, *stuck.entry);
  return verdict;
}

struct Late {
  const Team* team = nullptr;
  int64_t position = 0;
  int32_t rank = -1;
  int64_t by_ns = 0;      ///< after the last of the others
  int64_t called_ns = 0;  ///< since 1970
};

void look_late(const Team& team, int64_t position, Late* worst) {
  int64_t last = 0;
  int64_t second = 0;
  int32_t rank = -1;
  size_t members = 0;
  for (const auto& [member_rank, member] : team.members) {
    const auto found = member.collectives.find(position);
    if (found == member.collectives.end()) continue;
    const int64_t called = realtime_of(*member.trace, found->second->enqueued_ns);
    ++members;
    if (called > last || rank < 0) {
      second = std::exchange(last, called);
      rank = member_rank;
    } else {
      second = std::max(second, called);
    }
  }
  if (members > 1 && last - second > worst->by_ns) {
    *worst = {&team, position, rank, last - second, last};
  }
}

std::optional<Verdict> slow_at(const Scene& scene, const Late& worst) {
  if (worst.team == nullptr) return std::nullopt;
  const Member& member = worst.team->members.at(worst.rank);
  const record::Entry& entry = *member.collectives.at(worst.position);
  Verdict verdict;
  verdict.found = Case::kRankSlow;
  verdict.ranks = {worst.rank};
  verdict.communicator = worst.team->name;
  verdict.position = worst.position;
  verdict.sentence = scene.who(worst.rank) + " is slow: it called " +
                     operation_text(*member.trace, entry) + " " + duration_text(worst.by_ns) +
                     " after the last of the others";
  return verdict;
}

/// In any operation.
std::optional<Verdict> slow(const Scene& scene) {
  Late worst;
  worst.by_ns = scene.options.slow_ns - 1;
  for (const Team& team : scene.teams) {
    std::set<int64_t> positions;
    for (const auto& [rank, member] : team.members) {
      for (const auto& [position, entry] : member.collectives) positions.insert(position);
    }
    for (const int64_t position : positions) look_late(team, position, &worst);
  }
  return slow_at(scene, worst);
}

/// In this operation only: a rank that was late in an earlier one did not hold up this one. Nor did
/// a rank after whose call the others waited for longer than they had waited for that call.
std::optional<Verdict> slow_in(const Scene& scene, const Stuck& stuck) {
  if (record::is_transfer(stuck.entry->kind)) return std::nullopt;
  Late worst;
  worst.by_ns = scene.options.slow_ns - 1;
  look_late(*stuck.team, stuck.entry->position, &worst);
  if (stuck.until_ns - worst.called_ns > worst.by_ns) return std::nullopt;
  return slow_at(scene, worst);
}

Verdict unfinished(const Scene& scene, const Stuck& stuck) {
  const bool on_gpu = stuck.team->on_device;
  Verdict verdict = about(stuck, on_gpu ? Case::kGpuNotFinished : Case::kUnfinished);
  const std::vector<int32_t> ranks = ranks_of(stuck.inside);
  verdict.ranks = ranks;
  const std::string who =
      ranks.size() == stuck.team->world_ranks.size() ? "any rank" : scene.who(ranks);
  verdict.sentence = "all ranks called " + operation_text(*stuck.trace, *stuck.entry) +
                     (on_gpu ? ", but the GPU of " + who + " has not finished it"
                             : ", but it did not end on " + who) +
                     ", " + duration_text(stuck.waited_ns) + " after the call";
  return verdict;
}

std::optional<Verdict> waiting(const Scene& scene) {
  for (const Stuck& start : scene.stuck) {
    const bool is_news = scene.first_failed != nullptr || start.waited_ns >= scene.options.slow_ns;
    if (!is_news) continue;
    std::vector<const Stuck*> path;
    const Stuck* const root = root_of(scene, &start, &path);
    if (root == nullptr) return circle(scene, path);
    // Who is in no operation at all began it; others may only be held up elsewhere.
    if (!root->missing.empty()) {
      Stuck cause = *root;
      std::erase_if(cause.missing,
                    [&](int32_t rank) { return stuck_with(scene, rank) != nullptr; });
      if (cause.missing.empty()) cause.missing = root->missing;
      return missing(scene, cause);
    }
    if (!root->absent.empty()) return silent(scene, *root);
    if (auto late = slow_in(scene, *root)) return late;
    // A failure elsewhere ends what all were in.
    const bool by_itself =
        scene.first_failed == nullptr || scene.first_failed->failure.code == Code::kTimeout;
    if (by_itself) return unfinished(scene, *root);
  }
  return std::nullopt;
}

// ---- the rest ----

Verdict failed(const Scene& scene) {
  const ErrorInfo& failure = scene.first_failed->failure;
  Verdict verdict;
  verdict.found = Case::kFailure;
  if (failure.rank >= 0) verdict.ranks = {failure.rank};
  verdict.communicator = scene.first_failed->failure_scope;
  verdict.sentence =
      format("the job failed, as %s saw first: %s: %s", rank_text(*scene.first_failed).c_str(),
             code_name(failure.code), failure.message.c_str());
  return verdict;
}

Verdict nothing(const Scene& scene) {
  Verdict verdict;
  const int32_t world_size = scene.traces[0].identity.world_size;
  size_t entries = 0;
  for (const record::Trace& trace : scene.traces) entries += trace.recorded.entries.size();
  verdict.sentence =
      format("nothing is wrong in the traces of %zu of %d ranks, with %zu operations",
             scene.traces.size(), world_size, entries);
  return verdict;
}

std::vector<Row> rows_of(const Scene& scene) {
  constexpr size_t kAbsentRows = 64;
  std::vector<Row> rows;
  size_t absent = 0;
  for (int32_t rank = 0; rank < scene.traces[0].identity.world_size; ++rank) {
    const record::Trace* const trace = scene.trace_of(rank);
    if (trace == nullptr && ++absent > kAbsentRows) continue;
    Row& row = rows.emplace_back();
    row.rank = rank;
    if (trace == nullptr) continue;
    row.traced = true;
    row.host = trace->identity.host;
    row.pid = trace->identity.pid;
    if (const record::Entry* const last = last_done(*trace)) {
      row.last = operation_text(*trace, *last);
      row.last_ago_ns = ago_ns(*trace, last->completed_ns);
    }
    if (const record::Entry* const now = current(*trace)) {
      row.current = operation_text(*trace, *now);
      row.current_for_ns = ago_ns(*trace, now->enqueued_ns);
      row.outcome = now->state == record::State::kDone     ? code_name(now->status)
                    : now->state == record::State::kQueued ? "queued"
                                                           : "inside";
    }
  }
  return rows;
}

Verdict found_in(const Scene& scene) {
  if (auto verdict = dead(scene)) return *std::move(verdict);
  if (auto verdict = different(scene)) return *std::move(verdict);
  // No consequence of somebody's absence: an abort, a full memory, a GPU that failed.
  if (scene.first_failed != nullptr) {
    const Code code = scene.first_failed->failure.code;
    if (code != Code::kTimeout && code != Code::kMismatch && code != Code::kPeerLost) {
      return failed(scene);
    }
  }
  if (auto verdict = waiting(scene)) return *std::move(verdict);
  // A rank that was late in an operation that ended did not make the job fail.
  if (scene.first_failed != nullptr) return failed(scene);
  if (auto verdict = slow(scene)) return *std::move(verdict);
  return nothing(scene);
}

}  // namespace

const char* case_name(Case found) {
  switch (found) {
    case Case::kNothingWrong: return "nothing wrong";
    case Case::kMissingCall: return "missing call";
    case Case::kOtherOrder: return "other order";
    case Case::kMismatch: return "other size, dtype or reduction";
    case Case::kRankDead: return "rank dead";
    case Case::kRankSilent: return "rank silent";
    case Case::kRankSlow: return "rank slow";
    case Case::kGpuNotFinished: return "GPU not finished";
    case Case::kUnfinished: return "not finished";
    case Case::kFailure: return "other failure";
  }
  return "?";
}

Verdict judge(const std::vector<record::Trace>& traces, const JudgeOptions& options) {
  Verdict verdict;
  if (traces.empty()) return verdict;
  Scene scene{traces, options, teams_of(traces), {}, nullptr};
  scene.stuck = stuck_in(scene.teams);
  for (const record::Trace& trace : traces) {
    if (trace.failure.code == Code::kOk) continue;
    if (scene.first_failed == nullptr ||
        trace.failure_realtime_ns < scene.first_failed->failure_realtime_ns) {
      scene.first_failed = &trace;
    }
  }
  verdict = found_in(scene);
  if (scene.first_failed != nullptr) {
    const ErrorInfo& failure = scene.first_failed->failure;
    verdict.failure = rank_text(*scene.first_failed) + " saw first: " + code_name(failure.code) +
                      ": " + failure.message;
  }
  verdict.rows = rows_of(scene);
  return verdict;
}

}  // namespace dt::cli::trace
