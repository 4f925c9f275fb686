// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace dt {

/// What this process can still take before the kernel would kill somebody for it.
struct MemoryLimit {
  int64_t available_bytes = INT64_MAX;
  std::string source = "nothing";  ///< what limits it: "MemAvailable of /proc/meminfo", a cgroup
};

/// The smallest of the system's available memory and what the process's cgroups leave. Reads files:
/// tens of microseconds. Unreadable sources limit nothing.
/// @param root in front of each path, for tests
MemoryLimit memory_limit(const std::string& root = "");

}  // namespace dt
