// SPDX-License-Identifier: Apache-2.0
#include "cli/run/binding.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

#include "base/status.h"

namespace dt::cli {
namespace {

constexpr int kMaxCpus = 1 << 16;       // far above NR_CPUS
constexpr int kMaxNumaNodes = 1 << 10;  // Linux's MAX_NUMNODES

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Processors by core, the cores by NUMA node and then by number.
std::vector<std::vector<int>> cores_of(const std::vector<Cpu>& cpus) {
  std::map<std::pair<int, int>, std::vector<int>> cores;
  for (const Cpu& cpu : cpus) cores[{cpu.node, cpu.core}].push_back(cpu.id);
  std::vector<std::vector<int>> ordered;
  for (auto& entry : cores) ordered.push_back(std::move(entry.second));
  return ordered;
}

BindPlan bind_cores(const std::vector<Cpu>& cpus, int ranks) {
  BindPlan plan;
  const std::vector<std::vector<int>> cores = cores_of(cpus);
  const size_t count = static_cast<size_t>(ranks);
  if (cores.size() < count) {
    plan.note = format("--bind cores: %zu %s for %d ranks, so nothing is bound", cores.size(),
                       cores.size() == 1 ? "core" : "cores", ranks);
    return plan;
  }
  for (size_t rank = 0; rank < count; ++rank) {
    std::vector<int> own;
    for (size_t core = rank * cores.size() / count; core < (rank + 1) * cores.size() / count;
         ++core) {
      own.insert(own.end(), cores[core].begin(), cores[core].end());
    }
    std::sort(own.begin(), own.end());
    plan.cpus.push_back(std::move(own));
  }
  plan.cores_per_rank = static_cast<int>(cores.size() / count);
  return plan;
}

BindPlan bind_numa(const std::vector<Cpu>& cpus, int ranks) {
  BindPlan plan;
  std::map<int, std::vector<int>> nodes;
  for (const Cpu& cpu : cpus) nodes[cpu.node].push_back(cpu.id);
  std::vector<std::vector<int>> ordered;
  for (auto& entry : nodes) {
    std::sort(entry.second.begin(), entry.second.end());
    ordered.push_back(std::move(entry.second));
  }
  const size_t count = static_cast<size_t>(ranks);
  for (size_t rank = 0; rank < count; ++rank) {
    plan.cpus.push_back(ordered[rank * ordered.size() / count]);
  }
  return plan;
}

}  // namespace

std::vector<Cpu> read_topology(const std::string& sys_root, const std::vector<int>& allowed) {
  std::map<int, int> node_of;
  const std::string nodes = sys_root + "/devices/system/node/";
  for (const int node : parse_cpu_list(first_line(nodes + "online"))) {
    if (node >= kMaxNumaNodes) break;
    const std::string list = first_line(nodes + "node" + std::to_string(node) + "/cpulist");
    for (const int cpu : parse_cpu_list(list)) node_of[cpu] = node;
  }
  std::vector<Cpu> cpus;
  for (const int id : allowed) {
    const std::string siblings = first_line(sys_root + "/devices/system/cpu/cpu" +
                                            std::to_string(id) + "/topology/thread_siblings_list");
    const std::vector<int> threads = parse_cpu_list(siblings);
    Cpu cpu;
    cpu.id = id;
    cpu.core = threads.empty() ? id : threads.front();
    const auto node = node_of.find(id);
    cpu.node = node == node_of.end() ? 0 : node->second;
    cpus.push_back(cpu);
  }
  return cpus;
}

BindPlan plan_binding(Bind bind, const std::vector<Cpu>& cpus, int ranks) {
  if (bind == Bind::kNone || cpus.empty()) return {};
  return bind == Bind::kCores ? bind_cores(cpus, ranks) : bind_numa(cpus, ranks);
}

std::vector<int> allowed_cpus() {
  std::vector<int> allowed;
  for (int room = CPU_SETSIZE; room <= kMaxCpus; room *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(room));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(room));
    const bool read = sched_getaffinity(0, bytes, set) == 0;
    const bool too_small = !read && errno == EINVAL;
    for (int cpu = 0; read && cpu < room; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) allowed.push_back(cpu);
    }
    CPU_FREE(set);
    if (!too_small) break;
  }
  return allowed;
}

std::string cpu_list_text(const std::vector<int>& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(cpus[i]);
    if (last > i) text += "-" + std::to_string(cpus[last]);
    i = last + 1;
  }
  return text;
}

std::vector<int> parse_cpu_list(const std::string& text) {
  std::set<int> cpus;
  const char* at = text.c_str();
  while (*at >= '0' && *at <= '9') {
    char* end = nullptr;
    const long first = strtol(at, &end, 10);
    long last = first;
    if (*end == '-') last = strtol(end + 1, &end, 10);
    for (long cpu = first; cpu <= last && cpu < kMaxCpus; ++cpu) {
      cpus.insert(static_cast<int>(cpu));
    }
    if (*end != ',') break;
    at = end + 1;
  }
  return {cpus.begin(), cpus.end()};
}

}  // namespace dt::cli
