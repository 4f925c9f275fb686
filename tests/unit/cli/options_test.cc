// SPDX-License-Identifier: Apache-2.0
#include "cli/run/options.h"

#include <doctest/doctest.h>

using dt::cli::parse_run;
using dt::cli::RunOptions;
using Strings = std::vector<std::string>;

namespace {

RunOptions options_of(Strings words) {
  words.insert(words.begin(), "dt run");
  words.emplace_back("prog");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const auto parsed = parse_run(static_cast<int>(words.size()), arguments.data());
  REQUIRE_FALSE(parsed.exit_code.has_value());
  return parsed.options;
}

}  // namespace

TEST_CASE("without --servers a failure ends the ranks, and --max-restarts counts for them") {
  const RunOptions options = options_of({"--max-restarts", "2"});
  CHECK(options.servers == 0);
  CHECK(options.end_on_failure);
  CHECK(options.max_restarts == 2);
  CHECK(options.server_restarts == 0);
}

TEST_CASE("with --servers ranks go on without one that failed, and restarts are of servers") {
  RunOptions options = options_of({"--servers", "2"});
  CHECK(options.servers == 2);
  CHECK_FALSE(options.end_on_failure);
  CHECK(options.max_restarts == 0);
  CHECK(options.server_restarts == 3);
  options = options_of({"--servers", "2", "--max-restarts", "5"});
  CHECK_FALSE(options.end_on_failure);
  CHECK(options.max_restarts == 0);
  CHECK(options.server_restarts == 5);
  CHECK(options_of({"--servers", "2", "--max-restarts", "0"}).server_restarts == 0);
  options = options_of({"--servers", "2", "--on-failure", "continue", "--max-restarts", "5"});
  CHECK_FALSE(options.end_on_failure);
  CHECK(options.server_restarts == 5);
}

TEST_CASE("--on-failure end with --servers: all start again, and servers by themselves") {
  RunOptions options = options_of({"--servers", "1", "--on-failure", "end"});
  CHECK(options.end_on_failure);
  CHECK(options.max_restarts == 0);
  CHECK(options.server_restarts == 3);
  options = options_of({"--servers", "1", "--on-failure", "end", "--max-restarts", "4"});
  CHECK(options.max_restarts == 4);
  CHECK(options.server_restarts == 4);
}
