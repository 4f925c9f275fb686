// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/run/binding.h"
#include "cli/run/node_place.h"

namespace dt::cli {

/// The words after `dt run`.
struct RunOptions {
  std::string nproc = "1";     ///< for count_ranks
  std::optional<bool> prefix;  ///< absent: run.prefix decides, and one rank has none
  std::string show = "all";    ///< for parse_show
  std::string log_dir;
  std::optional<int64_t> grace_ms;  ///< absent: run.grace_ms
  std::optional<int> show_lines;    ///< absent: run.show_lines
  int max_restarts = 0;             ///< of all ranks together
  int servers = 0;                  ///< parameter servers that this node starts
  int server_restarts = 0;          ///< of each of them alone
  bool end_on_failure = true;       ///< a rank that fails ends the others
  Bind bind = Bind::kNone;
  NodeOptions node;
  bool allow_minority = false;  ///< else run.allow_minority decides
  bool verbose = false;
  std::vector<std::string> command;  ///< program and arguments
};

/// The options, or the exit code when the command is over (--help, a mistake).
struct ParsedRun {
  RunOptions options;
  std::optional<int> exit_code;
};
ParsedRun parse_run(int argument_count, char** arguments);

/// Which of `ranks` ranks "all", "errors" (none), or a list such as "0,4-7" shows.
Result<std::vector<bool>> parse_show(const std::string& text, int ranks);

}  // namespace dt::cli
