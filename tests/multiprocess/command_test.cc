// SPDX-License-Identifier: Apache-2.0
// `dt store` and `dt config`.
#include <doctest/doctest.h>
#include <signal.h>

#include <cstring>
#include <filesystem>

#include "../sanitizers.h"
#include "dt_run.h"
#include "net/host_port.h"
#include "net/loop.h"
#include "store/torch_client.h"

using namespace dt::test;

namespace {

// What the command printed; its exit code and errors are checked.
std::string answer_of(const Strings& arguments, int exit_code = 0) {
  Strings command{required_variable("DT_COMMAND")};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Process process(command);
  CHECK(process.wait() == exit_code);
  if (exit_code == 0) CHECK(process.err.empty());
  return exit_code == 0 ? process.out : process.err;
}

}  // namespace

TEST_CASE("a served store keeps values until it gets a signal") {
  Process server({required_variable("DT_COMMAND"), "store", "serve"});
  REQUIRE(server.wait_for_output("\n"));
  const std::string at = server.out.substr(0, server.out.size() - 1);
  CHECK(starts_with(at, "127.0.0.1:"));
  CHECK(answer_of({"store", "ping", "--store", at}).empty());
  CHECK(answer_of({"store", "set", "--store", at, "fruit/apple", "red and green"}).empty());
  CHECK(answer_of({"store", "get", "--store", at, "fruit/apple"}) == "red and green\n");
  CHECK(answer_of({"store", "add", "--store", at, "count", "--", "-3"}) == "-3\n");
  CHECK(answer_of({"store", "add", "--store", at, "count"}) == "-2\n");
  CHECK(answer_of({"store", "list", "--store", at}) == "count\nfruit/apple\n");
  CHECK(answer_of({"store", "list", "--store", at, "fruit/"}) == "fruit/apple\n");
  CHECK(answer_of({"store", "wait", "--store", at, "count", "fruit/apple"}).empty());
  CHECK(answer_of({"store", "delete", "--store", at, "count"}).empty());
  CHECK(answer_of({"store", "delete", "--store", at, "count"}, 1) ==
        "dt store: there is no key \"count\"\n");
  const std::string late =
      answer_of({"store", "get", "--store", at, "--timeout-ms", "100", "never"}, 1);
  CHECK(starts_with(late, "dt store: "));
  CHECK(count_of(late, "\"never\"") == 1);
  server.send(SIGTERM);
  CHECK(server.wait() == 0);
}

