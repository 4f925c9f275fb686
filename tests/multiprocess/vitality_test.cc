// SPDX-License-Identifier: Apache-2.0
// Ranks that are stopped, late, away on purpose, or asked to stop.
#include <doctest/doctest.h>
#include <signal.h>

#include <cstdlib>

#include "dt_run.h"

using namespace dt::test;

namespace {

Process::Options with(std::vector<std::string> environment) {
  Process::Options options;
  options.environment = std::move(environment);
  return options;
}

constexpr char kTakenForLost[] =
    "; before, it gave no sign of life, and the others took it for lost\n";

/// The numbers behind every "stopped at ".
std::vector<int> stops(const std::string& output) {
  static constexpr char kMark[] = "stopped at ";
  std::vector<int> steps;
  for (const std::string& line : dt::test::lines_of(output)) {
    const size_t at = line.find(kMark);
    if (at != std::string::npos) steps.push_back(atoi(line.c_str() + at + sizeof kMark - 1));
  }
  return steps;
}

}  // namespace

TEST_CASE("a stopped rank is named to the others when the heartbeat limit is over") {
  Process run(dt_run({"-n", "3", "--on-failure", "continue"}, {"reduce"}),
              with({"DT_HEARTBEAT_INTERVAL_MS=100", "DT_HEARTBEAT_TIMEOUT_MS=6000"}));
  REQUIRE(run.wait_for_output("ready ", 3));
  const pid_t stopped = pid_of_rank(run.out, 1);
  REQUIRE(kill(stopped, SIGSTOP) == 0);
  CHECK(run.wait_for_output(" saw DT_ERR_PEER_LOST ", 2));
  REQUIRE(kill(stopped, SIGKILL) == 0);
  CHECK(run.wait() == 1);
  INFO(run.out);
  INFO(run.err);
  CHECK(count_of(run.err, "\nrank 1 (host ") == 1);
  CHECK(count_of(run.err, kTakenForLost) == 1);
  CHECK(count_of(run.out, "DT_ERR_PEER_LOST of rank 1 host named pid " + std::to_string(stopped)) ==
        2);
  CHECK(count_of(run.out, " has given no sign of life for 6.") == 2);
  CHECK(count_of(run.out, "; last heard: ") == 2);
  CHECK(count_of(run.out, " is gone") == 0);
}

TEST_CASE("the last words name the rank that was stopped, though it is the last to end") {
  Process run(dt_run({"-n", "3"}, {"reduce"}),
              with({"DT_HEARTBEAT_INTERVAL_MS=100", "DT_HEARTBEAT_TIMEOUT_MS=6000"}));
  REQUIRE(run.wait_for_output("ready ", 3));
  const pid_t stopped = pid_of_rank(run.out, 1);
  REQUIRE(kill(stopped, SIGSTOP) == 0);
  CHECK(run.wait() == 1);
  INFO(run.err);
  CHECK(count_of(run.err, " pid " + std::to_string(stopped) + ") killed by SIGTERM after ") == 1);
  CHECK(count_of(run.err, kTakenForLost) == 1);
  CHECK(count_of(run.err, "\n2 ranks ended because of it: ranks 0, 2 ") == 1);
}

TEST_CASE("a rank that is stopped and goes on before the limit does no harm") {
  Process run(dt_run({"-n", "2"}, {"stop"}),
              with({"DT_HEARTBEAT_INTERVAL_MS=100", "DT_HEARTBEAT_TIMEOUT_MS=60000"}));
  REQUIRE(run.wait_for_output("asked ", 2));
  const pid_t stopped = pid_of_rank(run.out, 1);
  REQUIRE(kill(stopped, SIGSTOP) == 0);
  run.send(SIGTERM);
  REQUIRE(kill(stopped, SIGCONT) == 0);
  CHECK(run.wait() == 0);
  CHECK(stops(run.out).size() == 2);
}

TEST_CASE("named submissions end in time though rank 0 is stopped and takes no message") {
  Process run(dt_run({"-n", "2"}, {"named-stop"}), with({"DT_HEARTBEAT_TIMEOUT_MS=60000"}));
  CHECK(run.wait() == 0);
  INFO(run.out);
  INFO(run.err);
  CHECK(count_of(run.out, "rank 1: DT_ERR_TIMEOUT: ") == 1);
  CHECK(count_of(run.out, "which coordinates it, does not answer") == 1);
  CHECK(count_of(run.out, "rank 0: DT_ERR_TIMEOUT: ") == 1);
  CHECK(count_of(run.out, "timed out on rank 1 (") == 1);
}

