// SPDX-License-Identifier: Apache-2.0
// `dt run` on several nodes: one agent for each, here all on one machine.
#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>

#include "cli/run/fleet.h"
#include "dt_run.h"
#include "held_port.h"

using namespace dt::test;

namespace {

constexpr int kEndedMs = 2000;  // what dt promises after an agent was killed

/// The agents of one job.
class Nodes {
 public:
  explicit Nodes(int count) : count_(count) {}

  /// `options` come after those that make it node `node` of the job.
  Process& start(int node, const Strings& options, const Strings& program,
                 const Strings& environment = {}) {
    Strings command{required_variable("DT_COMMAND"),
                    "run",
                    "--nnodes",
                    std::to_string(count_),
                    "--node-rank",
                    std::to_string(node),
                    "--rendezvous",
                    node == 0 ? served_at_ + ":" + std::to_string(port()) : address()};
    command.insert(command.end(), options.begin(), options.end());
    command.insert(command.end(), program.begin(), program.end());
    Process::Options process;
    process.environment = environment;
    agents_.push_back(std::make_unique<Process>(command, process));
    return *agents_.back();
  }
  /// Node i starts i + 1 ranks.
  void start_all(const Strings& options, const Strings& program) {
    for (int node = 0; node < count_; ++node) {
      Strings all{"-n", std::to_string(node + 1)};
      all.insert(all.end(), options.begin(), options.end());
      start(node, all, program);
    }
  }
  /// Node 0 listens on all its addresses, as the main node of AWS Batch, which knows none.
  void listen_everywhere(const std::string& spelling) { served_at_ = spelling; }
  uint16_t port() const { return port_.port(); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_.port()); }
  Process& operator[](size_t node) { return *agents_[node]; }
  size_t size() const { return agents_.size(); }

 private:
  const int count_;
  std::string served_at_ = "127.0.0.1";
  HeldPort port_;
  std::vector<std::unique_ptr<Process>> agents_;
};

Strings run_program(const Strings& mode) {
  Strings command{required_variable("RUN_PROGRAM")};
  command.insert(command.end(), mode.begin(), mode.end());
  return command;
}

Strings rank_program(const std::string& mode) { return {required_variable("RANK_PROGRAM"), mode}; }

bool all_ready(Nodes& nodes) {
  for (size_t node = 0; node < nodes.size(); ++node) {
    if (!nodes[node].wait_for_output("] ready ", node + 1)) return false;
  }
  return true;
}

/// A rank of "fail-told".
void tell_to_fail(const Process& agent, int rank) {
  const pid_t pid = pid_of_rank(agent.out, rank);
  REQUIRE(pid > 0);
  kill(pid, SIGUSR1);
}

bool one_ended(const Process& one, const Process& other) {
  const Watch watches[] = {Watch({one.pid()}), Watch({other.pid()})};
  for (int turn = 0; turn < 1000; ++turn) {
    if (watches[turn % 2].all_ended(20)) return true;
  }
  return false;
}

/// A node 0 that starts no ranks.
std::unique_ptr<dt::cli::Fleet> meet_as_node0(dt::net::Loop* loop, uint16_t port) {
  dt::cli::FleetOptions options;
  options.node.node_count = 2;
  options.node.host = "127.0.0.1";
  options.node.port = port;
  options.host_name = "host0";
  options.job_id = "job";
  options.max_restarts = 1;
  options.timeout_ms = kPatienceMs;
  options.settle_timeout_ms = kPatienceMs;
  const dt::Wait patience{dt::Deadline::after_ms(kPatienceMs), nullptr};
  auto met = dt::cli::Fleet::meet(loop, options, patience);
  REQUIRE_MESSAGE(met.ok(), met.status().message());
  return std::move(met).value();
}

void await_wake(const dt::cli::Fleet& fleet) {
  pollfd ready{fleet.wake_fd(), POLLIN, 0};
  REQUIRE(poll(&ready, 1, kPatienceMs) == 1);
}

