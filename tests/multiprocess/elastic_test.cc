// SPDX-License-Identifier: Apache-2.0
// `dt run --min-nodes`: agents that go on when a node is lost, and when one comes.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <tuple>

#include "cli/run/lobby.h"
#include "dt_run.h"
#include "held_port.h"

using namespace dt::test;

namespace {

/// The agents of one elastic job on `count` nodes, with one rank on each.
class ElasticJob {
 public:
  ElasticJob(int count, int addresses, Strings options) : count_(count), options_(options) {
    for (int i = 0; i < addresses; ++i) ports_.push_back(std::make_unique<HeldPort>());
  }

  Process& start(int node, const Strings& more, const Strings& program) {
    Strings command{required_variable("DT_COMMAND"), "run", "--nnodes", std::to_string(count_)};
    const Strings own{"--node-rank", std::to_string(node), "--rendezvous", addresses(), "--prefix"};
    for (const Strings* part : {&own, &options_, &more, &program}) {
      command.insert(command.end(), part->begin(), part->end());
    }
    Process::Options process;
    process.environment = environment;
    agents_.push_back(std::make_unique<Process>(command, process));
    return *agents_.back();
  }
  Process& start(int node, const Strings& mode = {"part"}) {
    Strings program{required_variable("RUN_PROGRAM")};
    program.insert(program.end(), mode.begin(), mode.end());
    return start(node, {}, program);
  }
  uint16_t port(size_t i) const { return static_cast<uint16_t>(ports_[i]->port()); }
  std::string address(size_t i) const { return "127.0.0.1:" + std::to_string(ports_[i]->port()); }
  std::string addresses() const {
    std::string all = address(0);
    for (size_t i = 1; i < ports_.size(); ++i) all += "," + address(i);
    return all;
  }

  /// Long where all nodes come: whether some do not is never found out by the clock of a test.
  Strings environment{"DT_RUN_ELASTIC_WAIT_MS=20000"};

 private:
  const int count_;
  const Strings options_;
  std::vector<std::unique_ptr<HeldPort>> ports_;
  std::vector<std::unique_ptr<Process>> agents_;
};

/// What rank `rank` says when it begins, with one rank on each node.
std::string part(int attempt, int rank, int size) {
  const std::string both = std::to_string(rank) + " of " + std::to_string(size);
  return "] attempt " + std::to_string(attempt) + " rank " + both + " node " + both + " ready ";
}

/// Node `node` of all `size` takes part in the attempt as its node `rank`.
bool takes_part(Process& agent, int attempt, int rank, int size) {
  const bool found = agent.wait_for_output(part(attempt, rank, size));
  if (!found) MESSAGE("it said: " << agent.out << agent.err);
  return found;
}

/// Both, or all three, nodes of the job in its first attempt.
std::tuple<Process&, Process&> two_nodes(ElasticJob& job) {
  Process& zero = job.start(0);
  Process& one = job.start(1);
  REQUIRE(takes_part(zero, 0, 0, 2));
  REQUIRE(takes_part(one, 0, 1, 2));
  return {zero, one};
}

std::tuple<Process&, Process&, Process&> three_nodes(ElasticJob& job) {
  Process& zero = job.start(0);
  Process& one = job.start(1);
  Process& two = job.start(2);
  REQUIRE(takes_part(zero, 0, 0, 3));
  REQUIRE(takes_part(one, 0, 1, 3));
  REQUIRE(takes_part(two, 0, 2, 3));
  return {zero, one, two};
}

void end_well(std::initializer_list<Process*> agents) {
  for (Process* agent : agents) agent->send(SIGUSR1);
  for (Process* agent : agents) {
    const int code = agent->wait();
    CAPTURE(agent->err);
    CHECK(code == 0);
  }
}

std::string this_host() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

std::string agent_text(int node, const Process& agent) {
  return "node " + std::to_string(node) + " (host " + this_host() + ", dt run pid " +
         std::to_string(agent.pid()) + ")";
}

}  // namespace