TEST_CASE("ranks of one host meet at ::1 where there is no 127.0.0.1") {
  const Strings apart{
      "/usr/bin/env",
      "unshare",
      "-n",
      "/bin/sh",
      "-c",
      "ip link set lo up && ip addr del 127.0.0.1/8 dev lo && ip addr show to ::1 | "
      "grep -q ::1 && exec \"$@\"",
      "sh"};
  Strings probe = apart;
  probe.push_back("true");
  if (Process(probe).wait() != 0) {
    MESSAGE("no network namespaces with IPv6: not tested");
    return;
  }
  for (const char* relay : {"false", "true"}) {
    Strings command = apart;
    for (const std::string& each : dt_run({"-n", "2"}, {"stop"})) command.push_back(each);
    Process run(command, with({std::string("DT_STORE_RELAY=") + relay}));
    CHECK(run.wait_for_output("asked ", 2));
    run.send(SIGTERM);
    CHECK(run.wait() == 0);
    INFO(run.err);
    CHECK(stops(run.out).size() == 2);
  }
}

TEST_CASE("a stall is told once, with who is inside and who is missing") {
  Process run(dt_run({"-n", "3"}, {"late", "3"}),
              with({"DT_HEARTBEAT_INTERVAL_MS=50", "DT_WATCHDOG_STALL_WARN_MS=1000"}));
  CHECK(run.wait() == 0);
  INFO(run.err);
  CHECK(count_of(run.err, "barrier #2 on comm \"world\" is under way for ") == 1);
  CHECK(count_of(run.err, ": inside are ranks 0, 2; missing: rank 1 (") == 1);
  CHECK(count_of(run.err, "), which left barrier #1 on comm \"world\" ") == 1);
  CHECK(starts_with(run.err, "[0] "));
}

TEST_CASE("a stall report says that a missing rank's call was refused, and why") {
  const std::pair<const char*, const char*> refused[] = {
      {"refused", "dt_allreduce: count is -1; it must be >= 0"},
      {"refused-vote", "dt_agree: out_agreed is NULL"}};
  for (const auto& each : refused) {
    CAPTURE(each.first);
    Process run(dt_run({"-n", "2"}, {each.first, "3"}),
                with({"DT_HEARTBEAT_INTERVAL_MS=50", "DT_WATCHDOG_STALL_WARN_MS=1000"}));
    CHECK(run.wait() == 0);
    INFO(run.err);
    CHECK(count_of(run.err, ": inside is rank 0; missing: rank 1 (") == 1);
    CHECK(count_of(run.err, std::string("; a call of it was refused: ") + each.second) == 1);
  }
}

TEST_CASE("a job of one rank heeds the SIGTERM of dt run, too") {
  for (const char* relay : {"false", "true"}) {
    CAPTURE(relay);
    Process run(dt_run({"-n", "1"}, {"stop"}), with({std::string("DT_STORE_RELAY=") + relay}));
    REQUIRE(run.wait_for_output("asked 0"));
    run.send(SIGTERM);
    CHECK(run.wait() == 0);
    INFO(run.err);
    CHECK(stops(run.out).size() == 1);
  }
}

TEST_CASE("a job of one rank that cannot report to dt run says so, and gets the signal at once") {
  const std::string program = required_variable("RUN_PROGRAM");
  for (const char* wrong : {"DT_TOKEN=short", "DT_JOB_ID=another"}) {
    CAPTURE(wrong);
    Process run({required_variable("DT_COMMAND"), "run", "-n", "1", "--", "/usr/bin/env", wrong,
                 program, "stop"});
    REQUIRE(run.wait_for_output("asked 0"));
    run.send(SIGTERM);
    CHECK(run.wait() == 128 + SIGTERM);
    INFO(run.err);
    CHECK(count_of(run.err, "a stop of dt run comes as SIGTERM without notice") == 1);
  }
}

TEST_CASE("SIGTERM to dt run reaches ranks that heed it as an agreed stop") {
  Process run(dt_run({"-n", "3"}, {"stop"}));
  REQUIRE(run.wait_for_output("asked ", 3));
  run.send(SIGTERM);
  CHECK(run.wait() == 0);
  INFO(run.out);
  const std::vector<int> steps = stops(run.out);
  REQUIRE(steps.size() == 3);
  CHECK(steps[0] == steps[1]);
  CHECK(steps[0] == steps[2]);
  CHECK(run.err.empty());
}

TEST_CASE("ranks that hear of the stop and do not end get the signal after run.stop_grace_ms") {
  Process run(dt_run({"-n", "2"}, {"heed-not"}), with({"DT_RUN_STOP_GRACE_MS=200"}));
  REQUIRE(run.wait_for_output("asked ", 2));
  run.send(SIGTERM);
  CHECK(run.wait() == 128 + SIGTERM);
  CHECK(starts_with(run.err, "dt run: stopped by SIGTERM: ranks 0-1 killed by SIGTERM"));
}

TEST_CASE("dt_request_stop in a signal handler of one rank stops all in the same step") {
  Process run(dt_run({"-n", "3"}, {"stop"}));
  REQUIRE(run.wait_for_output("asked ", 3));
  REQUIRE(kill(pid_of_rank(run.out, 2), SIGUSR1) == 0);
  CHECK(run.wait() == 0);
  const std::vector<int> steps = stops(run.out);
  REQUIRE(steps.size() == 3);
  CHECK(steps[0] == steps[1]);
  CHECK(steps[0] == steps[2]);
}