dt::cli::Outcome outcome_of(dt::cli::Fleet& node0, int attempt) {
  dt::cli::NodeEnds ends;
  ends.host = "host0";
  REQUIRE(node0.settle(attempt, ends, [] { return dt::store::FirstFailure{}; }).ok());
  for (;;) {
    await_wake(node0);
    (void)node0.take_news();
    if (auto outcome = node0.outcome()) return *outcome;
  }
}

std::vector<pid_t> all_pids(Nodes& nodes) {
  std::vector<pid_t> pids;
  for (size_t node = 0; node < nodes.size(); ++node) {
    for (const pid_t pid : ready_pids(nodes[node].out)) pids.push_back(pid);
  }
  return pids;
}

}  // namespace

TEST_CASE("ranks count node by node, also when nodes start different numbers of them") {
  Nodes nodes(3);
  nodes.start_all({}, run_program({"place"}));
  int rank = 0;
  for (int node = 0; node < 3; ++node) {
    Process& agent = nodes[static_cast<size_t>(node)];
    CHECK(agent.wait() == 0);
    CHECK(agent.err.empty());
    for (int local = 0; local <= node; ++local, ++rank) {
      const std::string dt = std::to_string(rank) + " 6 " + std::to_string(local) + " " +
                             std::to_string(node + 1) + " " + std::to_string(node) + " 3";
      CHECK(count_of(agent.out, "[" + std::to_string(rank) + "] place " + dt + " " + dt + "\n") ==
            1);
    }
    CHECK(lines_of(agent.out).size() == static_cast<size_t>(node) + 1);
  }
}

TEST_CASE("where node 0 listens everywhere, the others are told where they have reached it") {
  for (const Strings& options :
       {Strings{}, Strings{"--servers", "1"}, Strings{"--min-nodes", "2"}}) {
    const std::string kind = options.empty() ? "" : options[0];
    const bool servers = kind == "--servers";
    CAPTURE(kind);
    Nodes nodes(2);
    nodes.listen_everywhere(servers ? "0" : "0.0.0.0");
    const Strings program = servers ? run_program({"variables", "DT_PS_SERVERS", "DT_PS_INDEX"})
                                    : run_program({"variables", "DT_MASTER_ADDR", "MASTER_ADDR"});
    for (int node = 0; node < 2; ++node) {
      nodes.start(node, options, program, {"DT_SECURITY_MODE=none"});
    }
    for (size_t node = 0; node < 2; ++node) CHECK(nodes[node].wait() == 0);
    const std::string& out = nodes[1].out;
    if (servers) {
      CHECK(count_of(out, "DT_PS_SERVERS=127.0.0.1:") == 2);  // of the rank and of the server
      CHECK(count_of(out, "=0:") == 0);
    } else {
      CHECK(count_of(out, "DT_MASTER_ADDR=127.0.0.1\n") == 1);
      CHECK(count_of(out, " MASTER_ADDR=127.0.0.1\n") == 1);
    }
    CHECK(count_of(out, "0.0.0.0") == 0);
  }
}

TEST_CASE("with store.relay the ranks of a node are told of its relay, and else of none") {
  static constexpr char kPort[] = "] DT_JOB_STORE_RELAY_PORT=";
  const Strings program =
      run_program({"variables", "DT_JOB_STORE_RELAY_PORT", "DT_JOB_STORE_RELAY_ADDRESS"});
  for (const bool relayed : {true, false}) {
    Nodes nodes(2);
    for (int node = 0; node < 2; ++node) {
      // The port of a job around this one means nothing here.
      nodes.start(node, {"-n", "2", "-v"}, program,
                  {relayed ? "DT_STORE_RELAY=true" : "DT_STORE_RELAY=false",
                   "DT_JOB_STORE_RELAY_PORT=1", "DT_JOB_STORE_RELAY_ADDRESS=192.0.2.1"});
    }
    std::set<std::string> ports;
    for (size_t node = 0; node < 2; ++node) {
      CHECK(nodes[node].wait() == 0);
      const std::string& out = nodes[node].out;
      for (const std::string& line : lines_of(out)) {
        const size_t at = line.find(kPort);
        if (at != std::string::npos) ports.insert(line.substr(at + sizeof kPort - 1));
      }
      CHECK(count_of(out, kPort) == 2);
      const std::string address = relayed ? "127.0.0.1" : "(none)";
      CHECK(count_of(out, "] DT_JOB_STORE_RELAY_ADDRESS=" + address + "\n") == 2);
      CHECK(count_of(nodes[node].out + nodes[node].err,
                     "dt run: the ranks of this node share the connection of port ") ==
            (relayed ? 1 : 0));
    }
    CHECK(ports.size() == (relayed ? 2u : 1u));
    CHECK(ports.count("(none)") == (relayed ? 0u : 1u));
    CHECK(ports.count("1") == 0);
  }
}

