// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/run/report.h"
#include "store/server.h"

namespace dt::cli {

/// A rank that may have failed first, with what the report shows of it.
struct Candidate {
  int index = 0;                  ///< among the node's ranks
  bool killed = false;            ///< by SIGKILL, and not by dt
  std::vector<std::string> tail;  ///< its last lines
};

/// How many bytes a node may tell of its ranks' last lines: node 0 reads those of all nodes in one
/// answer of the store.
size_t tails_room(int node_count);
/// The first of `lines` that `room` holds, which shrinks by them and by what they take on the wire.
std::vector<std::string> lines_that_fit(std::vector<std::string> lines, size_t* room);

/// How the ranks of one node ended; what its agent tells the others once nothing of them is left.
struct NodeEnds {
  int node = 0;
  std::string host;
  int first_rank = 0;
  std::vector<RankEnd> ends;  ///< of its ranks that were started
  std::string start_error;    ///< why one could not be started; empty none
  int start_code = 1;         ///< the exit code then
  int first = -1;             ///< index of the rank that failed first here, -1 none
  bool failed_after_stop = false;
  int stop_signal = 0;        ///< SIGINT, SIGTERM, ... from outside; 0 none
  bool died_of_it = false;    ///< a rank ended as that signal asked
  bool stopped_here = false;  ///< it came to this agent, not through another one
  std::string oom_text;       ///< the kernel's OOM killer has struck here; empty no
  std::vector<Candidate> candidates;
};

std::string encode(const NodeEnds& ends);
/// False: the bytes are no such thing.
bool decode(std::string_view bytes, NodeEnds* out);

/// What the agents say of one attempt, all the same.
struct Outcome {
  int exit_code = 0;
  bool restart = false;  ///< all ranks start again, after a failure
  bool regroup = false;  ///< likewise, with other nodes
  std::string headline;  ///< empty: all ended well
  int rank = -1;         ///< whose last lines are shown, -1 nobody's
  std::vector<std::string> tail;
  std::string followers;  ///< who ended because of it
};

std::string encode(const Outcome& outcome);
bool decode(std::string_view bytes, Outcome* out);

/// What the job's store saw fail first.
using FirstTold = std::function<store::FirstFailure()>;

/// What is known beside the nodes' own words.
struct OutcomeFacts {
  int node_count = 1;
  int attempt = 0;
  int max_restarts = 0;
  int first_told = -1;         ///< the rank that the job's store saw fail first, -1 none
  bool told_silent = false;    ///< it lived, but gave the store no sign of that
  int told_late = -1;          ///< the rank that an operation waited for in vain, -1 none
  int first_recorded = -1;     ///< the rank whose agent was the first to report, -1 none
  bool stopped_first = false;  ///< a signal to an agent was reported before any failure
  bool regroup_first = false;  ///< likewise that the attempt shall end for more nodes
  bool others_go_on = false;   ///< no rank is ended because another one failed
  bool elastic = false;        ///< the loss of a node is followed by another attempt
  std::string lost_node;       ///< "node 1 (host n1 pid 12) ...": its agent is gone; empty none

  void note_told(const store::FirstFailure& told) {
    first_told = told.rank;
    told_silent = told.silent;
    told_late = told.late;
  }
};

/// Which failure was the cause. Pure. Ranks that end within a moment are found in no particular
/// order, so: the others fail because of a silent rank and before it ends, that is a cause; nobody
/// gets a SIGKILL because a peer died, that is a cause, too; so is a stopped rank that the others
/// timed out waiting for; then the store knows whose connection ended first; then the first report
/// counts.
Outcome decide(const std::vector<NodeEnds>& nodes, const OutcomeFacts& facts);

}  // namespace dt::cli