TEST_CASE("after the loss of a node the others go on with fewer, in the next attempt") {
  ElasticJob job(3, 1, {"--min-nodes", "2"});
  const auto [zero, one, two] = three_nodes(job);
  one.send(SIGKILL);
  REQUIRE(takes_part(zero, 1, 0, 2));
  REQUIRE(takes_part(two, 1, 1, 2));
  end_well({&zero, &two});
  for (const Process* agent : {&zero, &two}) {
    CHECK(count_of(agent->err, agent_text(1, one) +
                                   " is gone: its agent was killed, or its machine or network is "
                                   "down; it held rank 1; the other nodes start again without "
                                   "it\n") == 1);
  }
}

TEST_CASE("a node that comes back takes part from the next attempt on") {
  ElasticJob job(3, 1, {"--min-nodes", "2"});
  const auto [zero, one, two] = three_nodes(job);
  one.send(SIGKILL);
  REQUIRE(takes_part(zero, 1, 0, 2));
  REQUIRE(takes_part(two, 1, 1, 2));
  Process& again = job.start(1);
  REQUIRE(takes_part(again, 2, 1, 3));
  REQUIRE(takes_part(zero, 2, 0, 3));
  REQUIRE(takes_part(two, 2, 2, 3));
  end_well({&zero, &again, &two});
  CHECK(count_of(zero.err, "dt run: a node has come, all ranks start again with it\n") == 1);
}

TEST_CASE("ranks that ask whether to stop are stopped in the same step for a node that comes") {
  ElasticJob job(2, 1, {"--min-nodes", "1", "--allow-minority"});
  job.environment = {"DT_RUN_ELASTIC_WAIT_MS=0"};
  const Strings program{required_variable("RANK_PROGRAM"), "stop"};
  Process& zero = job.start(0, {"-n", "2"}, program);
  REQUIRE(zero.wait_for_output("asked ", 2));
  Process& one = job.start(1, {"-n", "2"}, program);
  REQUIRE(one.wait_for_output("asked ", 2));
  REQUIRE(zero.wait_for_output("asked ", 4));
  CHECK(count_of(zero.out, "stopped at ") == 2);
  zero.send(SIGTERM);
  CHECK(zero.wait() == 0);
  CHECK(one.wait() == 0);
  CHECK(count_of(zero.out, "stopped at ") == 4);
  CHECK(count_of(one.out, "stopped at ") == 2);
}

TEST_CASE("when the time for all is over the job begins with those that have come") {
  ElasticJob job(3, 1, {"--min-nodes", "2"});
  job.environment = {"DT_RUN_ELASTIC_WAIT_MS=300"};
  Process& two = job.start(2);
  Process& zero = job.start(0);
  REQUIRE(takes_part(zero, 0, 0, 2));
  REQUIRE(takes_part(two, 0, 1, 2));
  end_well({&zero, &two});
}

TEST_CASE("fewer than --min-nodes do not begin, and the missing ones are named") {
  ElasticJob job(3, 1, {"--min-nodes", "2"});
  job.environment = {"DT_RUN_ELASTIC_WAIT_MS=100", "DT_RENDEZVOUS_TIMEOUT_MS=2000"};
  Process& zero = job.start(0);
  CHECK(zero.wait() == 1);
  CHECK(zero.out.empty());
  CHECK(zero.err ==
        "dt run: no attempt can begin at " + job.address(0) +
            " within 2.0 s: 1 of 3 nodes is there (--min-nodes 2): " + agent_text(0, zero) +
            "; missing: nodes 1, 2; start dt run on the missing nodes, with the same "
            "--rendezvous and --nnodes, or raise rendezvous.timeout_ms\n");
}

