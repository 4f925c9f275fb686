// SPDX-License-Identifier: Apache-2.0
#include "base/memory_limit.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace dt {
namespace {

std::string read_text(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  char buffer[8192];
  const ssize_t length = read(fd, buffer, sizeof buffer);
  close(fd);
  return length > 0 ? std::string(buffer, static_cast<size_t>(length)) : std::string();
}

/// The number after `key` at the start of a line, or -1.
int64_t field(const std::string& text, const std::string& key) {
  size_t at = 0;
  while (at < text.size()) {
    if (text.compare(at, key.size(), key) == 0)
      return strtoll(text.c_str() + at + key.size(), nullptr, 10);
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    at = end + 1;
  }
  return -1;
}

/// -1: no number there ("max", no such file).
int64_t number(const std::string& text) {
  return !text.empty() && text[0] >= '0' && text[0] <= '9' ? strtoll(text.c_str(), nullptr, 10)
                                                           : -1;
}

void limit_by(MemoryLimit& limit, int64_t available, const std::string& source) {
  if (available >= limit.available_bytes) return;
  limit.available_bytes = std::max<int64_t>(available, 0);
  limit.source = source;
}

void limit_by_cgroup(MemoryLimit& limit, const std::string& folder, const char* max_file,
                     const char* current_file, const std::string& prefix) {
  const int64_t max = number(read_text(folder + max_file));
  const int64_t current = number(read_text(folder + current_file));
  if (max < 0 || current < 0) return;
  // Pages of files are given back under pressure, also those in use: the kernel writes them first.
  // Shared memory is not among them.
  const std::string stat = read_text(folder + "/memory.stat");
  int64_t cache = 0;
  for (const char* const list : {"active_file ", "inactive_file "}) {
    cache += std::max<int64_t>(field(stat, prefix + list), 0);
  }
  limit_by(limit, max - current + cache, folder + max_file);
}

/// The process's cgroup, which stands behind `mark` in a line of `groups`, and those above it,
/// which limit it too. In a container the folder of that name may not be mounted: then `root` is
/// its own.
void limit_by_cgroups(MemoryLimit& limit, const std::string& groups, const std::string& mark,
                      const std::string& root, const char* max_file, const char* current_file,
                      const std::string& prefix) {
  std::string path;
  if (const size_t found = groups.find(mark); found != std::string::npos) {
    const size_t begin = found + mark.size();
    path = groups.substr(begin, groups.find('\n', begin) - begin);
  }
  while (path.size() > 1) {
    limit_by_cgroup(limit, root + path, max_file, current_file, prefix);
    path.resize(path.rfind('/'));
  }
  limit_by_cgroup(limit, root, max_file, current_file, prefix);
}

}  // namespace

MemoryLimit memory_limit(const std::string& root) {
  constexpr int64_t kKib = 1024;
  MemoryLimit limit;
  const std::string info = read_text(root + "/proc/meminfo");
  const int64_t available = field(info, "MemAvailable:");
  if (available >= 0) {
    const int64_t swap = std::max<int64_t>(field(info, "SwapFree:"), 0);
    limit_by(limit, (available + swap) * kKib, "MemAvailable of /proc/meminfo");
  }
  const std::string groups = read_text(root + "/proc/self/cgroup");
  limit_by_cgroups(limit, groups, "0::", root + "/sys/fs/cgroup", "/memory.max", "/memory.current",
                   "");
  limit_by_cgroups(limit, groups, ":memory:", root + "/sys/fs/cgroup/memory",
                   "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_");
  return limit;
}

}  // namespace dt
