// SPDX-License-Identifier: Apache-2.0
// `dt run --servers`: parameter servers next to the ranks, on one node and on two.
#include <doctest/doctest.h>
#include <signal.h>

#include <cstdlib>
#include <memory>

#include "dt_run.h"
#include "held_port.h"

using namespace dt::test;

namespace {

pid_t pid_of_server(const std::string& output, int server) {
  const std::string beginning = "[server " + std::to_string(server) + "] ready ";
  for (const std::string& line : dt::test::lines_of(output)) {
    if (starts_with(line, beginning)) return atoi(line.c_str() + beginning.size());
  }
  return -1;
}

std::string of_server(int server, pid_t pid) {
  return "parameter server " + std::to_string(server) + " (host " + host_name() + " pid " +
         std::to_string(pid) + ") ";
}

/// Agents of one job of two nodes, each with one server.
struct TwoNodes {
  HeldPort port;
  std::unique_ptr<Process> agents[2];

  void start(int node, Strings options, const Strings& mode) {
    const Strings place{"--nnodes",     "2",
                        "--node-rank",  std::to_string(node),
                        "--rendezvous", "127.0.0.1:" + std::to_string(port.port())};
    options.insert(options.begin(), place.begin(), place.end());
    agents[node] = std::make_unique<Process>(dt_run(options, mode));
  }
};

}  // namespace

TEST_CASE("servers get a socket that listens, every process their addresses; all end with 0") {
  Process run(dt_run({"-n", "2", "--servers", "2"}, {"work"}));
  REQUIRE(run.wait_for_output("] ready ", 4));
  const Watch watch(ready_pids(run.out));
  run.send(SIGUSR1);
  CHECK(run.wait() == 0);
  CHECK(run.err.empty());
  for (const char* server : {"[server 0] ", "[server 1] "}) {
    CAPTURE(server);
    const std::string line =
        std::string(server) + "address right of 2 workers 2 rank (none)(none) descriptors 4\n";
    CHECK(count_of(run.out, line) == 1);
    CHECK(count_of(run.out, std::string(server) + "done\n") == 1);
  }
  for (const char* rank : {"[0] ", "[1] "}) {
    CHECK(count_of(run.out, std::string(rank) + "heard from server 0\n") == 2);
    CHECK(count_of(run.out, std::string(rank) + "heard from server 1\n") == 2);
  }
  CHECK(watch.all_ended(0));
}

TEST_CASE("one rank next to a server: lines say whose they are") {
  Process run(dt_run({"--servers", "1"}, {"work", "5"}));
  REQUIRE(run.wait_for_output("] ready ", 2));
  run.send(SIGUSR1);
  CHECK(run.wait() == 5);
  CHECK(count_of(run.out, "[0] heard from server 0\n") == 2);
}

TEST_CASE("a server that is killed starts again at its address, and the ranks go on") {
  Process run(dt_run({"-n", "2", "--servers", "2"}, {"work"}));
  REQUIRE(run.wait_for_output("] ready ", 4));
  const pid_t victim = pid_of_server(run.out, 1);
  REQUIRE(victim > 0);
  kill(victim, SIGKILL);
  REQUIRE(run.wait_for_output("[server 1] ready ", 2));
  run.send(SIGUSR1);
  CHECK(run.wait() == 0);
  CHECK(starts_with(run.err, "dt run: " + of_server(1, victim) + "killed by SIGKILL after "));
  CHECK(count_of(run.err, " s; it is started again (1 of 3 times), the ranks go on\n") == 1);
  CHECK(count_of(run.err, "[server 1] ready " + std::to_string(victim)) == 1);
  CHECK(count_of(run.out, "[server 1] address right ") == 2);
  CHECK(count_of(run.out, "] heard from server 1\n") == 4);
}