TEST_CASE("when the node that serves is lost, that of the next address serves the next attempt") {
  ElasticJob job(3, 2, {"--min-nodes", "2"});
  const auto [zero, one, two] = three_nodes(job);
  zero.send(SIGKILL);
  REQUIRE(takes_part(one, 1, 0, 2));
  REQUIRE(takes_part(two, 1, 1, 2));
  // It finds the others where they are now.
  Process& again = job.start(0);
  REQUIRE(takes_part(again, 2, 1, 3));
  REQUIRE(takes_part(one, 2, 0, 3));
  REQUIRE(takes_part(two, 2, 2, 3));
  end_well({&again, &one, &two});
  for (const Process* agent : {&one, &two}) {
    CHECK(count_of(agent->err, agent_text(0, zero) + " is gone: ") == 1);
  }
}

TEST_CASE("when the first address never answers, the next one serves the first attempt") {
  ElasticJob job(3, 2, {"--min-nodes", "2"});
  job.environment = {"DT_RUN_ELASTIC_WAIT_MS=300"};
  Process& two = job.start(2);
  Process& one = job.start(1);
  REQUIRE(takes_part(one, 0, 0, 2));
  REQUIRE(takes_part(two, 0, 1, 2));
  end_well({&one, &two});
}

TEST_CASE("a minority does not go on, and says how many of how many agents it has") {
  for (const int victim : {0, 1}) {
    CAPTURE(victim);
    ElasticJob job(2, 2, {"--min-nodes", "1"});
    const auto [zero, one] = two_nodes(job);
    Process& lost = victim == 0 ? zero : one;
    Process& left = victim == 0 ? one : zero;
    lost.send(SIGKILL);
    CHECK(
        left.wait_for_error("dt: warning: 1 of the 2 agents of attempt 0 is there, and the next "
                            "attempt needs 2 of them, so that two sides of a broken network "
                            "never go on both; missing: " +
                            agent_text(victim, lost) + "\n"));
    left.send(SIGTERM);
    CHECK(left.wait() == 128 + SIGTERM);
    CHECK(count_of(left.out, "attempt 1") == 0);
    CHECK(count_of(left.err, "stopped by SIGTERM while waiting for the other nodes\n") == 1);
  }
}

TEST_CASE("without another address the others cannot go on without node 0, and say so") {
  ElasticJob job(3, 1, {"--min-nodes", "2"});
  const auto [zero, one, two] = three_nodes(job);
  zero.send(SIGKILL);
  for (Process* agent : {&one, &two}) {
    CHECK(agent->wait_for_error(" found no agent that serves the next attempt at " +
                                job.address(0) +
                                "; it is 1 of the 3 agents of attempt 0, and the next attempt "
                                "needs 2 of them; the last try: no store at " +
                                job.address(0)));
    agent->send(SIGTERM);
    CHECK(agent->wait() == 128 + SIGTERM);
  }
}

TEST_CASE("where nobody serves the job the agent says where it looked") {
  ElasticJob job(3, 2, {"--min-nodes", "2"});
  job.environment = {"DT_RENDEZVOUS_TIMEOUT_MS=1000"};
  Process& two = job.start(2);
  CHECK(two.wait() == 1);
  CHECK(starts_with(
      two.err, "dt run: node 2 (host " + this_host() + " pid " + std::to_string(two.pid()) +
                   ") found no agent that serves the job within 1.0 s at " + job.address(0) + ", " +
                   job.address(1) + "; the last try: no store at "));
}

TEST_CASE("a minority goes on where it is allowed to") {
  ElasticJob job(2, 2, {"--min-nodes", "1", "--allow-minority"});
  const auto [zero, one] = two_nodes(job);
  zero.send(SIGKILL);
  REQUIRE(takes_part(one, 1, 0, 1));
  end_well({&one});
}

