// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/status.h"
#include "cli/run/agent.h"

namespace dt::cli {

/// The life of an agent of an elastic job: attempt after attempt, each with the agents that are
/// there. Returns dt run's exit code. Blocks the signals' thread, which is the caller's.
Result<int> run_rounds(Agent* agent, Signals* signals, Guardian* guardian);

}  // namespace dt::cli
