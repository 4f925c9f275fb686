// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "process.h"

namespace dt::test {

inline std::string required_variable(const char* name) {
  const char* value = getenv(name);
  if (value == nullptr) abort();  // set by meson.build
  return value;
}

/// A new folder, removed with what is in it.
class TempFolder {
 public:
  TempFolder() : path_(std::filesystem::temp_directory_path() / "dt-test-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) abort();
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// "dt run OPTIONS run_program MODE..."
inline std::vector<std::string> dt_run(const std::vector<std::string>& options,
                                       const std::vector<std::string>& mode) {
  std::vector<std::string> command{required_variable("DT_COMMAND"), "run"};
  command.insert(command.end(), options.begin(), options.end());
  command.push_back(required_variable("RUN_PROGRAM"));
  command.insert(command.end(), mode.begin(), mode.end());
  return command;
}

/// Of every "[RANK] ready PID" in the output.
inline std::vector<pid_t> ready_pids(const std::string& output) {
  static constexpr char kMark[] = "] ready ";
  std::vector<pid_t> pids;
  for (const std::string& line : lines_of(output)) {
    const size_t at = line.find(kMark);
    if (at != std::string::npos) pids.push_back(atoi(line.c_str() + at + sizeof kMark - 1));
  }
  return pids;
}

/// Of "[RANK] ... ready PID"; -1: there is none.
inline pid_t pid_of_rank(const std::string& output, int rank) {
  static constexpr char kMark[] = "ready ";
  const std::string beginning = "[" + std::to_string(rank) + "] ";
  for (const std::string& line : lines_of(output)) {
    const size_t at = line.find(kMark);
    if (starts_with(line, beginning) && at != std::string::npos) {
      return atoi(line.c_str() + at + sizeof kMark - 1);
    }
  }
  return -1;
}

}  // namespace dt::test
