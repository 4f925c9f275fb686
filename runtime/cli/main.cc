// SPDX-License-Identifier: Apache-2.0
// The command `dt`: finds the subcommand and runs it.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "cli/command.h"
#include "dt/version.h"

namespace dt::cli {
namespace {

constexpr Command kCommands[] = {
    {"run", "start the ranks of a job on this node", run_command},
    {"doctor", "say what a job would find here, and what to mend", doctor_command},
    {"config", "print every setting with its source", config_command},
    {"store", "serve or query a store of keys and values", store_command},
    {"trace", "say what the ranks of a job did last, and which one broke it", trace_command},
    {"token", "make the secret that guards a job", token_command},
    {"bench", "measure collectives, alone or beside MPI", bench_command},
    {"version", "print the version", version_command},
};

void print_help(FILE* to) {
  fputs("usage: dt COMMAND [options]\n\ncommands:\n", to);
  for (const Command& command : kCommands) {
    fprintf(to, "  %-8s  %s\n", command.name, command.summary);
  }
  fputs("\ndt COMMAND --help tells more.\n", to);
}

int unknown(const char* name) {
  std::string known;
  for (const Command& command : kCommands) {
    known += (known.empty() ? "" : ", ") + std::string(command.name);
  }
  fprintf(stderr, "dt: unknown command \"%s\"; there are: %s\n", name, known.c_str());
  return kExitUsage;
}

// A descriptor opened later must never become stdin, stdout or stderr.
void open_standard_descriptors() {
  int fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = dup(fd);
  if (fd >= 0) close(fd);
}

int dispatch(int argument_count, char** arguments) {
  if (argument_count < 2) {
    print_help(stderr);
    return kExitUsage;
  }
  const char* name = arguments[1];
  if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
    print_help(stdout);
    return 0;
  }
  if (strcmp(name, "--version") == 0) name = "version";
  for (const Command& command : kCommands) {
    if (strcmp(name, command.name) == 0) return command.run(argument_count - 1, arguments + 1);
  }
  return unknown(name);
}

}  // namespace

int version_command(int argument_count, char** arguments) {
  CLI::App app("Prints the version.", "dt version");
  if (const auto over = parse(&app, argument_count, arguments)) return *over;
  puts("dt " DT_VERSION);
  return 0;
}

}  // namespace dt::cli

int main(int argument_count, char** arguments) {
  dt::cli::open_standard_descriptors();
  const int exit_code = dt::cli::dispatch(argument_count, arguments);
  if (fflush(stdout) == 0 && ferror(stdout) == 0) return exit_code;
  fprintf(stderr, "dt: cannot write to standard output: %s\n", strerror(errno));
  return exit_code != 0 ? exit_code : 1;
}
