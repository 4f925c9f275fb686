// SPDX-License-Identifier: Apache-2.0
#include "cli/run/outcome.h"

#include <signal.h>

#include <algorithm>

#include "cli/command.h"
#include "cli/run/processes.h"
#include "store/protocol.h"

namespace dt::cli {
namespace {

constexpr size_t kMaxLineBytes = 1 << 20;
constexpr size_t kTailsBytes = 4 << 20;  // of all nodes; a store's answer holds 32 MiB
constexpr size_t kLengthBytes = 4;       // before each line
constexpr size_t kEndBytes = 4 + 8 + 8 + 4 + 8 + 1;
constexpr size_t kCandidateBytes = 4 + 1 + 4;
constexpr int kRestartBit = 1;
constexpr int kRegroupBit = 2;
constexpr int kMaxExitCode = 255;  // a process has no other

void write_lines(store::Writer& writer, const std::vector<std::string>& lines) {
  writer.u32(static_cast<uint32_t>(lines.size()));
  for (const std::string& line : lines) writer.text(line);
}

std::vector<std::string> read_lines(store::Reader& reader) {
  std::vector<std::string> lines(reader.count(sizeof(uint32_t)));
  for (std::string& line : lines) line = reader.text(kMaxLineBytes);
  return lines;
}

bool is_exit_code(int code) { return code >= 0 && code <= kMaxExitCode; }

const NodeEnds* node_of(const std::vector<NodeEnds>& nodes, int rank) {
  for (const NodeEnds& node : nodes) {
    if (rank >= node.first_rank && rank < node.first_rank + static_cast<int>(node.ends.size())) {
      return &node;
    }
  }
  return nullptr;
}

const Candidate* candidate_of(const std::vector<NodeEnds>& nodes, int rank) {
  const NodeEnds* node = rank < 0 ? nullptr : node_of(nodes, rank);
  if (node == nullptr) return nullptr;
  for (const Candidate& candidate : node->candidates) {
    if (node->first_rank + candidate.index == rank) return &candidate;
  }
  return nullptr;
}

/// It was stopped, and not ended, when others that waited for it failed.
bool was_stopped(const std::vector<NodeEnds>& nodes, int rank) {
  const NodeEnds* node = rank < 0 ? nullptr : node_of(nodes, rank);
  return node != nullptr && node->ends[static_cast<size_t>(rank - node->first_rank)].stopped;
}

/// The world rank that failed first; -1 none failed.
int first_failure(const std::vector<NodeEnds>& nodes, const OutcomeFacts& facts) {
  int first = candidate_of(nodes, facts.first_recorded) != nullptr ? facts.first_recorded : -1;
  for (const NodeEnds& node : nodes) {
    if (first < 0 && node.first >= 0) first = node.first_rank + node.first;
  }
  if (first < 0) return -1;
  if (facts.told_silent && node_of(nodes, facts.first_told) != nullptr) return facts.first_told;
  const auto killed = [&](int rank) {
    const Candidate* candidate = candidate_of(nodes, rank);
    return candidate != nullptr && candidate->killed;
  };
  if (killed(first)) return first;
  if (was_stopped(nodes, facts.told_late)) return facts.told_late;
  if (candidate_of(nodes, facts.first_told) != nullptr) first = facts.first_told;
  if (killed(first)) return first;
  for (const NodeEnds& node : nodes) {
    for (const Candidate& candidate : node.candidates) {
      if (candidate.killed) return node.first_rank + candidate.index;
    }
  }
  return first;
}

/// By world rank; ranks of which nothing is known have not ended.
std::vector<RankEnd> all_ends(const std::vector<NodeEnds>& nodes) {
  std::vector<RankEnd> all;
  for (const NodeEnds& node : nodes) {
    const size_t end = static_cast<size_t>(node.first_rank) + node.ends.size();
    if (all.size() < end) all.resize(end);
    std::copy(node.ends.begin(), node.ends.end(), all.begin() + node.first_rank);
  }
  return all;
}

/// A rank ended well, and after all those that failed; whoever was lost had failed then. The clocks
/// of hosts differ, so times count from the start of the ranks of a node.
bool ended_well_without_them(const std::vector<NodeEnds>& nodes) {
  int64_t good_ns = -1;
  int64_t failed_ns = -1;
  for (const NodeEnds& node : nodes) {
    int64_t start_ns = INT64_MAX;
    for (const RankEnd& end : node.ends) start_ns = std::min(start_ns, end.started_ns);
    for (const RankEnd& end : node.ends) {
      int64_t& last_ns = end.failed() ? failed_ns : good_ns;
      const int64_t end_ns = end.failed() && end.lost_ns != 0 ? end.lost_ns : end.ended_ns;
      if (end.has_ended()) last_ns = std::max(last_ns, end_ns - start_ns);
    }
  }
  return good_ns > failed_ns;
}

Outcome of_lost_node(const std::vector<NodeEnds>& nodes, const OutcomeFacts& facts) {
  Outcome outcome;
  outcome.exit_code = 1;
  outcome.headline = facts.lost_node;
  outcome.followers = followers_line(all_ends(nodes), -1);
  outcome.regroup = facts.elastic;
  for (const NodeEnds& node : nodes) {
    if (node.stop_signal != 0) outcome.regroup = false;  // who stops a job does not want it again
  }
  return outcome;
}

Outcome of_regroup() {
  Outcome outcome;
  outcome.regroup = true;
  outcome.headline = "dt run: a node has come, all ranks start again with it";
  return outcome;
}

Outcome of_start_error(const NodeEnds& node, const OutcomeFacts& facts) {
  Outcome outcome;
  outcome.exit_code = node.start_code;
  outcome.headline = "dt run: ";
  if (facts.node_count > 1) {
    outcome.headline += format("node %d (host %s): ", node.node, node.host.c_str());
  }
  outcome.headline += node.start_error;
  return outcome;
}

Outcome of_stop(const std::vector<NodeEnds>& nodes, const NodeEnds& stopped,
                const OutcomeFacts& facts) {
  Outcome outcome;
  outcome.exit_code = 128 + stopped.stop_signal;
  const std::string where =
      facts.node_count > 1 ? format(" on node %d (host %s)", stopped.node, stopped.host.c_str())
                           : "";
  const std::string ends = outcome_list(all_ends(nodes), -1);
  outcome.headline = "dt run: stopped by " + signal_name(stopped.stop_signal) + where +
                     (ends.empty() ? ", before a rank was started" : ": " + ends);
  return outcome;
}

Outcome of_failure(const std::vector<NodeEnds>& nodes, int rank, const OutcomeFacts& facts) {
  const NodeEnds& node = *node_of(nodes, rank);
  const RankEnd& end = node.ends[static_cast<size_t>(rank - node.first_rank)];
  Outcome outcome;
  outcome.rank = rank;
  outcome.exit_code = end.exit_code();
  outcome.restart = facts.attempt < facts.max_restarts;
  if (outcome.restart) {
    outcome.headline =
        format("dt run: restart %d of %d after ", facts.attempt + 1, facts.max_restarts);
  }
  outcome.headline += first_failure_line(rank, end, node.host);
  if (end.killed_by(SIGKILL)) outcome.headline += node.oom_text;
  if (const Candidate* candidate = candidate_of(nodes, rank)) outcome.tail = candidate->tail;
  outcome.headline += why_not_run(end, outcome.tail);
  if (facts.told_silent && rank == facts.first_told) {
    // How it ended in the end says nothing: dt ends the ranks that are left, also stopped ones.
    outcome.exit_code = kExitFailure;
    outcome.headline += "; before, it gave no sign of life, and the others took it for lost";
  } else if (rank == facts.told_late && was_stopped(nodes, rank)) {
    outcome.exit_code = kExitFailure;
    outcome.headline +=
        "; before, it was stopped (as by SIGSTOP), and the others timed out waiting for it";
  }
  outcome.followers = followers_line(all_ends(nodes), rank);
  if (facts.others_go_on && ended_well_without_them(nodes)) {
    outcome.exit_code = 0;
    outcome.headline += "; the others went on and ended well";
    const std::string also = outcome_list(all_ends(nodes), rank);
    outcome.followers = also.empty() ? "" : "before that also failed: " + also;
  }
  return outcome;
}

}  // namespace

size_t tails_room(int node_count) {
  return kTailsBytes / static_cast<size_t>(std::max(1, node_count));
}

std::vector<std::string> lines_that_fit(std::vector<std::string> lines, size_t* room) {
  size_t count = 0;
  for (const std::string& line : lines) {
    const size_t bytes = line.size() + kLengthBytes;
    if (bytes > *room) break;
    *room -= bytes;
    ++count;
  }
  lines.resize(count);
  return lines;
}

Outcome decide(const std::vector<NodeEnds>& nodes, const OutcomeFacts& facts) {
  if (!facts.lost_node.empty()) return of_lost_node(nodes, facts);
  const NodeEnds* stopped = nullptr;
  bool died_of_it = false;
  bool failed_before = false;
  for (const NodeEnds& node : nodes) {
    if (!node.start_error.empty()) return of_start_error(node, facts);
    // Ranks of one node may end because those of another were stopped, before their agent knows.
    const bool before = !node.failed_after_stop && !facts.stopped_first;
    if (node.first >= 0 && before) failed_before = true;
    if (node.stop_signal == 0) continue;
    died_of_it = died_of_it || node.died_of_it;
    if (stopped == nullptr || (node.stopped_here && !stopped->stopped_here)) stopped = &node;
  }
  if (died_of_it && !failed_before) return of_stop(nodes, *stopped, facts);
  if (facts.regroup_first && stopped == nullptr) return of_regroup();
  const int rank = first_failure(nodes, facts);
  if (rank < 0) return {};
  OutcomeFacts told = facts;
  if (stopped != nullptr) told.max_restarts = 0;  // who stops a job does not want it again
  return of_failure(nodes, rank, told);
}

// ---- on the wire ----

std::string encode(const NodeEnds& ends) {
  store::Writer writer;
  writer.i32(ends.node).text(ends.host).i32(ends.first_rank);
  writer.u32(static_cast<uint32_t>(ends.ends.size()));
  for (const RankEnd& end : ends.ends) {
    writer.i32(end.pid).i64(end.started_ns).i64(end.ended_ns);
    writer.i32(end.wait_status).i64(end.lost_ns).u8(end.stopped ? 1 : 0);
  }
  writer.text(ends.start_error)
      .i32(ends.start_code)
      .i32(ends.first)
      .u8(ends.failed_after_stop ? 1 : 0);
  writer.i32(ends.stop_signal).u8(ends.died_of_it ? 1 : 0).u8(ends.stopped_here ? 1 : 0);
  writer.text(ends.oom_text).u32(static_cast<uint32_t>(ends.candidates.size()));
  for (const Candidate& candidate : ends.candidates) {
    writer.i32(candidate.index).u8(candidate.killed ? 1 : 0);
    write_lines(writer, candidate.tail);
  }
  return writer.take();
}

bool decode(std::string_view bytes, NodeEnds* out) {
  store::Reader reader(bytes);
  out->node = reader.i32();
  out->host = reader.text(kMaxLineBytes);
  out->first_rank = reader.i32();
  out->ends.resize(reader.count(kEndBytes));
  for (RankEnd& end : out->ends) {
    end.pid = reader.i32();
    end.started_ns = reader.i64();
    end.ended_ns = reader.i64();
    end.wait_status = reader.i32();
    end.lost_ns = reader.i64();
    end.stopped = reader.u8() != 0;
  }
  out->start_error = reader.text(kMaxLineBytes);
  out->start_code = reader.i32();
  out->first = reader.i32();
  out->failed_after_stop = reader.u8() != 0;
  out->stop_signal = reader.i32();
  out->died_of_it = reader.u8() != 0;
  out->stopped_here = reader.u8() != 0;
  out->oom_text = reader.text(kMaxLineBytes);
  out->candidates.resize(reader.count(kCandidateBytes));
  // Whoever reads it keeps a list of all ranks up to this node's last one, and subtracts the times.
  const int size = static_cast<int>(out->ends.size());
  bool in_range = size <= kMaxWorldSize && out->first_rank >= 0 &&
                  out->first_rank <= kMaxWorldSize - size && out->first >= -1 &&
                  out->first < size && out->stop_signal >= 0 && out->stop_signal < NSIG &&
                  is_exit_code(out->start_code);
  for (const RankEnd& end : out->ends) {
    in_range = in_range && end.started_ns >= 0 && end.ended_ns >= 0 && end.lost_ns >= 0;
  }
  for (Candidate& candidate : out->candidates) {
    candidate.index = reader.i32();
    candidate.killed = reader.u8() != 0;
    candidate.tail = read_lines(reader);
    in_range = in_range && candidate.index >= 0 && candidate.index < size;
  }
  return reader.done() && in_range;
}

std::string encode(const Outcome& outcome) {
  store::Writer writer;
  const int again = (outcome.restart ? kRestartBit : 0) | (outcome.regroup ? kRegroupBit : 0);
  writer.i32(outcome.exit_code).u8(static_cast<uint8_t>(again)).text(outcome.headline);
  writer.i32(outcome.rank);
  write_lines(writer, outcome.tail);
  return writer.text(outcome.followers).take();
}

bool decode(std::string_view bytes, Outcome* out) {
  store::Reader reader(bytes);
  out->exit_code = reader.i32();
  const int again = reader.u8();
  out->restart = (again & kRestartBit) != 0;
  out->regroup = (again & kRegroupBit) != 0;
  out->headline = reader.text(kMaxLineBytes);
  out->rank = reader.i32();
  out->tail = read_lines(reader);
  out->followers = reader.text(kMaxLineBytes);
  return reader.done() && is_exit_code(out->exit_code) && out->rank >= -1;
}

}  // namespace dt::cli
