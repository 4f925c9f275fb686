// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace dt::test {

/// A folder that stands for /sys, /proc or /dev, and goes with this object.
class PretendedTree {
 public:
  PretendedTree() {
    char name[] = "/tmp/dt_tree_XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    root_ = name;
  }
  ~PretendedTree() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  PretendedTree(const PretendedTree&) = delete;
  PretendedTree& operator=(const PretendedTree&) = delete;

  const std::string& root() const { return root_; }
  void write(const std::string& path, const std::string& content) const {
    const std::filesystem::path whole = root_ + "/" + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << content;
  }

 private:
  std::string root_;
};

}  // namespace dt::test
