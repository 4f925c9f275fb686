// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "process.h"

namespace dt::test {

inline std::string required_variable(const char* name) {
  const char* value = getenv(name);
  if (value == nullptr) abort();  // set by meson.build
  return value;
}

/// "dt run OPTIONS run_program MODE..."
inline std::vector<std::string> dt_run(const std::vector<std::string>& options,
                                       const std::vector<std::string>& mode) {
  std::vector<std::string> command{required_variable("DT_COMMAND"), "run"};
  command.insert(command.end(), options.begin(), options.end());
  command.push_back(required_variable("RUN_PROGRAM"));
  command.insert(command.end(), mode.begin(), mode.end());
  return command;
}

}  // namespace dt::test
