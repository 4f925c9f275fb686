// SPDX-License-Identifier: Apache-2.0
#include "base/memory_limit.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

using namespace dt;

namespace {

struct Tree {
  std::string root;

  Tree() {
    char path[] = "/tmp/dt-limit.XXXXXX";
    REQUIRE(mkdtemp(path) != nullptr);
    root = path;
  }
  ~Tree() { std::filesystem::remove_all(root); }
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
};

}  // namespace

TEST_CASE("memory limit: pages of files in a cgroup can be had, shared memory cannot") {
  const Tree tree;
  tree.write("/proc/meminfo", "MemAvailable:   10000 kB\nSwapFree:   0 kB\n");
  tree.write("/proc/self/cgroup", "0::/job/rank\n");
  tree.write("/sys/fs/cgroup/job/rank/memory.max", "max\n");
  tree.write("/sys/fs/cgroup/job/rank/memory.current", "100\n");
  tree.write("/sys/fs/cgroup/job/memory.max", "1000\n");
  tree.write("/sys/fs/cgroup/job/memory.current", "900\n");
  tree.write("/sys/fs/cgroup/job/memory.stat",
             "anon 100\nshmem 300\ninactive_anon 400\nactive_file 200\ninactive_file 250\n");
  const MemoryLimit limit = memory_limit(tree.root);
  CHECK(limit.available_bytes == 1000 - 900 + 200 + 250);
  CHECK(limit.source == tree.root + "/sys/fs/cgroup/job/memory.max");
}

TEST_CASE("memory limit: of version 1, and where nothing limits") {
  const Tree tree;
  CHECK(memory_limit(tree.root).available_bytes == INT64_MAX);
  tree.write("/proc/meminfo", "MemAvailable:   2 kB\nSwapFree:   1 kB\n");
  CHECK(memory_limit(tree.root).available_bytes == 3072);
  tree.write("/proc/self/cgroup", "4:memory:/job\n");
  tree.write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2000\n");
  tree.write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1990\n");
  tree.write("/sys/fs/cgroup/memory/job/memory.stat",
             "active_file 1\ntotal_active_file 30\ntotal_inactive_file 40\n");
  CHECK(memory_limit(tree.root).available_bytes == 80);
}
