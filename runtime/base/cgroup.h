// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace dt {

/// The folders of this process's control group, from its own to the root's, below `proc_root`
/// ("/proc") and `sys_root` ("/sys"). `controller` matters in version 1 only, where each has a tree
/// of its own.
std::vector<std::string> cgroup_folders(const std::string& proc_root, const std::string& sys_root,
                                        const std::string& controller);

/// How many processors' time this process may use: the least that any of these groups allows. -1:
/// they do not limit it.
double cpu_quota(const std::string& proc_root, const std::string& sys_root);

}  // namespace dt
