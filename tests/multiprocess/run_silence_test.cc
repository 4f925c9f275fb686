// SPDX-License-Identifier: Apache-2.0
// `dt run` on several nodes, one of whose agents lives and says nothing. Hosts that are cut off
// from each other are in tests/multihost.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <memory>

#include "dt_run.h"
#include "held_port.h"

using dt::test::count_of;
using dt::test::dt_run;
using dt::test::HeldPort;
using dt::test::lines_of;
using dt::test::Process;
using dt::test::ready_pids;
using dt::test::Watch;
using Strings = std::vector<std::string>;

namespace {

constexpr int kPatienceMs = 30'000;  // far above what a loaded machine needs

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

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
