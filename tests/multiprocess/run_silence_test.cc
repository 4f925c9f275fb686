// SPDX-License-Identifier: Apache-2.0
// `dt run` on several nodes, where an agent or a rank lives and says nothing. Hosts that are cut
// off from each other are in tests/multihost.
#include <doctest/doctest.h>
#include <signal.h>

#include <memory>

#include "dt_run.h"
#include "held_port.h"

using namespace dt::test;

namespace {

/// The agents of one job of three nodes with a rank on each, which notice a silence of 4 s.
struct Three {
  HeldPort port;
  std::unique_ptr<Process> agents[3];

  Process& start(int node, const Strings& mode) {
    Process::Options process;
    process.environment = {"DT_HEARTBEAT_INTERVAL_MS=200", "DT_HEARTBEAT_TIMEOUT_MS=4000"};
    const std::string address = "127.0.0.1:" + std::to_string(port.port());
    const Strings options{"--nnodes",     "3",     "--node-rank",    std::to_string(node),
                          "--rendezvous", address, "--max-restarts", "1"};
    agents[node] = std::make_unique<Process>(dt_run(options, mode), process);
    return *agents[node];
  }
  /// As another agent says it.
  std::string gone_text(int node) const {
    return "node " + std::to_string(node) + " (host " + host_name() + ", dt run pid " +
           std::to_string(agents[node]->pid()) +
           ") is gone: it gave no sign of life for 4.0 s: its agent is stopped, or its machine or "
           "network is down";
  }
};

/// Two nodes of two ranks each that reduce for ever, until rank 3 is stopped.
void stop_rank_of_node1(const Strings& environment, const std::string& rank_saw,
                        const std::string& summary) {
  HeldPort port;
  Process::Options process;
  process.environment = environment;
  process.environment.push_back("DT_RUN_GRACE_MS=500");
  std::unique_ptr<Process> agents[2];
  for (int node = 0; node < 2; ++node) {
    const Strings command{required_variable("DT_COMMAND"),
                          "run",
                          "-n",
                          "2",
                          "--nnodes",
                          "2",
                          "--node-rank",
                          std::to_string(node),
                          "--rendezvous",
                          "127.0.0.1:" + std::to_string(port.port()),
                          required_variable("RANK_PROGRAM"),
                          "reduce"};
    agents[node] = std::make_unique<Process>(command, process);
  }
  for (const auto& agent : agents) REQUIRE(agent->wait_for_output("] ready ", 2));
  const pid_t stopped = pid_of_rank(agents[1]->out, 3);
  REQUIRE(stopped > 0);
  const std::string pid = std::to_string(stopped);
  REQUIRE(kill(stopped, SIGSTOP) == 0);
  for (const auto& agent : agents) {
    CHECK(agent->wait() == 1);
    CAPTURE(agent->out);
    CAPTURE(agent->err);
    const std::string cause =
        "rank 3 (host " + host_name() + " pid " + pid + ") killed by SIGTERM after ";
    Strings said;
    for (const std::string& line : lines_of(agent->err)) {
      if (!starts_with(line, "[")) said.push_back(line);
    }
    REQUIRE(said.size() == 2);
    CHECK(starts_with(said[0], cause));
    CHECK(count_of(said[0], summary) == 1);
    CHECK(said[1] == "3 ranks ended because of it: ranks 0-2 exited with code 9");
  }
  for (int rank = 0; rank < 3; ++rank) {
    const std::string text = std::to_string(rank);
    CHECK(count_of(agents[rank / 2]->out, "[" + text + "] rank " + text + " saw " + rank_saw +
                                              " of rank 3 host named pid " + pid + ": ") == 1);
  }
  const std::string named = host_name() + (rank_saw == "DT_ERR_TIMEOUT" ? ", pid " : " pid ") + pid;
  CHECK(count_of(agents[0]->out, "rank 3 (" + named + ")") == 2);  // in the text itself, too
}

std::string rest_text(int node) {
  return "; it held rank " + std::to_string(node) + "; look at its log, then start the job again";
}

}  // namespace

TEST_CASE("an agent that is stopped is lost and told so; one that cannot write is not") {
  Three job;
  Process& zero = job.start(0, {"stay"});
  // Nobody reads what its rank writes, as long as the other one is stopped.
  Process& busy = job.start(1, {"huge", "4000000"});
  Process& stopped = job.start(2, {"stay"});
  REQUIRE(zero.wait_for_output("] ready "));
  REQUIRE(stopped.wait_for_output("] ready "));
  const Watch rank0(ready_pids(zero.out));
  const Watch rank2(ready_pids(stopped.out));
  stopped.send(SIGSTOP);
  REQUIRE(rank0.all_ended(kPatienceMs));
  CHECK(busy.wait() == 1);
  CHECK(zero.wait() == 1);
  for (const Process* agent : {&zero, &busy}) {
    REQUIRE_FALSE(agent->err.empty());
    CHECK(lines_of(agent->err)[0] == job.gone_text(2) + rest_text(2));
  }
  stopped.send(SIGCONT);
  CHECK(stopped.wait() == 1);
  CHECK(rank2.all_ended(kPatienceMs));
  REQUIRE_FALSE(stopped.err.empty());
  CHECK(lines_of(stopped.err)[0] ==
        "the other nodes heard nothing of this one (node 2, host " + host_name() + ", dt run pid " +
            std::to_string(stopped.pid()) +
            ") for 4.0 s and go on without it: it was stopped, or its machine or network was down; "
            "start the job again");
}

TEST_CASE("when node 0's agent is stopped the others end, and begin no other attempt") {
  Three job;
  for (int node = 0; node < 3; ++node) job.start(node, {"stay"});
  for (const auto& agent : job.agents) REQUIRE(agent->wait_for_output("] ready "));
  job.agents[0]->send(SIGSTOP);
  for (int node = 1; node < 3; ++node) {
    Process& agent = *job.agents[node];
    CHECK(agent.wait() == 1);
    REQUIRE_FALSE(agent.err.empty());
    CHECK(lines_of(agent.err)[0] == job.gone_text(0) + ", or the network of this machine (node " +
                                        std::to_string(node) + ", host " + host_name() + ") is" +
                                        rest_text(0));
    CHECK(count_of(agent.out, "] ready ") == 1);
  }
  job.agents[0]->send(SIGCONT);
  CHECK(job.agents[0]->wait() == 1);
  CHECK(count_of(job.agents[0]->err, " is gone: ") == 1);
}

TEST_CASE("a rank of another node that is stopped is named by all ranks and both agents") {
  stop_rank_of_node1({"DT_HEARTBEAT_INTERVAL_MS=100", "DT_HEARTBEAT_TIMEOUT_MS=2500"},
                     "DT_ERR_PEER_LOST",
                     "; before, it gave no sign of life, and the others took it for lost");
}

TEST_CASE("so is one that is stopped when the operation's limit is the shorter one") {
  stop_rank_of_node1(
      {"DT_COLLECTIVE_TIMEOUT_MS=2000", "DT_HEARTBEAT_TIMEOUT_MS=60000"}, "DT_ERR_TIMEOUT",
      "; before, it was stopped (as by SIGSTOP), and the others timed out waiting for it");
}