TEST_CASE("log files are named by world rank, and with restarts by attempt") {
  char folder[] = "/tmp/dt_run_nodes_XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::filesystem::path logs(folder);
  Nodes nodes(2);
  nodes.start_all({"--log-dir", folder, "--max-restarts", "1", "--grace-ms", "100"},
                  run_program({"fail-attempt", "2", "0"}));
  CHECK(nodes[0].wait() == 0);
  CHECK(nodes[1].wait() == 0);
  for (const char* attempt : {"attempt-0", "attempt-1"}) {
    for (const char* rank : {"rank-0000", "rank-0001", "rank-0002"}) {
      CHECK(std::filesystem::exists(logs / attempt / (std::string(rank) + ".out")));
      CHECK(std::filesystem::exists(logs / attempt / (std::string(rank) + ".err")));
    }
  }
  std::filesystem::remove_all(logs);
}

TEST_CASE("the first failure anywhere ends all nodes, and all report it alike") {
  Nodes nodes(3);
  nodes.start_all({"--grace-ms", "4000", "--show-lines", "1"}, run_program({"fail-told", "7"}));
  REQUIRE(all_ready(nodes));
  tell_to_fail(nodes[2], 4);
  const int codes[] = {nodes[0].wait(), nodes[1].wait(), nodes[2].wait()};
  for (size_t node = 0; node < 3; ++node) {
    CHECK(codes[node] == 7);
    const Strings lines = lines_of(nodes[node].err);
    REQUIRE(lines.size() == 3);
    CHECK(starts_with(lines[0], "rank 4 (host " + host_name() + " pid "));
    CHECK(count_of(lines[0], " exited with code 7 after ") == 1);
    CHECK(lines[1] == "[4] about to fail");
    CHECK(lines[2] == "5 ranks ended because of it: ranks 0-3, 5 killed by SIGTERM");
    CHECK(nodes[node].err == nodes[0].err);
  }
}

TEST_CASE("kill -9 of a rank is the reported cause on every node, not the errors that follow") {
  Nodes nodes(3);
  nodes.start_all({}, rank_program("reduce"));
  REQUIRE(all_ready(nodes));
  const std::vector<pid_t> pids = all_pids(nodes);
  REQUIRE(pids.size() == 6);
  const Watch watch(pids);
  const pid_t victim = ready_pids(nodes[1].out)[0];
  kill(victim, SIGKILL);
  for (size_t node = 0; node < 3; ++node) {
    CHECK(nodes[node].wait() == 128 + SIGKILL);
    const std::string cause =
        " (host " + host_name() + " pid " + std::to_string(victim) + ") killed by SIGKILL after ";
    Strings lines = lines_of(nodes[node].err);
    while (!lines.empty() && starts_with(lines[0], "[")) lines.erase(lines.begin());
    REQUIRE(lines.size() >= 2);  // the first words of the agent's own
    CHECK(count_of(lines[0], cause) == 1);
    CHECK(starts_with(lines.back(), "5 ranks ended because of it: "));
  }
  CHECK(watch.all_ended(0));
}