TEST_CASE("restarts count failures of ranks, not the loss of nodes") {
  ElasticJob job(3, 1, {"--min-nodes", "2", "--max-restarts", "1"});
  const auto [zero, one, two] = three_nodes(job);
  two.send(SIGKILL);
  REQUIRE(takes_part(zero, 1, 0, 2));
  REQUIRE(takes_part(one, 1, 1, 2));
  one.send(SIGUSR2);
  REQUIRE(takes_part(zero, 2, 0, 2));
  REQUIRE(takes_part(one, 2, 1, 2));
  one.send(SIGUSR2);
  for (Process* agent : {&zero, &one}) {
    CHECK(agent->wait() == 5);
    CAPTURE(agent->err);
    CHECK(count_of(agent->err, "dt run: restart 1 of 1 after rank 1 (host ") == 1);
    CHECK(count_of(agent->err, "\nrank 1 (host ") == 1);
  }
}

TEST_CASE("a signal to one agent ends an elastic job on all nodes") {
  ElasticJob job(2, 2, {"--min-nodes", "1"});
  const auto [zero, one] = two_nodes(job);
  one.send(SIGTERM);
  for (Process* agent : {&zero, &one}) {
    CHECK(agent->wait() == 128 + SIGTERM);
    CHECK(agent->err == "dt run: stopped by SIGTERM on node 1 (host " + this_host() +
                            "): ranks 0-1 killed by SIGTERM\n");
  }
}

TEST_CASE("of two agents with one node rank the second is refused") {
  ElasticJob job(3, 1, {"--min-nodes", "3"});
  Process& zero = job.start(0);
  Process& one = job.start(1);
  Process& other = job.start(1);
  // Which of the two comes first is open; the third node comes when that is settled.
  Process* refused = nullptr;
  for (int turn = 0; turn < 1000 && refused == nullptr; ++turn) {
    if (dt::test::Watch({one.pid()}).all_ended(20)) refused = &one;
    if (dt::test::Watch({other.pid()}).all_ended(20)) refused = &other;
  }
  REQUIRE(refused != nullptr);
  Process& kept = refused == &one ? other : one;
  CHECK(refused->wait() == 1);
  CHECK(refused->err == "dt run: node rank 1 is taken by another agent (host " + this_host() +
                            " pid " + std::to_string(kept.pid()) + "); this one (host " +
                            this_host() + " pid " + std::to_string(refused->pid()) +
                            ") is refused; give every node its own --node-rank\n");
  Process& two = job.start(2);
  REQUIRE(takes_part(zero, 0, 0, 3));
  REQUIRE(takes_part(kept, 0, 1, 3));
  REQUIRE(takes_part(two, 0, 2, 3));
  end_well({&zero, &kept, &two});
}

TEST_CASE(
    "an agent that is lost before the first attempt is waited for as heartbeat.timeout_ms says") {
  ElasticJob job(3, 1, {"--min-nodes", "3"});
  job.environment.push_back("DT_HEARTBEAT_TIMEOUT_MS=3000");
  Process& zero = job.start(0);
  Process& one = job.start(1);
  bool waits = false;
  for (int turn = 0; turn < 1000 && !waits; ++turn) {
    Process list(
        {required_variable("DT_COMMAND"), "store", "list", "--store", job.address(0), "waiting/"});
    waits = list.wait() == 0 && count_of(list.out, "waiting/") == 2;
  }
  REQUIRE(waits);
  one.send(SIGSTOP);
  Process& two = job.start(2);
  CHECK(zero.wait_for_error("attempt 0 has not begun: 1 of 3 nodes did not come to "));
  CHECK(zero.wait_for_error(", or raise rendezvous.timeout_ms\n"));
  CAPTURE(zero.err);
  CHECK(count_of(zero.err, " within 6.0 s: missing node 1; ") == 1);
  for (Process* agent : {&zero, &two}) agent->send(SIGTERM);
  for (Process* agent : {&zero, &two}) CHECK(agent->wait() == 128 + SIGTERM);
  one.send(SIGKILL);
}

namespace {

/// A port at which connections are taken and nothing is said.
class SilentPort {
 public:
  SilentPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    REQUIRE(bind(fd_, reinterpret_cast<sockaddr*>(&address), length) == 0);
    REQUIRE(listen(fd_, SOMAXCONN) == 0);
    REQUIRE(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    port_ = ntohs(address.sin_port);
  }
  ~SilentPort() { close(fd_); }
  SilentPort(const SilentPort&) = delete;
  SilentPort& operator=(const SilentPort&) = delete;