TEST_CASE("a server that always fails ends the job with its name, its last lines and its code") {
  Process run(dt_run({"-n", "2", "--servers", "2", "--max-restarts", "1", "--grace-ms", "200"},
                     {"fail-server", "1"}));
  CHECK(run.wait() == 7);
  const std::string why = " exited with code 7 after ";
  CHECK(starts_with(run.err, "dt run: parameter server 1 (host " + host_name() + " pid "));
  CHECK(count_of(run.err, why) == 3);  // two ends, and once more as the reason
  CHECK(count_of(run.err, "; it is started again (1 of 1 times), the ranks go on\n") == 1);
  CHECK(count_of(run.err, "; it was started again 1 time (--max-restarts), so the job ends\n") ==
        2);
  CHECK(count_of(run.err, "[server 1] about to fail\n") == 2);
  CHECK(count_of(run.err, "go on\n") == 1);
}

TEST_CASE("without restarts the first failure of a server ends the job") {
  Process run(
      dt_run({"--servers", "1", "--max-restarts", "0", "--grace-ms", "0"}, {"fail-server", "0"}));
  CHECK(run.wait() == 7);
  CHECK(count_of(run.err, "; it was started again 0 times (--max-restarts), so the job ends\n") ==
        2);
}

TEST_CASE("a server that fails is reported also if others go on writing to its output") {
  Process run(dt_run({"--servers", "1", "--max-restarts", "0"}, {"fail-flooded"}));
  CHECK(run.wait() == 7);
  CHECK(count_of(run.err, " exited with code 7 after ") >= 1);
}

TEST_CASE("a rank that is killed leaves the others alone, unless --on-failure says otherwise") {
  Process run(dt_run({"-n", "2", "--servers", "1"}, {"work"}));
  REQUIRE(run.wait_for_output("] ready ", 3));
  kill(pid_of_rank(run.out, 1), SIGKILL);
  REQUIRE(run.wait_for_error("; the others go on\n"));
  run.send(SIGUSR1);
  CHECK(run.wait() == 0);
  CHECK(count_of(run.err, "; the others went on and ended well\n") == 1);

  Process strict(dt_run({"-n", "2", "--servers", "1", "--on-failure", "end", "--grace-ms", "20000"},
                        {"work"}));
  REQUIRE(strict.wait_for_output("] ready ", 3));
  kill(pid_of_rank(strict.out, 1), SIGKILL);
  CHECK(strict.wait() == 128 + SIGKILL);
  CHECK(count_of(strict.err, "1 rank ended because of it: rank 0 killed by SIGTERM\n") == 1);
}

TEST_CASE("servers that do not end with the ranks get SIGTERM, then SIGKILL, which is no failure") {
  Process run(dt_run({"--servers", "2", "--grace-ms", "200"}, {"ignore-term"}));
  CHECK(run.wait() == 0);
  CHECK(run.out == "[server 0] got SIGTERM\n");
  const auto asked = [](int server) {
    return "dt run: parameter server " + std::to_string(server) +
           " has not ended, 5.0 s after the ranks, and gets SIGTERM; if it was writing a "
           "checkpoint, give it more time with --grace-ms\n";
  };
  CHECK(run.err == asked(0) + asked(1) +
                       "dt run: parameter server 1 does not end, 0.2 s after SIGTERM, and is "
                       "killed\n");
}

TEST_CASE("a server that fails after the ranks have ended well fails the job") {
  Process run(dt_run({"--servers", "1"}, {"fail-late"}));
  REQUIRE(run.wait_for_output("] ready ", 2));
  REQUIRE(Watch({pid_of_rank(run.out, 0)}).all_ended(2000));
  kill(pid_of_server(run.out, 0), SIGUSR1);
  CHECK(run.wait() == 8);
  CHECK(count_of(run.err, ", after all ranks had ended\n") == 2);
}