TEST_CASE("a rank of another node that ended before it joined is named to all at once") {
  const std::pair<int, int> ends[] = {{0, 3}, {2, 3}, {2, 0}};
  for (const auto& end : ends) {
    const int lost = end.first;
    const int code = end.second;
    CAPTURE(lost);
    CAPTURE(code);
    Nodes nodes(2);
    const std::string script = "test $DT_RANK != " + std::to_string(lost) + " || exit " +
                               std::to_string(code) + "; exec " +
                               required_variable("RANK_PROGRAM") + " reduce";
    nodes.start_all({"--on-failure", "continue"}, {"sh", "-c", script});
    CHECK(nodes[0].wait() != 0);
    CHECK(nodes[1].wait() != 0);
    const std::string out = nodes[0].out + nodes[1].out;
    INFO(out);
    const std::string rank = "rank " + std::to_string(lost);
    CHECK(count_of(out, "saw DT_ERR_PEER_LOST of " + rank) == 2);
    CHECK(count_of(out, "join: " + rank + " (" + host_name() + " pid ") == 2);
    CHECK(count_of(out, ") exited with code " + std::to_string(code) + " after ") == 2);
  }
}

TEST_CASE("a rank that leaves and ends with 0 is named on all nodes to those that still need it") {
  Nodes nodes(2);
  nodes.start_all({}, rank_program("leaves"));
  for (size_t node = 0; node < nodes.size(); ++node) {
    CAPTURE(node);
    CHECK(nodes[node].wait() == 0);
    INFO(nodes[node].out);
    INFO(nodes[node].err);
    CHECK(count_of(nodes[node].out, " heard: ") == 1);
    CHECK(count_of(nodes[node].out, ") has left the job with dt_finalize, and this") == 1);
  }
}

TEST_CASE("a node that cannot start its ranks is named at once, also with --on-failure continue") {
  Nodes nodes(2);
  nodes.start(0, {"-n", "2", "--on-failure", "continue"}, rank_program("reduce"));
  nodes.start(1, {"--on-failure", "continue"}, {"no-such-program"});
  for (size_t node = 0; node < 2; ++node) CHECK(nodes[node].wait() == 127);
  CHECK(count_of(nodes[0].out, "saw DT_ERR_PEER_LOST of rank 2") == 2);
  CHECK(count_of(nodes[0].out, "join: rank 2 (" + host_name() +
                                   ") was not started (program no-such-program not found") == 2);
}

TEST_CASE("kill -9 of an agent ends all nodes in time, and the node is named") {
  for (const size_t victim : {size_t{1}, size_t{0}}) {
    CAPTURE(victim);
    Nodes nodes(3);
    nodes.start_all({}, run_program({"stay"}));
    REQUIRE(all_ready(nodes));
    const Watch watch(all_pids(nodes));
    nodes[victim].send(SIGKILL);
    CHECK(watch.all_ended(kEndedMs));
    for (size_t node = 0; node < 3; ++node) {
      const int code = nodes[node].wait();
      if (node == victim) continue;
      CHECK(code == 1);
      const std::string first = lines_of(nodes[node].err)[0];
      CHECK(starts_with(first, "node " + std::to_string(victim) + " (host " + host_name() +
                                   ", dt run pid " + std::to_string(nodes[victim].pid()) +
                                   ") is gone: "));
      CHECK(count_of(first, victim == 0 ? "it held rank 0;" : "it held ranks 1, 2;") == 1);
    }
  }
}

TEST_CASE("a signal to one agent ends all nodes as that signal does") {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    Nodes nodes(3);
    nodes.start_all({}, run_program({"stay"}));
    REQUIRE(all_ready(nodes));
    nodes[2].send(signal);
    const std::string name = std::string("SIG") + sigabbrev_np(signal);
    for (size_t node = 0; node < 3; ++node) {
      CHECK(nodes[node].wait() == 128 + signal);
      CHECK(nodes[node].err == "dt run: stopped by " + name + " on node 2 (host " + host_name() +
                                   "): ranks 0-5 killed by " + name + "\n");
    }
  }
}

