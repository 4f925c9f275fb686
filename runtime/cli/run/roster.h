// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cli/run/node_place.h"

namespace dt::cli {

/// One agent of an attempt. `node` is its place in the job as a whole (--node-rank), which another
/// process may take later; `nonce` is this process's own.
struct Seat {
  int node = 0;
  uint64_t nonce = 0;
  std::string host;
  int64_t pid = 0;

  /// "node 2 (host n2, dt run pid 811)"
  std::string text() const;
};

/// Who makes an attempt, by the node rank in it: the one that serves it is the first.
struct Roster {
  int attempt = -1;  ///< -1: none yet
  int restarts = 0;  ///< after failures of ranks, so far
  std::string job_id;
  int max_restarts = 0;
  std::vector<Seat> seats;
  std::string host;  ///< where the first serves the meeting of the attempt
  int port = 0;

  int lead_node() const { return seats.empty() ? -1 : seats.front().node; }
  /// The rank of this process among them; -1 it is not.
  int rank_of(uint64_t nonce) const;
  /// Its agents, whoever of them serves.
  std::set<uint64_t> nonces() const;
};

/// What an agent that waits for an attempt says of itself.
struct Presence {
  Seat seat;
  int64_t serial = 0;  ///< grows with each wait of the process
  Roster last;         ///< the last attempt that it agreed to take part in
  Roster begun;        ///< the last one that it saw begin
  /// Those whose meeting it joined since, in order: each may have begun without its notice.
  std::vector<Roster> unsure;
};

/// The answer to it.
struct Offer {
  Roster roster;
  int end_code = -1;     ///< not negative: there is no attempt any more, the job has ended so
  std::string end_text;  ///< how
};

std::string encode(const Roster& roster);
std::string encode(const Presence& presence);
std::string encode(const Offer& offer);
/// False: the bytes are no such thing.
bool decode(std::string_view bytes, Roster* out);
bool decode(std::string_view bytes, Presence* out);
bool decode(std::string_view bytes, Offer* out);

struct RosterRules {
  int node_count = 1;
  int min_nodes = 1;
  bool allow_minority = false;
};

/// Whether the agents that are there may begin an attempt, and if not, why.
///
/// No two attempts ever run at the same time on the two sides of a broken network:
/// - An attempt begins only when each of its agents has joined its meeting. An agent joins ever
///   later attempts only, and remembers those that may have begun: the last one that it saw begin,
///   and those that it has joined since.
/// - The agents that are there must be more than half of the last attempt that any of them saw
///   begin, and of each later one that any of them has joined. Two such majorities share an agent,
///   so the second one knows of the attempt that the first one began.
/// - An attempt that was agreed upon and did not begin replaces nothing: those of its agents that
///   never joined it are free, and may be a majority of the one before together with others.
/// A process that was started in the place of another counts as new: it knows nothing.
struct Judgement {
  bool go = false;
  bool minority = false;  ///< it fails for the majority, and nobody is expected
  std::string why;        ///< empty where it goes
};

/// `gone`: nonces of agents that are known to be lost. `patient`: the time to wait for all is not
/// over. Pure.
Judgement judge(const RosterRules& rules, const std::vector<Presence>& there,
                const std::set<uint64_t>& gone, bool patient);

/// Moves those out of `there` whose node another agent has: one of the attempts that judge() asks
/// for a majority of, else the one that came first. Pure.
std::vector<Presence> take_doubles(std::vector<Presence>* there);

/// The agent joins the meeting of `presence->last`.
void note_joined(Presence* presence);
/// It saw that attempt begin.
void note_begun(Presence* presence);

/// The attempt of those that are there, served by `lead`, which is one of them. Pure.
Roster next_roster(const std::vector<Presence>& there, int lead);

/// In which order an agent looks for the one that serves, as indices of the addresses: first
/// `preferred`, if not negative; last `lost`. Pure.
std::vector<int> seek_order(int addresses, int preferred, int lost);

}  // namespace dt::cli
