// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace dt::cli {

// Exit codes of dt itself, as shells use them. `dt run` otherwise ends with its ranks' code.
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNotFound = 127;

/// One subcommand. `arguments[0]` is its name.
struct Command {
  const char* name;
  const char* summary;
  int (*run)(int argument_count, char** arguments);
};

/// Parses; when the command is then over (--help, or a mistake, which is printed) the exit code.
std::optional<int> parse(CLI::App* app, int argument_count, char** arguments);

/// For check() of an option that names a file or folder: "" is most often a variable that the
/// caller's shell does not know, and must not count as the option's absence.
std::string refuse_no_name(const std::string& text);

/// Prints "dt NAME: warning: ..." on stderr for each.
void warn(const char* name, const std::vector<std::string>& warnings);
/// Prints "dt NAME: message" on stderr.
int fail(const char* name, const Status& status, int exit_code = kExitFailure);

int bench_command(int argument_count, char** arguments);
int run_command(int argument_count, char** arguments);
int doctor_command(int argument_count, char** arguments);
int config_command(int argument_count, char** arguments);
int store_command(int argument_count, char** arguments);
int trace_command(int argument_count, char** arguments);
int token_command(int argument_count, char** arguments);
int version_command(int argument_count, char** arguments);

}  // namespace dt::cli