TEST_CASE("SIGTERM to node 0 stops the ranks of all nodes in the same step where they heed it") {
  Nodes nodes(2);
  nodes.start_all({}, rank_program("stop"));
  REQUIRE(nodes[0].wait_for_output("asked "));
  REQUIRE(nodes[1].wait_for_output("asked ", 2));
  nodes[0].send(SIGTERM);
  CHECK(nodes[0].wait() == 0);
  CHECK(nodes[1].wait() == 0);
  const size_t at = nodes[0].out.find("stopped at ");
  REQUIRE(at != std::string::npos);
  CHECK(count_of(nodes[1].out, nodes[0].out.substr(at)) == 2);
}

TEST_CASE("a signal that a launcher sends to every agent counts once") {
  Nodes nodes(2);
  nodes.start_all({}, run_program({"count-int"}));
  REQUIRE(all_ready(nodes));
  nodes[0].send(SIGINT);
  nodes[1].send(SIGINT);
  CHECK(nodes[0].wait() == 0);
  CHECK(nodes[1].wait() == 0);
  CHECK(count_of(nodes[0].out, "interrupts 1\n") == 1);
  CHECK(count_of(nodes[1].out, "interrupts 1\n") == 2);
}

TEST_CASE("a second SIGINT to an agent kills the ranks of all nodes") {
  Nodes nodes(2);
  nodes.start_all({}, run_program({"ignore-term"}));
  REQUIRE(all_ready(nodes));
  nodes[0].send(SIGINT);
  REQUIRE(nodes[0].wait_for_output("ignored"));  // a second one before would be lost
  REQUIRE(nodes[1].wait_for_output("ignored", 2));
  nodes[0].send(SIGINT);
  for (size_t node = 0; node < 2; ++node) {
    CHECK(nodes[node].wait() == 128 + SIGINT);
    CHECK(nodes[node].err == "dt run: stopped by SIGINT on node 0 (host " + host_name() +
                                 "): ranks 0-2 killed by SIGKILL\n");
  }
}

TEST_CASE("restarts start all nodes again with the next attempt") {
  Nodes nodes(3);
  nodes.start_all({"--max-restarts", "3", "--grace-ms", "100"}, run_program({"fail-told", "5"}));
  REQUIRE(all_ready(nodes));
  tell_to_fail(nodes[2], 5);
  for (size_t node = 0; node < 3; ++node) {
    CHECK(nodes[node].wait() == 0);
    CHECK(starts_with(nodes[node].err,
                      "dt run: restart 1 of 3 after rank 5 (host " + host_name() + " pid "));
    CHECK(count_of(nodes[node].err, "dt run: restart") == 1);
    CHECK(count_of(nodes[node].out, "attempt 0 0\n") == node + 1);
    CHECK(count_of(nodes[node].out, "attempt 1 1\n") == node + 1);
  }
}

TEST_CASE("when the restarts are used up the last failure counts") {
  Nodes nodes(2);
  nodes.start_all({"--max-restarts", "1", "--grace-ms", "100"}, run_program({"fail", "0", "6"}));
  for (size_t node = 0; node < 2; ++node) {
    CHECK(nodes[node].wait() == 6);
    CHECK(count_of(nodes[node].err, "dt run: restart 1 of 1 after rank 0 (") == 1);
    CHECK(count_of(nodes[node].err, "\nrank 0 (host ") == 1);
  }
}

TEST_CASE("ranks of a restarted job find each other again") {
  Nodes nodes(2);
  nodes.start_all({"--max-restarts", "1"}, rank_program("reduce"));
  REQUIRE(all_ready(nodes));
  const pid_t victim = pid_of_rank(nodes[1].out, 2);
  REQUIRE(victim > 0);
  kill(victim, SIGKILL);
  REQUIRE(nodes[0].wait_for_output("] ready ", 2));
  REQUIRE(nodes[1].wait_for_output("] ready ", 4));
  nodes[0].send(SIGTERM);
  for (size_t node = 0; node < 2; ++node) {
    CHECK(nodes[node].wait() == 128 + SIGTERM);
    CHECK(count_of(nodes[node].err, "dt run: restart 1 of 1 after rank 2 (") == 1);
    CHECK(count_of(nodes[node].err, "dt run: stopped by SIGTERM on node 0 ") == 1);
  }
}

