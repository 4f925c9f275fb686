// SPDX-License-Identifier: Apache-2.0
// `dt token`: makes the secret that all processes of a job share.
#include <cstdio>
#include <string>

#include "cli/command.h"
#include "config/environment.h"
#include "launch/credentials.h"

namespace dt::cli {
namespace {

Status make_token(const std::string& file, bool force) {
  const std::string path = file.empty() ? launch::home_token_path(process_environment()) : file;
  if (path.empty()) {
    return Status(Code::kConfig, "HOME is not set, so there is no ~/.config/dt/token; say --file");
  }
  DT_TRY_VALUE(const net::Token token, net::Token::random());
  DT_TRY(launch::write_token_file(path, token, force));
  printf("%s\n", path.c_str());
  return {};
}

}  // namespace

int token_command(int argument_count, char** arguments) {
  CLI::App app(
      "Makes a token, the secret by which the processes of a job know each other, in a file that "
      "only "
      "you can read, and prints the file's name. Copy it to every host of the job, and to nobody.",
      "dt token");
  std::string file;
  bool force = false;
  app.add_option("--file", file, "where to (~/.config/dt/token, which every job of yours uses)")
      ->check(refuse_no_name);
  app.add_flag("--force", force, "replace the file where there is one");
  if (const auto over = parse(&app, argument_count, arguments)) return *over;
  const Status status = make_token(file, force);
  return status.ok() ? 0 : fail("token", status);
}

}  // namespace dt::cli
