// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "base/wait.h"
#include "cli/command.h"
#include "cli/run/binding.h"
#include "cli/run/environment.h"
#include "cli/run/fleet.h"
#include "cli/run/options.h"
#include "cli/run/server_sockets.h"
#include "cli/run/stop_interrupt.h"
#include "cli/run/supervisor.h"
#include "config/config.h"
#include "launch/credentials.h"
#include "net/loop.h"

namespace dt::cli {

inline constexpr int kFdsPerNode = 2;  // connections of its agent

/// What outlives an attempt.
struct Agent {
  Agent(const RunOptions& given, Config settings, NodePlace place);

  const RunOptions& options;
  int local_size = 1;  // ranks of this node
  const Config config;
  const NodePlace node;
  const LoggerPtr logger;  // of its stores, relays and the fleet
  SupervisorPlan plan;
  OutputOptions output;
  LostRanks lost_ranks;               // outlives who notes there: the store and the fleet
  std::vector<ServerSocket> servers;  // of the parameter servers of this node
  ReservedPort master;                // with one node or on node 0
  ReservedPort ras;                   // of NCCL's service on this node
  std::unique_ptr<net::Loop> loop;    // of the fleet
  std::unique_ptr<Fleet> fleet;       // null with one node; ends before the loop
  launch::Credentials credentials;
  BindPlan binding;
  std::string nccl_note;   // inherited variables that are replaced
  bool has_begun = false;  // ranks, which give the warnings of the settings themselves
  int stopped_by = 0;      // a signal that ended a wait for other nodes
};

/// Room for the agent's descriptors; the connections of the stores count too, and as far as the
/// hard limit allows `spare` ones. The ranks get what was there before, which is `before`.
Status raise_open_files(const rlimit& before, int processes, int connections, int spare = 0);
/// The spare ones that the store of this job needs for PyTorch's clients.
int files_for_guests(const Agent& agent);

/// An error that keeps this node from starting ranks. Alone it is the end; the agents of other
/// nodes wait for this one and must hear of it, so it goes on until they have.
Status cannot_start(Agent* agent, const Status& status, int code = kExitFailure);

/// Listens for the parameter servers of this node, and says their addresses.
Result<std::vector<std::string>> open_servers(Agent* agent, const Wait& wait);

/// As this agent introduces itself.
FleetOptions fleet_options(Agent& agent);
/// The ranks' place follows from it.
void take_fleet(Agent* agent, std::unique_ptr<Fleet> fleet);

/// A wait for other nodes, which a signal to this agent ends, and whatever else fires `interrupt`.
template <class F>
auto while_stoppable(Agent* agent, Signals* signals, int64_t timeout_ms, Interrupt* interrupt,
                     F&& function) -> decltype(function(std::declval<const Wait&>())) {
  DT_TRY_VALUE(const auto stop, StopInterrupt::start(agent->loop.get(), signals, interrupt));
  const Deadline deadline = Deadline::after_ms(timeout_ms);
  auto result = function(Wait{deadline, interrupt});
  if (!result.ok()) {
    agent->stopped_by = stop->signal();
  } else if (stop->signal() != 0) {  // it came a moment too late: the attempt ends by it
    agent->plan.stop_signal = stop->signal();
    agent->plan.stopped_here = true;
  }
  return result;
}

template <class F>
auto while_stoppable(Agent* agent, Signals* signals, int64_t timeout_ms, F&& function)
    -> decltype(function(std::declval<const Wait&>())) {
  Interrupt interrupt;
  return while_stoppable(agent, signals, timeout_ms, &interrupt, std::forward<F>(function));
}

struct AttemptEnd {
  Outcome outcome;
  int exit_code = 0;  ///< dt run's, if it was the last one
};

/// Starts the ranks of plan.place.attempt, and returns when nothing of them is left. PEER_LOST or
/// TIMEOUT, of an elastic job only: no attempt has begun, because node 0 is gone.
Result<AttemptEnd> run_attempt(Agent* agent, Signals* signals, Guardian* guardian);

}  // namespace dt::cli