TEST_CASE("a node that never comes is named, with those that came") {
  Nodes nodes(3);
  const Strings program = run_program({"place"});
  setenv("DT_RENDEZVOUS_TIMEOUT_MS", "1000", 1);
  nodes.start(0, {}, program);
  nodes.start(2, {}, program);
  unsetenv("DT_RENDEZVOUS_TIMEOUT_MS");
  for (size_t i = 0; i < 2; ++i) {
    CHECK(nodes[i].wait() == 1);
    CHECK(nodes[i].out.empty());
    const std::string expected = "dt run: 1 of 3 nodes did not come to " + nodes.address() +
                                 " within 1.0 s: missing node 1; there: 0 (host " + host_name() +
                                 " pid " + std::to_string(nodes[0].pid()) + "), 2 (host " +
                                 host_name() + " pid " + std::to_string(nodes[1].pid()) +
                                 "); start dt run there with the same --rendezvous and --nnodes, "
                                 "or raise rendezvous.timeout_ms\n";
    CHECK(nodes[i].err == expected);
  }
}

TEST_CASE("a node that never comes: who was refused is said with it") {
  Nodes nodes(2);
  Process& agent = nodes.start(0, {}, run_program({"place"}), {"DT_RENDEZVOUS_TIMEOUT_MS=5000"});
  Process wrong({required_variable("DT_COMMAND"), "run", "--nnodes", "3", "--node-rank", "1",
                 "--rendezvous", nodes.address(), "true"});
  CHECK(wrong.wait() == 1);
  CHECK(agent.wait() == 1);
  CAPTURE(agent.err);
  CHECK(count_of(agent.err, "missing node 1; there: 0 (host ") == 1);
  CHECK(count_of(agent.err, "; an agent was refused: " +
                                wrong.err.substr(sizeof "dt run: " - 1,
                                                 wrong.err.size() - sizeof "dt run: ")) == 1);
}

TEST_CASE("an agent that cannot go on after the meeting tells why, and is not taken for lost") {
  struct Case {
    const char* timeout;
    int signal;
    int exit_code;
    const char* said;
  };
  const Case cases[] = {{"DT_RENDEZVOUS_TIMEOUT_MS=60000", SIGTERM, 128 + SIGTERM,
                         "dt run: stopped by SIGTERM on node 1 "},
                        {"DT_RENDEZVOUS_TIMEOUT_MS=1500", 0, 1, "dt run: node 1 (host "}};
  for (const Case& each : cases) {
    CAPTURE(std::string(each.said));
    Nodes nodes(2);
    Process& agent = nodes.start(1, {}, {"/bin/false"}, {each.timeout});
    const auto loop = dt::net::Loop::start().value();
    const auto node0 = meet_as_node0(loop.get(), nodes.port());
    // The second attempt is a place where the agent waits for node 0, long after the meeting.
    REQUIRE(node0->publish({0, "job", "127.0.0.1", 1, "127.0.0.1", 2}).ok());
    REQUIRE(outcome_of(*node0, 0).restart);
    node0->begin(1);
    if (each.signal != 0) agent.send(each.signal);
    dt::cli::FleetNews news;
    while (!news.failed && !news.lost && news.stop_signal == 0) {
      await_wake(*node0);
      news = node0->take_news();
    }
    CHECK(news.stop_signal == each.signal);
    CHECK_FALSE(news.lost);
    (void)outcome_of(*node0, 1);
    node0->leave();
    CHECK(agent.wait() == each.exit_code);
    const size_t second = agent.err.find(each.said);
    CAPTURE(agent.err);
    CHECK(second != std::string::npos);
    CHECK(count_of(agent.err, "is gone") == 0);
  }
}

