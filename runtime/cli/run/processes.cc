// SPDX-License-Identifier: Apache-2.0
#include "cli/run/processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "base/status.h"
#include "cli/run/fd.h"

namespace dt::cli {
namespace {

std::string read_small_file(const std::string& path) {
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char buffer[4096];
  const ssize_t bytes = fd.is_open() ? read(fd.get(), buffer, sizeof buffer) : 0;
  return std::string(buffer, bytes > 0 ? static_cast<size_t>(bytes) : 0);
}

struct ProcessStat {
  std::string name;
  char state = '?';
  pid_t parent = 0;
};

// "811 (a name) S 1 ...": the name may contain anything, so the last parenthesis ends it.
ProcessStat read_stat(pid_t pid) {
  ProcessStat stat;
  const std::string text = read_small_file(format("/proc/%d/stat", pid));
  const size_t open = text.find('(');
  const size_t close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return stat;
  stat.name = text.substr(open + 1, close - open - 1);
  int parent = 0;
  if (sscanf(text.c_str() + close + 1, " %c %d", &stat.state, &parent) == 2) stat.parent = parent;
  return stat;
}

// The number after `key` at the start of a line; -1 none.
int64_t number_in(const std::string& text, const std::string& key) {
  for (size_t begin = 0; begin < text.size();) {
    if (text.compare(begin, key.size() + 1, key + " ") == 0) {
      return strtoll(text.c_str() + begin + key.size(), nullptr, 10);
    }
    const size_t end = text.find('\n', begin);
    begin = end == std::string::npos ? text.size() : end + 1;
  }
  return -1;
}

}  // namespace

bool group_exists(pid_t group) { return kill(-group, 0) == 0 || errno == EPERM; }

bool is_stopped(pid_t pid) { return read_stat(pid).state == 'T'; }

std::vector<pid_t> own_descendants(const std::set<pid_t>& except) {
  std::multimap<pid_t, pid_t> children;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return {};
  while (const dirent* entry = readdir(proc)) {
    const pid_t pid = static_cast<pid_t>(strtol(entry->d_name, nullptr, 10));
    if (pid > 0) {
      const ProcessStat stat = read_stat(pid);
      if (stat.state != 'Z' && stat.state != 'X') children.emplace(stat.parent, pid);
    }
  }
  closedir(proc);
  std::vector<pid_t> found{getpid()};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto range = children.equal_range(found[i]);
    for (auto child = range.first; child != range.second; ++child) {
      if (except.count(child->second) == 0) found.push_back(child->second);
    }
  }
  found.erase(found.begin());
  return found;
}

std::string describe_process(pid_t pid) {
  const ProcessStat stat = read_stat(pid);
  std::string text = format("pid %d (%s) is in state %c", pid, stat.name.c_str(), stat.state);
  if (stat.state == 'D') {
    const std::string channel = read_small_file(format("/proc/%d/wchan", pid));
    text += " (uninterruptible sleep" + (channel.size() > 1 ? " in " + channel : "") + ")";
  }
  return text;
}

int64_t oom_kill_count() {
  const std::string cgroups = read_small_file("/proc/self/cgroup");
  for (size_t begin = 0; begin < cgroups.size();) {
    const size_t end = std::min(cgroups.find('\n', begin), cgroups.size());
    const std::string line = cgroups.substr(begin, end - begin);
    begin = end + 1;
    const size_t memory = line.find(":memory:");  // cgroup version 1
    std::string file;
    if (memory != std::string::npos) {
      file = "/sys/fs/cgroup/memory" + line.substr(memory + strlen(":memory:")) +
             "/memory.oom_control";
    } else if (line.compare(0, 3, "0::") == 0) {
      file = "/sys/fs/cgroup" + line.substr(3) + "/memory.events";
    }
    const int64_t count = file.empty() ? -1 : number_in(read_small_file(file), "oom_kill");
    if (count >= 0) return count;
  }
  return -1;
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : format("signal %d", signal);
}

}  // namespace dt::cli
