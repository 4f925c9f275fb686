// SPDX-License-Identifier: Apache-2.0
#include "base/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

namespace dt {
namespace {

constexpr int kMaxCpus = 1 << 16;       // far above NR_CPUS
constexpr int kMaxNumaNodes = 1 << 10;  // Linux's MAX_NUMNODES
constexpr const char* kSystemRoot = "/sys";

std::string first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

bool has_memory_policy() {
  int mode = MPOL_DEFAULT;
  return syscall(SYS_get_mempolicy, &mode, nullptr, 0UL, nullptr, 0UL) == 0 && mode != MPOL_DEFAULT;
}

}  // namespace

std::vector<Cpu> read_topology(const std::string& sys_root, const std::vector<int>& allowed) {
  std::map<int, int> node_of;
  for (const int node : online_nodes(sys_root)) {
    const std::string list =
        first_line_of(sys_root + "/devices/system/node/node" + std::to_string(node) + "/cpulist");
    for (const int cpu : parse_cpu_list(list)) node_of[cpu] = node;
  }
  std::vector<Cpu> cpus;
  for (const int id : allowed) {
    const std::string siblings =
        first_line_of(sys_root + "/devices/system/cpu/cpu" + std::to_string(id) +
                      "/topology/thread_siblings_list");
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

std::vector<int> online_nodes(const std::string& sys_root) {
  std::vector<int> nodes = parse_cpu_list(first_line_of(sys_root + "/devices/system/node/online"));
  std::erase_if(nodes, [](int node) { return node >= kMaxNumaNodes; });
  if (nodes.empty()) nodes.push_back(0);
  return nodes;
}

std::vector<int> allowed_cpus() {
  std::vector<int> allowed;
  for (int room = CPU_SETSIZE; room <= kMaxCpus; room *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(room));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(room));
    const bool read = sched_getaffinity(0, bytes, set) == 0;
    const bool too_small = !read && errno == EINVAL;
    const size_t count = read ? static_cast<size_t>(CPU_COUNT_S(bytes, set)) : 0;
    for (int cpu = 0; allowed.size() < count; ++cpu) {
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

Result<NumaWish> parse_numa(const std::string& text) {
  NumaWish wish;
  if (text == "auto") return wish;
  wish.looks = false;
  if (text == "off") return wish;
  const auto refuse = [&](const char* at) {
    return Status(
        Code::kConfig,
        format("\"%s\" is neither auto nor off nor a list of nodes%s%s%s; write the NUMA node of "
               "each rank of a host as \"0,0,1,1\", with numbers below %d",
               text.c_str(), *at == '\0' ? "" : " from \"", at, *at == '\0' ? "" : "\" on",
               kMaxNumaNodes));
  };
  for (const char* at = text.c_str();; ++at) {
    const char* const begin = at;
    int64_t node = 0;
    for (; *at >= '0' && *at <= '9' && node < kMaxNumaNodes; ++at) node = 10 * node + (*at - '0');
    if (at == begin || node >= kMaxNumaNodes || (*at != ',' && *at != '\0')) return refuse(begin);
    wish.nodes.push_back(static_cast<int32_t>(node));
    if (*at == '\0') return wish;
  }
}

NumaHome numa_home(const NumaWish& wish, int32_t local_rank, const std::vector<Cpu>& cpus,
                   const std::vector<int>& online) {
  NumaHome home;
  if (!wish.nodes.empty()) {
    home.node = wish.nodes[static_cast<size_t>(local_rank)];
  } else if (wish.looks && online.size() > 1 && !cpus.empty()) {
    const bool one = std::all_of(cpus.begin(), cpus.end(),
                                 [&](const Cpu& cpu) { return cpu.node == cpus.front().node; });
    if (one) home.node = cpus.front().node;
  }
  home.binds =
      online.size() > 1 && std::find(online.begin(), online.end(), home.node) != online.end();
  return home;
}

NumaHome find_numa_home(const NumaWish& wish, int32_t local_rank) {
  if (!wish.looks && wish.nodes.empty()) return {};
  NumaHome home = numa_home(wish, local_rank, read_topology(kSystemRoot, allowed_cpus()),
                            online_nodes(kSystemRoot));
  home.binds = home.binds && !has_memory_policy();
  return home;
}

int prefer_node(void* address, int64_t bytes, int32_t node) {
  if (node < 0 || node >= kMaxNumaNodes) return EINVAL;
  constexpr int kWordBits = CHAR_BIT * sizeof(unsigned long);
  std::array<unsigned long, kMaxNumaNodes / kWordBits> nodes{};
  nodes[static_cast<size_t>(node / kWordBits)] = 1UL << (node % kWordBits);
  // The kernel takes one bit less than it is told.
  const long result = syscall(SYS_mbind, address, static_cast<unsigned long>(bytes), MPOL_PREFERRED,
                              nodes.data(), static_cast<unsigned long>(kMaxNumaNodes) + 1, 0U);
  return result == 0 ? 0 : errno;
}

}  // namespace dt
