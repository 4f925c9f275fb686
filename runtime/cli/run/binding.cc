// SPDX-License-Identifier: Apache-2.0
#include "cli/run/binding.h"

#include <algorithm>
#include <map>

#include "base/status.h"

namespace dt::cli {
namespace {

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

BindPlan plan_binding(Bind bind, const std::vector<Cpu>& cpus, int ranks) {
  if (bind == Bind::kNone || cpus.empty()) return {};
  return bind == Bind::kCores ? bind_cores(cpus, ranks) : bind_numa(cpus, ranks);
}

}  // namespace dt::cli