TEST_CASE("a served store heeds the settings of stores, and options go before them") {
  Process::Options options;
  options.environment = {"DT_STORE_BIND=127.0.0.2", "DT_STORE_TORCH_COMPAT=1"};
  Process server({required_variable("DT_COMMAND"), "store", "serve"}, options);
  Process bound({required_variable("DT_COMMAND"), "store", "serve", "--bind", "127.0.0.3"},
                options);
  REQUIRE(server.wait_for_output("\n"));
  REQUIRE(bound.wait_for_output("\n"));
  CHECK(starts_with(server.out, "127.0.0.2:"));
  CHECK(starts_with(bound.out, "127.0.0.3:"));
  const auto loop = dt::net::Loop::start();
  REQUIRE(loop.ok());
  const auto at = dt::net::parse_host_port(server.out.substr(0, server.out.size() - 1));
  REQUIRE(at.ok());
  const auto client =
      dt::store::TorchClient::connect(loop.value().get(), {at.value().host, at.value().port, {}},
                                      {dt::Deadline::after_ms(20'000), nullptr});
  CHECK_MESSAGE(client.ok(), client.status().message());
}

TEST_CASE("a served store heeds log.level") {
  Process::Options options;
  options.environment = {"DT_LOG_LEVEL=debug"};
  Process server({required_variable("DT_COMMAND"), "store", "serve"}, options);
  REQUIRE(server.wait_for_output("\n"));
  const std::string at = server.out.substr(0, server.out.size() - 1);
  CHECK(answer_of({"store", "ping", "--store", at}).empty());
  CHECK(server.wait_for_error(" disconnected"));
  server.send(SIGTERM);
  CHECK(server.wait() == 0);
  CHECK(starts_with(server.err, "dt: debug: store: "));
}

TEST_CASE("dt store says what is wrong with its arguments") {
  CHECK(answer_of({"store", "get", "--store", "somewhere", "key"}, 1) ==
        "dt store: \"somewhere\" is no address; write host:port, or [::1]:port\n");
  CHECK(starts_with(answer_of({"store"}, 2), "dt store: "));
  CHECK(starts_with(answer_of({"store", "dance"}, 2), "dt store: "));
  CHECK(answer_of({"store", "get"}, 2) ==
        "dt store get: key is required; see dt store get --help\n");
}

TEST_CASE("dt trace names the attempts that there can be") {
  for (const char* wrong : {"-1", "last"}) {
    CHECK(answer_of({"trace", "report", "--attempt", wrong, "."}, 2) ==
          "dt trace report: --attempt: Value " + std::string(wrong) +
              " not in range 0 to 2147483647; see dt trace report --help\n");
  }
}

TEST_CASE("missing descriptors or a missing network of this host are reported at once") {
  const std::string dt = required_variable("DT_COMMAND");
  const Strings ping{dt, "store", "ping", "--store", "127.0.0.1:1", "--timeout-ms", "60000"};
  // One more file than before, until the one that is missing is the connection. UBSan's check of
  // types needs descriptors of its own, so it would find errors where there are none.
  std::string said;
  for (int files = 4; files < 64 && !dt::test::kAddressSanitizer &&
                      count_of(said, "cannot connect to") + count_of(said, "no store at") == 0;
       ++files) {
    Process limited({"/bin/sh", "-c", "ulimit -n " + std::to_string(files) + "; exec \"$@\"", "sh",
                     ping[0], ping[1], ping[2], ping[3], ping[4], ping[5], ping[6]});
    CHECK(limited.wait() != 0);
    said = limited.err;
  }
  CHECK((dt::test::kAddressSanitizer ||
         said == "dt store: the store at 127.0.0.1:1: cannot connect to 127.0.0.1:1: Too many open "
                 "files; check ulimit -n\n"));

  if (Process({"/usr/bin/env", "unshare", "-n", "true"}).wait() != 0) {
    MESSAGE("no network namespaces: a loopback interface that is down is not tested");
    return;
  }
  Strings apart{"/usr/bin/env", "unshare", "-n"};
  apart.insert(apart.end(), ping.begin(), ping.end());
  Process down(apart);
  CHECK(down.wait() == 1);
  CHECK(down.err ==
        "dt store: the store at 127.0.0.1:1: the loopback interface of this host is down; run: ip "
        "link set lo up\n");
}

TEST_CASE("an empty file name is refused and is not the default") {
  Process::Options options;
  const dt::test::TempFolder home;
  options.environment = {"HOME=" + home.path(), "XDG_CONFIG_HOME="};
  const auto refused = [&](const std::string& name, const std::string& option, Strings command) {
    command.insert(command.begin(), required_variable("DT_COMMAND"));
    command.insert(command.end(), {option, ""});
    Process process(command, options);
    CHECK(process.wait() == 2);
    CHECK(process.err == name + ": " + option +
                             ": it is empty; give a name, or leave the option out; see " + name +
                             " --help\n");
  };
  refused("dt token", "--file", {"token"});
  CHECK(std::filesystem::is_empty(home.path()));
  refused("dt run", "--log-dir", {"run"});
  refused("dt trace dump", "--dir", {"trace", "dump", "nowhere:1"});
  refused("dt trace timeline", "--output", {"trace", "timeline", "."});
  for (const char* option : {"--json", "--csv", "--plot", "--save-expectation", "--expect"}) {
    refused("dt bench", option, {"bench"});
  }
  refused("dt bench", "--tune-write", {"bench", "--tune"});
}

TEST_CASE("the token that dt run makes is in no command line") {
  const std::string out =
      answer_of({"run", "-n", "1", "/bin/sh", "-c",
                 "echo token $DT_TOKEN; for pid in $$ $PPID $DT_LAUNCHER_PID; do echo process; "
                 "tr '\\0' ' ' < /proc/$pid/cmdline; done"});
  constexpr size_t kDigits = 64;
  const size_t at = out.find("token ") + strlen("token ");
  REQUIRE(out.size() > at + kDigits);
  const std::string token = out.substr(at, kDigits);
  REQUIRE(token.find_first_not_of("0123456789abcdef") == token.npos);
  CHECK(count_of(out, "process\n") == 3);
  CHECK(count_of(out, "run -n 1 /bin/sh -c") >= 1);
  CHECK(count_of(out, token) == 1);
}

TEST_CASE("ranks reach the store of dt run by their environment alone") {
  const std::string dt = required_variable("DT_COMMAND");
  Process run({dt, "run", "-n", "3", dt, "store", "add", "together", "1"});
  CHECK(run.wait() == 0);
  CHECK(run.err.empty());
  for (const char* sum : {"] 1\n", "] 2\n", "] 3\n"}) CHECK(count_of(run.out, sum) == 1);
}

TEST_CASE("dt config shows the place of a rank, as a table and as JSON") {
  const std::string dt = required_variable("DT_COMMAND");
  const std::string alone = answer_of({"config"});
  CHECK(starts_with(alone, "rank 0 of 1 "));
  CHECK(count_of(alone, "run.grace_ms") == 1);
  Process run({dt, "run", "-n", "2", "--show", "1", "--no-prefix", dt, "config", "--json"});
  CHECK(run.wait() == 0);
  CHECK(starts_with(run.out, "{\"place\": {\"rank\": 1, \"world_size\": 2, \"local_rank\": 1, "));
  CHECK(count_of(run.out, "\"launcher\": \"dt run\"") == 1);
  CHECK(count_of(run.out, "\"config\": {") == 1);
}

TEST_CASE("output that cannot be written is an error") {
  Process config(
      {"/bin/sh", "-c", "exec \"$0\" config >/dev/full", required_variable("DT_COMMAND")});
  CHECK(config.wait() == 1);
  CHECK(config.err == "dt: cannot write to standard output: No space left on device\n");
}

TEST_CASE("commands print the warnings of the settings before the error that they may explain") {
  const std::string warning =
      "warning: empty_variable: DT_MASTER_ADDR is set but empty and counts as not set\n";
  Process::Options options;
  options.environment = {"DT_MASTER_ADDR=", "DT_RANK=0"};
  for (const Strings& arguments : {Strings{"config"}, {"store", "ping"}, {"trace", "dump"}}) {
    CAPTURE(arguments[0]);
    Strings command{required_variable("DT_COMMAND")};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Process process(command, options);
    CHECK(process.wait() == 1);
    const std::string said = "dt " + arguments[0] + ": ";
    CHECK(starts_with(process.err, said + warning + said));
    CHECK(count_of(process.err, warning) == 1);
  }
}

TEST_CASE("dt config fails on a setting that makes no sense") {
  Process::Options options;
  options.environment = {"DT_RUN_GRACE_MS=soon"};
  Process config({required_variable("DT_COMMAND"), "config"}, options);
  CHECK(config.wait() == 1);
  CHECK(config.out.empty());
  CHECK(starts_with(config.err, "dt config: "));
  CHECK(count_of(config.err, "DT_RUN_GRACE_MS") == 1);
  Process run({required_variable("DT_COMMAND"), "run", "true"}, options);
  CHECK(run.wait() == 1);
  CHECK(count_of(run.err, "DT_RUN_GRACE_MS") == 1);
}
