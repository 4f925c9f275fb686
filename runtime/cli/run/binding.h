// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/numa.h"

namespace dt::cli {

/// Which processors a rank may run on. Nothing is bound unless asked for: a scheduler has often
/// bound the agent already, and two jobs on one machine that both bind themselves take the same
/// processors, and leave others idle.
enum class Bind {
  kNone,   ///< those of the agent
  kCores,  ///< whole cores, divided evenly, neighbours together
  kNuma,   ///< those of one NUMA node; neighbours together, as devices are numbered
};

struct BindPlan {
  std::vector<std::vector<int>> cpus;  ///< by local rank, ascending; empty: nothing is bound
  int cores_per_rank = 0;              ///< the fewest whole cores that a rank has to itself; 0 none
  std::string note;                    ///< why nothing is bound although it was asked for
};

/// Pure.
BindPlan plan_binding(Bind bind, const std::vector<Cpu>& cpus, int ranks);

}  // namespace dt::cli
