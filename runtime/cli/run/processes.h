// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace dt::cli {

/// True while the group has a process, dead and not yet reaped ones too.
bool group_exists(pid_t group);
/// By SIGSTOP or its like; not: by a debugger.
bool is_stopped(pid_t pid);

/// Every living descendant of this process, by the parents in /proc, without the processes `except`
/// and their descendants.
std::vector<pid_t> own_descendants(const std::set<pid_t>& except = {});

/// "pid 811 (python3) is in state D": for a process that does not die.
std::string describe_process(pid_t pid);

/// How often the kernel's OOM killer has struck in this process's memory cgroup; -1 unknown.
int64_t oom_kill_count();

/// "SIGKILL", or "signal 40" for one without a name.
std::string signal_name(int signal);

}  // namespace dt::cli
