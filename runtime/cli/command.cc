// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"

#include <cstdio>

namespace dt::cli {

std::optional<int> parse(CLI::App* app, int argument_count, char** arguments) {
  try {
    app->parse(argument_count, arguments);
  } catch (const CLI::ParseError& error) {  // how CLI11 speaks, --help included
    if (error.get_exit_code() == 0) return app->exit(error);
    fprintf(stderr, "%s: %s; see %s --help\n", app->get_name().c_str(), error.what(),
            app->get_name().c_str());
    return kExitUsage;
  }
  return std::nullopt;
}

int fail(const char* name, const Status& status, int exit_code) {
  fprintf(stderr, "dt %s: %s\n", name, status.message().c_str());
  return exit_code;
}

}  // namespace dt::cli
