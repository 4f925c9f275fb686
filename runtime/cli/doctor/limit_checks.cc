// SPDX-License-Identifier: Apache-2.0
// What this machine, its administrator or its scheduler allows.
#include <algorithm>
#include <cinttypes>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/cgroup.h"
#include "base/numa.h"
#include "cli/doctor/checks.h"

namespace dt::cli::doctor {
namespace {

constexpr int64_t kUnlimited = -1;
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kFdsOfProgram = 64;        // as dt run counts
constexpr int64_t kFdsPerLocalRank = 5;      // likewise, with the connection to the store
constexpr int64_t kProcesses = 4096;         // threads count: each rank starts several
constexpr int64_t kLockedBytes = 64 * kMiB;  // less than one registered buffer
constexpr int64_t kBacklog = 4096;           // what the store asks for
constexpr int64_t kScarceBytes = 512 * kMiB;

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit);
}

bool is_below(rlim_t limit, int64_t wanted) {
  return limit != RLIM_INFINITY && limit < static_cast<rlim_t>(wanted);
}

std::string bytes_text(int64_t bytes) {
  const double gib = static_cast<double>(bytes) / (1024.0 * kMiB);
  if (gib >= 1) return format("%.1f GiB", gib);
  return format("%" PRId64 " MiB", bytes / kMiB);
}

int64_t world_size(const Machine& machine) { return machine.place ? machine.place->world_size : 1; }

int64_t local_size(const Machine& machine) {
  return machine.place ? std::max(1, machine.place->local_size) : 1;
}

int64_t memory_limit(const Machine& machine) {
  constexpr int64_t kNoLimitV1 = int64_t{1} << 62;  // version 1 writes a huge number
  int64_t least = kUnlimited;
  for (const std::string& folder :
       cgroup_folders(machine.roots.proc, machine.roots.sys, "memory")) {
    for (const char* file : {"/memory.max", "/memory.limit_in_bytes"}) {
      const int64_t limit = strtoll(read_text(folder + file).c_str(), nullptr, 10);
      if (limit > 0 && limit < kNoLimitV1 && (least < 0 || limit < least)) least = limit;
    }
  }
  return least;
}

/// "MemAvailable:   123 kB" of /proc/meminfo, in bytes.
int64_t meminfo(const Machine& machine, const std::string& key) {
  const std::string text = "\n" + read_text(machine.roots.proc + "/meminfo");
  const size_t at = text.find("\n" + key + ":");
  if (at == std::string::npos) return kUnlimited;
  return strtoll(text.c_str() + at + key.size() + 2, nullptr, 10) * 1024;
}

}  // namespace

Finding look_at_open_files(const Machine& machine) {
  const rlimit& limit = machine.open_files;
  const int64_t needed =
      kFdsOfProgram + kFdsPerLocalRank * local_size(machine) + world_size(machine);
  Finding finding;
  finding.text = "soft " + limit_text(limit.rlim_cur) + ", hard " + limit_text(limit.rlim_max);
  const bool hard = is_below(limit.rlim_max, needed);
  if (!hard && !is_below(limit.rlim_cur, needed)) return finding;
  finding.grade = hard ? Grade::kBad : Grade::kWarning;
  finding.text += format("; the process that serves the store needs %" PRId64, needed);
  finding.advice = hard ? format("raise the hard limit (ulimit -Hn %" PRId64 " as root)", needed)
                        : format("ulimit -n %" PRId64 " before the start; dt run does it", needed);
  return finding;
}

Finding look_at_processes(const Machine& machine) {
  const rlimit& limit = machine.processes;
  Finding finding;
  finding.text = "soft " + limit_text(limit.rlim_cur) + " processes and threads of this user";
  if (!is_below(limit.rlim_cur, kProcesses)) return finding;
  finding.grade = Grade::kWarning;
  finding.advice =
      format("threads count, and libraries start one per core: ulimit -u %" PRId64, kProcesses);
  return finding;
}

