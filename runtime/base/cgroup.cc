// SPDX-License-Identifier: Apache-2.0
#include "base/cgroup.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace dt {
namespace {

std::string read_group_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::vector<std::string> cgroup_folders(const std::string& proc_root, const std::string& sys_root,
                                        const std::string& controller) {
  const std::string groups = read_group_file(proc_root + "/self/cgroup");
  std::vector<std::string> folders;
  for (size_t begin = 0; begin < groups.size();) {
    const size_t end = std::min(groups.find('\n', begin), groups.size());
    const std::string line = groups.substr(begin, end - begin);
    begin = end + 1;
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    const bool named = ("," + names + ",").find("," + controller + ",") != std::string::npos;
    if (!names.empty() && !named) continue;
    const std::string mount = sys_root + "/fs/cgroup" + (names.empty() ? "" : "/" + controller);
    std::string path = line.substr(second + 1);
    for (;;) {
      while (!path.empty() && path.back() == '/') path.pop_back();
      folders.push_back(mount + path);
      if (path.empty()) break;
      path.resize(path.rfind('/'));
    }
  }
  return folders;
}

double cpu_quota(const std::string& proc_root, const std::string& sys_root) {
  double least = -1;
  for (const std::string& folder : cgroup_folders(proc_root, sys_root, "cpu")) {
    std::string quota = read_group_file(folder + "/cpu.max");  // "200000 100000" or "max 100000"
    std::string period;
    if (const size_t blank = quota.find(' '); blank != std::string::npos) {
      period = quota.substr(blank + 1);
      quota.resize(blank);
    } else {
      quota = read_group_file(folder + "/cpu.cfs_quota_us");
      period = read_group_file(folder + "/cpu.cfs_period_us");
    }
    const double used = strtod(quota.c_str(), nullptr);
    const double of = strtod(period.c_str(), nullptr);
    if (used > 0 && of > 0 && (least < 0 || used / of < least)) least = used / of;
  }
  return least;
}

}  // namespace dt
