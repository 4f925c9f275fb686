// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace dt::cli {

/// Which processors a rank may run on. Nothing is bound unless asked for: a scheduler has often
/// bound the agent already, and two jobs on one machine that both bind themselves take the same
/// processors, and leave others idle.
enum class Bind {
  kNone,   ///< those of the agent
  kCores,  ///< whole cores, divided evenly, neighbours together
  kNuma,   ///< those of one NUMA node; neighbours together, as devices are numbered
};

/// A processor as Linux counts it.
struct Cpu {
  int id = 0;
  int core = 0;  ///< equal: hardware threads of one core; the lowest id of them
  int node = 0;  ///< NUMA
};

/// What is known of `allowed` below `sys_root` ("/sys"). Where nothing is, each processor is a core
/// and all are one NUMA node.
std::vector<Cpu> read_topology(const std::string& sys_root, const std::vector<int>& allowed);

struct BindPlan {
  std::vector<std::vector<int>> cpus;  ///< by local rank, ascending; empty: nothing is bound
  int cores_per_rank = 0;              ///< the fewest whole cores that a rank has to itself; 0 none
  std::string note;                    ///< why nothing is bound although it was asked for
};

/// Pure.
BindPlan plan_binding(Bind bind, const std::vector<Cpu>& cpus, int ranks);

/// The processors that this process may use, ascending.
std::vector<int> allowed_cpus();

/// "0-3,8" as in /sys and as taskset takes it.
std::string cpu_list_text(const std::vector<int>& cpus);
/// The inverse; what makes no sense is left out.
std::vector<int> parse_cpu_list(const std::string& text);

}  // namespace dt::cli