Finding look_at_locked_memory(const Machine& machine) {
  const rlimit& limit = machine.locked_memory;
  Finding finding;
  finding.text = limit.rlim_cur == RLIM_INFINITY
                     ? "unlimited"
                     : bytes_text(static_cast<int64_t>(limit.rlim_cur)) + " may be locked";
  std::error_code error;
  const bool rdma = std::filesystem::exists(machine.roots.sys + "/class/infiniband", error) &&
                    !std::filesystem::is_empty(machine.roots.sys + "/class/infiniband", error);
  if (!is_below(limit.rlim_cur, kLockedBytes) || !rdma) return finding;
  finding.grade = Grade::kWarning;
  finding.advice =
      "InfiniBand must lock its buffers: ulimit -l unlimited (in Slurm: "
      "PropagateResourceLimitsExcept=MEMLOCK)";
  return finding;
}

Finding look_at_backlog(const Machine& machine) {
  const std::string text = read_text(machine.roots.proc + "/sys/net/core/somaxconn");
  if (text.empty()) return {Grade::kGood, "unknown: no net.core.somaxconn here", {}, {}};
  const int64_t value = strtoll(text.c_str(), nullptr, 10);
  Finding finding;
  finding.text = "net.core.somaxconn " + text;
  const int64_t wanted = std::min(kBacklog, world_size(machine));
  if (value >= wanted) return finding;
  finding.grade = Grade::kWarning;
  finding.text += format(" for %" PRId64 " ranks that connect at once", world_size(machine));
  finding.advice =
      format("sysctl -w net.core.somaxconn=%" PRId64 " where the store is served", wanted);
  return finding;
}

Finding look_at_processors(const Machine& machine) {
  const size_t allowed = machine.cpus.size();
  const size_t online =
      parse_cpu_list(read_text(machine.roots.sys + "/devices/system/cpu/online")).size();
  const double quota = cpu_quota(machine.roots.proc, machine.roots.sys);
  Finding finding;
  finding.text = format("%zu of %zu", allowed, std::max(online, allowed));
  if (allowed < online) finding.text += " (" + cpu_list_text(machine.cpus) + ")";
  std::set<int> nodes;
  for (const Cpu& cpu : read_topology(machine.roots.sys, machine.cpus)) nodes.insert(cpu.node);
  if (online_nodes(machine.roots.sys).size() > 1) {
    finding.text += format(", NUMA %s %s", nodes.size() == 1 ? "node" : "nodes",
                           cpu_list_text({nodes.begin(), nodes.end()}).c_str());
  }
  finding.compared = format("%zu of %zu", allowed, std::max(online, allowed));
  if (quota > 0) {
    finding.text += format(", the control group allows %.1f", quota);
    finding.compared += format(", quota %.1f", quota);
  }
  const double usable =
      quota > 0 ? std::min(quota, static_cast<double>(allowed)) : static_cast<double>(allowed);
  const int64_t ranks = local_size(machine);
  if (usable < static_cast<double>(ranks)) {
    finding.grade = Grade::kWarning;
    finding.text += format("; %" PRId64 " ranks run here", ranks);
    finding.advice =
        "they take turns, and wait for each other: start fewer ranks, or ask for more "
        "processors";
  } else if (quota > 0 && quota < static_cast<double>(allowed)) {
    finding.grade = Grade::kWarning;
    finding.advice = format(
        "threads beyond the quota stop all of them: OMP_NUM_THREADS=%d or less "
        "per rank",
        std::max(1, static_cast<int>(quota / static_cast<double>(ranks))));
  }
  return finding;
}

Finding look_at_memory(const Machine& machine) {
  const int64_t total = meminfo(machine, "MemTotal");
  const int64_t available = meminfo(machine, "MemAvailable");
  const int64_t limit = memory_limit(machine);
  Finding finding;
  if (total < 0) return {Grade::kGood, "unknown: no /proc/meminfo here", {}, {}};
  finding.text = bytes_text(available) + " of " + bytes_text(total) + " available";
  finding.compared = bytes_text(total);
  if (limit > 0 && limit < total) {
    finding.text += ", the control group allows " + bytes_text(limit);
    finding.compared += ", limit " + bytes_text(limit);
  }
  if (std::min(available, limit > 0 ? limit : available) >= kScarceBytes) return finding;
  finding.grade = Grade::kWarning;
  finding.advice = "give the job more memory, or the kernel may kill its ranks";
  return finding;
}

Finding look_at_shared_memory(const Machine&) {
  return {Grade::kGood, "memfd: neither the size nor the files of /dev/shm matter", {}, {}};
}

}  // namespace dt::cli::doctor
