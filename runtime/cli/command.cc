// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace dt::cli {

std::optional<int> parse(CLI::App* app, int argument_count, char** arguments) {
  try {
    app->parse(argument_count, arguments);
  } catch (const CLI::ParseError& error) {  // how CLI11 speaks, --help included
    if (error.get_exit_code() == 0) return app->exit(error);
    std::string name;
    const CLI::App* at = app;
    for (;;) {
      name += (name.empty() ? "" : " ") + at->get_name();
      const std::vector<const CLI::App*> given = at->get_subcommands({});
      const auto next = std::find_if(given.begin(), given.end(),
                                     [](const CLI::App* command) { return command->parsed(); });
      if (next == given.end()) break;
      at = *next;
    }
    fprintf(stderr, "%s: %s; see %s --help\n", name.c_str(), error.what(), name.c_str());
    return kExitUsage;
  }
  return std::nullopt;
}

std::string refuse_no_name(const std::string& text) {
  return text.empty() ? "it is empty; give a name, or leave the option out" : "";
}

void warn(const char* name, const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    fprintf(stderr, "dt %s: warning: %s\n", name, warning.c_str());
  }
}

int fail(const char* name, const Status& status, int exit_code) {
  fprintf(stderr, "dt %s: %s\n", name, status.message().c_str());
  return exit_code;
}

}  // namespace dt::cli
