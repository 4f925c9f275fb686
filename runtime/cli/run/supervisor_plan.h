// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/run/environment.h"
#include "cli/run/lost_ranks.h"
#include "cli/run/outcome.h"
#include "store/messages.h"

namespace dt::cli {

class Fleet;

/// What one attempt of this node runs.
struct SupervisorPlan {
  std::string program;  ///< path
  /// Not ok: why this node cannot start ranks. Then it starts none and tells the other nodes.
  Status start_error;
  int start_code = 1;  ///< the exit code then
  std::vector<std::string> args;
  JobPlace place;
  std::string host;
  /// Descendants of this process that are not the job's. One that is reaped is taken out.
  std::shared_ptr<std::set<pid_t>> outsiders = std::make_shared<std::set<pid_t>>();
  rlimit open_files{};                 ///< what the ranks and servers get
  std::vector<std::vector<int>> cpus;  ///< by local rank; empty: those of the agent
  bool end_on_failure = true;          ///< else the others go on, here and on the other nodes
  /// From the first failure to SIGKILL; the others get SIGTERM on the way.
  int64_t grace_ms = 15'000;
  /// The same from SIGINT or SIGTERM to the agent to SIGKILL; negative: never, the scheduler that
  /// sent it knows how long a checkpoint may take.
  int64_t stop_grace_ms = -1;
  /// Asks the ranks through the job's store to stop; false: none of them heeds that. Then SIGTERM
  /// is kept from them for `heed_ms`, so that they save their state and end in the same step.
  std::function<bool()> ask_to_stop;
  int64_t heed_ms = 0;
  /// What the job's store saw fail first. Any time, any thread.
  FirstTold first_failure;
  /// Tells the job's store that the process of a rank has ended or was not started. On another node
  /// than node 0 it tells node 0, which has the store. Null: the job has no store.
  std::function<void(const store::Member& rank, const std::string& how)> process_ended;
  LostRanks* lost_ranks = nullptr;  ///< of the job's store; null: nobody tells
  Fleet* fleet = nullptr;           ///< the other nodes; null with one node
  /// The sockets of this node's parameter servers, which the agent keeps, and how often each server
  /// may be started again.
  std::vector<int> server_fds;
  int server_restarts = 0;
  /// A signal that came before this attempt; 0 none. Then this node starts no ranks and tells the
  /// other nodes.
  int stop_signal = 0;
  bool stopped_here = false;  ///< it came to this agent
};

}  // namespace dt::cli