TEST_CASE("without node 0 the others say where they looked for it") {
  Nodes nodes(2);
  setenv("DT_RENDEZVOUS_TIMEOUT_MS", "300", 1);
  Process& agent = nodes.start(1, {}, run_program({"place"}));
  unsetenv("DT_RENDEZVOUS_TIMEOUT_MS");
  CHECK(agent.wait() == 1);
  CHECK(starts_with(agent.err, "dt run: node 1 (host " + host_name() + " pid " +
                                   std::to_string(agent.pid()) +
                                   ") cannot join the agent of node 0: no store at " +
                                   nodes.address() + " within 0.3 s ("));
  CHECK(count_of(agent.err, "connection refused") == 1);
}

TEST_CASE("another number of nodes is refused, and the right one can still come") {
  Nodes nodes(2);
  const Strings program = run_program({"place"});
  nodes.start(0, {}, program);
  Process wrong({required_variable("DT_COMMAND"), "run", "--nnodes", "3", "--node-rank", "1",
                 "--rendezvous", nodes.address(), "true"});
  CHECK(wrong.wait() == 1);
  CHECK(wrong.err ==
        "dt run: node 0 (host " + host_name() + " pid " + std::to_string(nodes[0].pid()) +
            ") was started for 2 nodes, this one (node 1, host " + host_name() + " pid " +
            std::to_string(wrong.pid()) + ") for 3; give every agent the same --nnodes\n");
  nodes.start(1, {}, program);
  CHECK(nodes[0].wait() == 0);
  CHECK(nodes[1].wait() == 0);
}

TEST_CASE("a node rank that is taken is refused, and both agents are named") {
  Nodes nodes(3);
  const Strings program = run_program({"place"});
  nodes.start(0, {}, program);
  // One of these two is refused, whichever comes second.
  Process& one = nodes.start(1, {}, program);
  Process& other = nodes.start(1, {}, program);
  REQUIRE(one_ended(one, other));
  nodes.start(2, {}, program);
  const int codes[] = {one.wait(), other.wait()};
  const Process& refused = codes[0] == 1 ? one : other;
  CHECK(codes[0] + codes[1] == 1);
  CHECK(starts_with(refused.err, "dt run: node rank 1 is taken by another agent ("));
  CHECK(count_of(refused.err, "this one (host " + host_name() + " pid " +
                                  std::to_string(refused.pid()) +
                                  ") is refused; give every node its own --node-rank") == 1);
  CHECK(nodes[0].wait() == 0);
  CHECK(nodes[3].wait() == 0);
}

TEST_CASE("agents of another job are refused") {
  Nodes nodes(2);
  const Strings program = run_program({"place"});
  nodes.start(0, {"--job-id", "monday"}, program);
  Process& foreign = nodes.start(1, {"--job-id", "tuesday"}, program);
  CHECK(foreign.wait() == 1);
  CHECK(count_of(foreign.err, "\"agents monday\"") == 1);
  CHECK(count_of(foreign.err, "\"agents tuesday\"") == 1);
  nodes.start(1, {"--job-id", "monday"}, program);
  CHECK(nodes[0].wait() == 0);
  CHECK(nodes[2].wait() == 0);
}

TEST_CASE("a signal ends the wait for other nodes at once") {
  Nodes nodes(2);
  Process& agent = nodes.start(0, {"-v"}, run_program({"place"}));
  // Once it refuses a wrong agent it is waiting.
  Process probe({required_variable("DT_COMMAND"), "run", "--nnodes", "3", "--node-rank", "1",
                 "--rendezvous", nodes.address(), "true"});
  CHECK(probe.wait() == 1);
  agent.send(SIGINT);
  CHECK(agent.wait() == 128 + SIGINT);
  CHECK(agent.err == "dt run: stopped by SIGINT while waiting for the other nodes\n");
}

