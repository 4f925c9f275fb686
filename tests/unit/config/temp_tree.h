// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "config/config.h"

/// A cwd, a home and an /etc/dt of their own, removed at the end.
class TempTree {
 public:
  TempTree() {
    std::string pattern = std::filesystem::temp_directory_path() / "dt_config_XXXXXX";
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    root_ = pattern;
    for (const char* name : {"/cwd", "/home/.config/dt", "/etc", "/xdg/dt"}) {
      std::filesystem::create_directories(root_ + name);
    }
    options.cwd = root_ + "/cwd";
    options.home = root_ + "/home";
    options.system_directory = root_ + "/etc";
  }
  ~TempTree() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  TempTree(const TempTree&) = delete;
  TempTree& operator=(const TempTree&) = delete;

  std::string path(const std::string& name) const { return root_ + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    REQUIRE(chmod(path(name).c_str(), 0644) == 0);
  }
  dt::Result<dt::Config> load(const dt::Environment& environment = {}) const {
    return dt::Config::load(environment, options);
  }
  /// The message of a load that must fail.
  std::string error(const dt::Environment& environment = {}) const {
    const auto config = load(environment);
    REQUIRE_FALSE(config.ok());
    CHECK(config.status().code() == dt::Code::kConfig);
    return config.status().message();
  }
  /// The same for one text of ./dt.toml.
  std::string error_of(const std::string& text) const {
    write("cwd/dt.toml", text);
    return error();
  }

  dt::Config::LoadOptions options;

 private:
  std::string root_;
};
