// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace dt {

/// A processor as Linux counts it.
struct Cpu {
  int id = 0;
  int core = 0;  ///< equal: hardware threads of one core; the lowest id of them
  int node = 0;  ///< NUMA
};

/// What is known of `allowed` below `sys_root` ("/sys"). Where nothing is, each processor is a core
/// and all are one NUMA node.
std::vector<Cpu> read_topology(const std::string& sys_root, const std::vector<int>& allowed);

/// The NUMA nodes of the machine, ascending; node 0 where nobody tells.
std::vector<int> online_nodes(const std::string& sys_root);

/// The processors that this thread may use, ascending.
std::vector<int> allowed_cpus();

/// "0-3,8" as in /sys and as taskset takes it.
std::string cpu_list_text(const std::vector<int>& cpus);
/// The inverse; what makes no sense is left out.
std::vector<int> parse_cpu_list(const std::string& text);

/// What host.numa says: "auto", "off", or the node of each local rank, "0,0,1,1".
struct NumaWish {
  bool looks = true;           ///< at the machine
  std::vector<int32_t> nodes;  ///< by local rank; empty: not told
};
/// CONFIG where the text is none of these; whose it is stands before the message.
Result<NumaWish> parse_numa(const std::string& text);

/// Where a rank lives.
struct NumaHome {
  int32_t node = -1;   ///< -1: the machine has one, the rank runs on several, or nobody shall care
  bool binds = false;  ///< the rank's memory is to come from there
};
/// Pure. `cpus`: what the rank may use; `online`: the nodes of the machine. Of a told node no
/// memory is asked for where the machine has no such node. `local_rank` is one that the wish tells
/// of.
NumaHome numa_home(const NumaWish& wish, int32_t local_rank, const std::vector<Cpu>& cpus,
                   const std::vector<int>& online);
/// The same of the calling thread on this machine. A memory policy that the process was started
/// with (numactl) stays: then nothing binds.
NumaHome find_numa_home(const NumaWish& wish, int32_t local_rank);

/// Pages of this mapping that nobody has touched come from `node` while it has some: the number of
/// an error, or 0. Of shared memory this holds for everybody who maps it.
int prefer_node(void* address, int64_t bytes, int32_t node);

}  // namespace dt