  int port() const { return port_; }
  /// Until somebody dials it.
  void await_caller() const {
    pollfd caller{fd_, POLLIN, 0};
    REQUIRE(poll(&caller, 1, kPatienceMs) == 1);
  }

 private:
  const int fd_;
  int port_ = 0;
};

/// This process as the agent of node 0 of two. It serves the lobby, and offers attempts at whose
/// meeting nobody answers.
class FakeLead {
 public:
  explicit FakeLead(const ElasticJob& job) {
    options_.node.node_count = 2;
    options_.node.addresses = {{"127.0.0.1", job.port(0)}};
    options_.host_name = "h";
    options_.nonce = 1;
    auto opened = dt::cli::Lobby::open(loop_.get(), options_, patience_);
    REQUIRE_MESSAGE(opened.ok(), opened.status().message());
    lobby_ = std::move(opened).value();
  }
  /// To whoever waits. False: nobody does.
  bool offer() {
    const auto there = lobby_->waiting(patience_);
    REQUIRE(there.ok());
    if (there.value().empty()) return false;
    dt::cli::Offer offer;
    offer.roster.attempt = next_attempt_++;
    offer.roster.job_id = "job";
    offer.roster.host = "127.0.0.1";
    offer.roster.port = nobody_.port();
    offer.roster.seats = {{0, options_.nonce, options_.host_name, 7}, there.value()[0].seat};
    REQUIRE(lobby_->answer(there.value(), offer).ok());
    return true;
  }
  /// When the other agent has come to the meeting.
  void vanish() {
    nobody_.await_caller();
    lobby_.reset();
  }

 private:
  const dt::Wait patience_{dt::Deadline::after_ms(kPatienceMs), nullptr};
  const SilentPort nobody_;
  const std::unique_ptr<dt::net::Loop> loop_ = std::move(dt::net::Loop::start()).value();
  dt::cli::LobbyOptions options_;
  std::unique_ptr<dt::cli::Lobby> lobby_;
  int next_attempt_ = 0;
};

}  // namespace

TEST_CASE("when the agent that serves vanishes after its offer, the others meet again at once") {
  ElasticJob job(2, 1, {"--min-nodes", "2"});
  FakeLead lead(job);
  Process& one = job.start(1);
  const dt::test::Watch watch({one.pid()});
  while (!lead.offer()) REQUIRE_FALSE(watch.all_ended(20));
  lead.vanish();
  CHECK(
      one.wait_for_error("dt: warning: attempt 0 has not begun: node 0 (host h, dt run pid 7), "
                         "which serves it, is gone: "));
  CHECK(one.wait_for_error(" found no agent that serves the next attempt at " + job.address(0)));
  one.send(SIGTERM);
  CHECK(one.wait() == 128 + SIGTERM);
}

TEST_CASE("a meeting that cannot succeed is not repeated for ever") {
  ElasticJob job(2, 1, {"--min-nodes", "2"});
  job.environment = {"DT_HEARTBEAT_TIMEOUT_MS=1000",  // twice that for each meeting
                     "DT_RENDEZVOUS_TIMEOUT_MS=10000"};
  FakeLead lead(job);
  Process& one = job.start(1);
  const dt::test::Watch watch({one.pid()});
  const dt::Deadline patience = dt::Deadline::after_ms(kPatienceMs);
  int offers = 0;
  while (!watch.all_ended(20) && !patience.passed()) offers += lead.offer() ? 1 : 0;
  CHECK(one.wait() == 1);
  CHECK(offers >= 2);
  CAPTURE(one.err);
  CHECK(count_of(one.err, "dt: warning: attempt 0 has not begun: node 1 (host ") == 1);
  CHECK(count_of(one.err,
                 "dt run: no attempt of the same agents has begun within 10.0 s of their first "
                 "meeting that failed: node 1 (host ") == 1);
}