TEST_CASE("SIGINT ends servers soon after the ranks, and a killed dt run leaves none") {
  Process run(dt_run({"--servers", "1", "--grace-ms", "200"}, {"fail-server", "9"}));
  REQUIRE(run.wait_for_output("] ready ", 1));
  const Watch watch(ready_pids(run.out));
  run.send(SIGINT);
  CHECK(run.wait() == 128 + SIGINT);
  CHECK(watch.all_ended(0));
  Process killed(dt_run({"--servers", "1"}, {"work"}));
  REQUIRE(killed.wait_for_output("] ready ", 2));
  const Watch left(ready_pids(killed.out));
  killed.send(SIGKILL);
  CHECK(killed.wait() == 128 + SIGKILL);
  CHECK(left.all_ended(2000));
}

TEST_CASE("logs and --show know servers") {
  const dt::test::TempFolder folder;
  Process run(dt_run({"--servers", "1", "--show", "0", "--log-dir", folder.path()}, {"work"}));
  REQUIRE(run.wait_for_output("] ready ", 1));
  run.send(SIGUSR1);
  CHECK(run.wait() == 0);
  CHECK(count_of(run.out, "[server") == 0);
  Process log({"/bin/cat", folder.path() + "/server-0000.out"});
  CHECK(log.wait() == 0);
  CHECK(count_of(log.out, "done\n") == 1);
}

TEST_CASE("two nodes: servers count node by node, and all ranks know all") {
  TwoNodes nodes;
  for (int node = 0; node < 2; ++node) nodes.start(node, {"-n", "2", "--servers", "1"}, {"work"});
  for (int node = 0; node < 2; ++node) REQUIRE(nodes.agents[node]->wait_for_output("] ready ", 3));
  // The ranks of node 0 end first; its server must wait for those of node 1.
  nodes.agents[0]->send(SIGUSR1);
  REQUIRE(nodes.agents[0]->wait_for_output("[1] heard from server 1\n", 2));
  nodes.agents[1]->send(SIGUSR1);
  for (int node = 0; node < 2; ++node) {
    Process& agent = *nodes.agents[node];
    CHECK(agent.wait() == 0);
    CHECK(agent.err.empty());
    const std::string server = "[server " + std::to_string(node) + "] ";
    CHECK(count_of(agent.out, server + "address right of 2 workers 4 ") == 1);
    CHECK(count_of(agent.out, server + "done\n") == 1);
    CHECK(count_of(agent.out, "heard from server 0\n") == 4);
    CHECK(count_of(agent.out, "heard from server 1\n") == 4);
  }
}

TEST_CASE("two nodes: a server that always fails ends the ranks of both") {
  TwoNodes nodes;
  for (int node = 0; node < 2; ++node) {
    nodes.start(node, {"--servers", "1", "--max-restarts", "0", "--grace-ms", "300"},
                {"fail-server", "1"});
  }
  for (int node = 0; node < 2; ++node) {
    CHECK(nodes.agents[node]->wait() == 7);
    CHECK(count_of(nodes.agents[node]->err,
                   "dt run: node 1 (host " + host_name() + "): parameter server 1 (host ") == 1);
  }
}

TEST_CASE("two nodes: parameter servers on one node only are refused") {
  TwoNodes nodes;
  nodes.start(0, {"--servers", "2"}, {"work"});
  nodes.start(1, {}, {"work"});
  for (int node = 0; node < 2; ++node) {
    CHECK(nodes.agents[node]->wait() == 1);
    CHECK(count_of(nodes.agents[node]->err, ") was started with --servers 2, node 1 (host ") == 1);
    CHECK(count_of(nodes.agents[node]->err,
                   ") with --servers 0; give every node some parameter servers, or none\n") == 1);
  }
}

TEST_CASE("parameter servers do not go with elastic jobs") {
  Process run(dt_run({"--servers", "1", "--nnodes", "2", "--node-rank", "0", "--min-nodes", "1",
                      "--rendezvous", "127.0.0.1:1"},
                     {"work"}));
  CHECK(run.wait() == 2);
  CHECK(count_of(run.err,
                 "--servers and --min-nodes exclude each other: parameter servers of a lost node "
                 "would be lost with what they hold; leave one of them out; see dt run --help\n") ==
        1);
}