TEST_CASE("a program that cannot be run on one node ends all nodes") {
  char path[] = "/tmp/dt_no_interpreter_XXXXXX";
  const int fd = mkstemp(path);
  REQUIRE(fd >= 0);
  const std::string script = "#!/no/such/interpreter\n";
  REQUIRE(write(fd, script.data(), script.size()) == static_cast<ssize_t>(script.size()));
  fchmod(fd, 0700);
  close(fd);
  Nodes nodes(2);
  nodes.start(0, {"--grace-ms", "200"}, run_program({"stay"}));
  nodes.start(1, {"--grace-ms", "200"}, {path});
  for (size_t node = 0; node < 2; ++node) {
    CHECK(nodes[node].wait() == 1);
    CHECK(starts_with(nodes[node].err, "dt run: node 1 (host " + host_name() +
                                           "): rank 1: cannot run " + path + ": "));
  }
  unlink(path);
}

TEST_CASE("a program that one node does not have ends all nodes, with the shell's code") {
  Nodes nodes(3);
  nodes.start(0, {"--grace-ms", "200"}, run_program({"stay"}));
  nodes.start(1, {"--grace-ms", "200"}, {"no-such-program"});
  nodes.start(2, {"--grace-ms", "200", "--max-restarts", "3"}, run_program({"stay"}));
  for (size_t node = 0; node < 3; ++node) {
    CHECK(nodes[node].wait() == 127);
    CHECK(nodes[node].err == "dt run: node 1 (host " + host_name() +
                                 "): program no-such-program not found in PATH; give its path, or "
                                 "correct PATH\n");
  }
}

TEST_CASE("what keeps a node from starting its ranks is said also if nobody comes to hear it") {
  Nodes nodes(2);
  nodes.start(0, {}, {"no-such-program"}, {"DT_RENDEZVOUS_TIMEOUT_MS=500"});
  CHECK(nodes[0].wait() == 1);
  CHECK(starts_with(nodes[0].err,
                    "dt run: program no-such-program not found in PATH; give its path, or correct "
                    "PATH\ndt run: "));
  CHECK(count_of(nodes[0].err, "node 1") >= 1);
}

TEST_CASE("whatever keeps a node from starting its ranks is told to all, at once") {
  const std::string why[] = {"run.grace_ms", "/dev/null/logs", "--show"};
  for (const int wrong : {0, 1}) {
    for (size_t kind = 0; kind < 3; ++kind) {
      CAPTURE(wrong);
      CAPTURE(why[kind]);
      Nodes nodes(3);
      for (int node = 0; node < 3; ++node) {
        Strings options{"--grace-ms", "200"};
        Strings environment;
        if (node == wrong && kind == 0) environment = {"DT_RUN_GRACE_MS=soon"};
        if (node == wrong && kind == 1) options.insert(options.end(), {"--log-dir", why[1]});
        if (node == wrong && kind == 2) options.insert(options.end(), {"--show", "99"});
        nodes.start(node, options, run_program({"stay"}), environment);
      }
      for (size_t node = 0; node < 3; ++node) {
        CHECK(nodes[node].wait() == 1);
        CAPTURE(nodes[node].err);
        const std::string beginning =
            "dt run: node " + std::to_string(wrong) + " (host " + host_name() + "): ";
        CHECK(count_of(nodes[node].err, beginning) == 1);
        CHECK(count_of(nodes[node].err, why[kind]) >= 1);
        CHECK(count_of(nodes[node].err, "is gone") == 0);
      }
    }
  }
}

TEST_CASE("a node that ends early waits for the others, whose failure is its own") {
  Nodes nodes(2);
  nodes.start(0, {}, {"/bin/true"});
  nodes.start(1, {"-n", "2"}, run_program({"stay"}));
  REQUIRE(nodes[1].wait_for_output("] ready ", 2));
  const pid_t victim = pid_of_rank(nodes[1].out, 1);
  REQUIRE(victim > 0);
  kill(victim, SIGKILL);
  CHECK(nodes[0].wait() == 128 + SIGKILL);
  CHECK(nodes[1].wait() == 128 + SIGKILL);
  CHECK(starts_with(nodes[0].err, "rank 1 (host "));
}