TEST_CASE("a rank that comes while its attempt ends waits for the next one") {
  // As pods that are restarted one by one: nobody counts the attempts.
  const HeldPort port;
  std::vector<std::unique_ptr<Process>> processes;
  const auto start = [&](int rank) -> Process& {
    Process::Options options;
    options.environment = {"DT_RANK=" + std::to_string(rank), "DT_WORLD_SIZE=2",
                           "DT_MASTER_ADDR=127.0.0.1",
                           "DT_MASTER_PORT=" + std::to_string(port.port()), "DT_LOG_LEVEL=debug"};
    const Strings command{required_variable("RANK_PROGRAM"), "heed-not"};
    processes.push_back(std::make_unique<Process>(command, options));
    return *processes.back();
  };
  Process& zero = start(0);
  Process& one = start(1);
  REQUIRE(zero.wait_for_output("asked 0"));
  REQUIRE(one.wait_for_output("asked 1"));
  one.send(SIGKILL);
  CHECK(one.wait() == 128 + SIGKILL);
  Process& early = start(1);
  REQUIRE(early.wait_for_error(" has died in attempt 0; ("));
  REQUIRE(early.wait_for_error("; trying again until the next one begins"));
  zero.send(SIGKILL);
  CHECK(zero.wait() == 128 + SIGKILL);
  Process& again = start(0);
  CHECK(again.wait_for_output("asked 0"));
  CHECK(early.wait_for_output("asked 1"));
  for (Process* process : {&again, &early}) process->send(SIGKILL);
}

TEST_CASE("options that make no sense together are refused") {
  const std::string dt = required_variable("DT_COMMAND");
  const std::pair<Strings, std::string> cases[] = {
      {{"--min-nodes", "1", "true"},
       "dt run: --min-nodes without several nodes; give --nnodes N, the most there may be; see dt "
       "run --help\n"},
      {{"--allow-minority", "true"},
       "dt run: --allow-minority without --min-nodes; see dt run --help\n"},
      {{"--nnodes", "2", "--node-rank", "0", "--rendezvous", "h:1", "--min-nodes", "3", "true"},
       "dt run: --min-nodes 3 is out of range: with --nnodes 2 it is 1 to 2; see dt run --help\n"},
      {{"--nnodes", "2", "--node-rank", "0", "--rendezvous", "h:1", "--min-nodes", "", "true"},
       "dt run: --min-nodes: it is empty; give a number; see dt run --help\n"},
      {{"--nnodes", "", "true"},
       "dt run: --nnodes: it is empty; give a number; see dt run --help\n"},
      {{"--nnodes", "2", "--node-rank", "0", "--rendezvous", "h:1,h:1", "true"},
       "dt run: --rendezvous has h:1 twice; give each of node 0, node 1, ... an address of its "
       "own; "
       "see dt run --help\n"},
      {{"--nnodes", "2", "--node-rank", "0", "--rendezvous", "h:1", "--min-nodes", "1",
        "--on-failure", "continue", "true"},
       "dt run: --on-failure continue and --min-nodes exclude each other: after the loss of a node "
       "either the others go on, or all start again; see dt run --help\n"},
      {{"--nnodes", "2", "--node-rank", "0", "--rendezvous", "h:1,h:2", "--on-failure", "continue",
        "true"},
       "dt run: --on-failure continue and several --rendezvous addresses exclude each other: after "
       "the loss of a node either the others go on, or all start again; see dt run --help\n"},
      {{"--nnodes", "2", "--node-rank", "0", "--rendezvous", "h:1,h:2,h:3", "true"},
       "dt run: --rendezvous has 3 addresses, but there are 2 nodes; give those of node 0, node 1, "
       "..., one for each node at most; see dt run --help\n"},
  };
  for (const auto& [options, said] : cases) {
    Strings command{dt, "run"};
    command.insert(command.end(), options.begin(), options.end());
    Process agent(command);
    CHECK(agent.wait() == 2);
    CHECK(agent.err == said);
  }
}
