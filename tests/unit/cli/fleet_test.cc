// SPDX-License-Identifier: Apache-2.0
// The agents of two nodes, as threads of this process.
#include "cli/run/fleet.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

using dt::Deadline;
using dt::Interrupt;
using dt::Status;
using dt::Wait;
using dt::cli::Endpoints;
using dt::cli::Fd;
using dt::cli::Fleet;
using dt::cli::FleetNews;
using dt::cli::FleetOptions;
using dt::cli::NodeEnds;
using dt::cli::Outcome;
using dt::cli::RankEnd;

namespace {

constexpr int64_t kTestMs = 20'000;  // far above what a loaded machine needs

Wait soon() { return {Deadline::after_ms(kTestMs), nullptr}; }

// A port that stays free for a server, because this socket does not listen.
struct Port {
  Fd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  uint16_t number = 0;

  Port() {
    const int on = 1;
    setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(bind(socket.get(), generic, length) == 0);
    REQUIRE(getsockname(socket.get(), generic, &length) == 0);
    number = ntohs(address.sin_port);
  }
};

FleetOptions options_of(int node, int node_count, uint16_t port) {
  FleetOptions options;
  options.node.node_rank = node;
  options.node.node_count = node_count;
  options.node.host = "127.0.0.1";
  options.node.port = port;
  options.local_size = node + 2;
  options.host_name = "host" + std::to_string(node);
  options.pid = 1000 + node;
  options.job_id = "job of node " + std::to_string(node);
  options.max_restarts = 3 - node;
  options.timeout_ms = kTestMs;
  options.settle_timeout_ms = kTestMs;
  return options;
}

struct Pair {
  const Port port;
  std::unique_ptr<dt::net::Loop> loops[2];
  std::unique_ptr<Fleet> fleets[2];

  explicit Pair(const dt::LoggerPtr& logger = nullptr,
                const std::function<void(FleetOptions*)>& adjust = nullptr) {
    const auto meet = [&](int node) {
      loops[node] = dt::net::Loop::start().value();
      FleetOptions options = options_of(node, 2, port.number);
      options.logger = logger;
      if (adjust) adjust(&options);
      auto met = Fleet::meet(loops[node].get(), options, soon());
      REQUIRE_MESSAGE(met.ok(), met.status().message());
      fleets[node] = std::move(met).value();
    };
    std::thread other([&] { meet(1); });
    meet(0);
    other.join();
  }
  ~Pair() {
    // Both at once, as the last one out waits for the other.
    std::thread other([&] { fleets[1].reset(); });
    fleets[0].reset();
    other.join();
  }
  Fleet& operator[](int node) { return *fleets[node]; }
};

void await_wake(const Fleet& fleet) {
  pollfd ready{fleet.wake_fd(), POLLIN, 0};
  REQUIRE(poll(&ready, 1, kTestMs) == 1);
}

Outcome await_outcome(Fleet& fleet) {
  for (;;) {
    await_wake(fleet);
    (void)fleet.take_news();
    if (auto outcome = fleet.outcome()) return *outcome;
  }
}

Endpoints endpoints_of(int attempt) { return {attempt, "job", "10.0.0.1", 4711, "10.0.0.2", 4712}; }

NodeEnds ends_of(Fleet& fleet, int status) {
  NodeEnds ends;
  ends.node = fleet.node_rank();
  ends.host = fleet.own().host;
  ends.first_rank = fleet.own().first_rank;
  for (int i = 0; i < fleet.own().local_size; ++i) ends.ends.push_back(RankEnd{10, 1, 2, status});
  return ends;
}

}  // namespace

TEST_CASE("agents know each other's parameter servers, and when the ranks of all have ended") {
  Pair pair(nullptr, [](FleetOptions* options) {
    options->open_servers = [](const Wait&) -> dt::Result<std::vector<std::string>> {
      return std::vector<std::string>{"127.0.0.1:7000", "[::1]:7001"};
    };
  });
  for (int node = 0; node < 2; ++node) {
    CHECK(pair[node].nodes()[0].servers ==
          std::vector<std::string>{"127.0.0.1:7000", "[::1]:7001"});
    CHECK(pair[node].nodes()[1].servers.size() == 2);
    pair[node].begin(3);
  }
  pair[1].tell_ranks_ended(2);  // of an attempt before
  pair[1].tell_ranks_ended(3);
  await_wake(pair[1]);
  CHECK_FALSE(pair[1].take_news().ranks_ended);
  pair[0].tell_ranks_ended(3);
  for (int node = 0; node < 2; ++node) {
    bool ended = false;
    while (!ended) {
      await_wake(pair[node]);
      ended = pair[node].take_news().ranks_ended;
    }
  }
  pair[0].tell_server_failure(3);
  await_wake(pair[1]);
  CHECK(pair[1].take_news().server_failed);
}

TEST_CASE("where ranks go on without one that failed, no node must report within a time") {
  Pair pair(nullptr, [](FleetOptions* options) {
    options->others_go_on = true;
    options->settle_timeout_ms = 0;
  });
  REQUIRE(pair[0].publish(endpoints_of(0)).ok());
  REQUIRE(pair[1].await_endpoints(0, soon()).ok());
  pair[1].tell_failure(0, 2);
  await_wake(pair[0]);
  CHECK(pair[0].take_news().failed);
  REQUIRE(pair[0].settle(0, ends_of(pair[0], 0), [] { return dt::store::FirstFailure(); }).ok());
  NodeEnds failed = ends_of(pair[1], 0);
  failed.ends[0].wait_status = 7 << 8;
  failed.first = 0;
  REQUIRE(pair[1].settle(0, failed, nullptr).ok());
  for (int node = 0; node < 2; ++node) {
    const Outcome outcome = await_outcome(pair[node]);
    CHECK(outcome.rank == 2);
    CHECK(outcome.headline.find("rank 2 (host host1 pid 10) exited with code 7") !=
          std::string::npos);
  }
}

TEST_CASE("the end of an attempt for a new node is told again if the store has not confirmed it") {
  Pair pair;
  REQUIRE(pair[0].publish(endpoints_of(1)).ok());
  REQUIRE(pair[1].await_endpoints(1, soon()).ok());
  const auto released = std::make_shared<dt::Event>();
  pair.loops[0]->post([released] { (void)released->wait(soon()); });  // a busy machine
  CHECK_FALSE(pair[0].tell_regroup(1));
  released->set();
  // The first call takes effect now, before the next one.
  CHECK(pair[0].tell_regroup(1));
  for (int node = 0; node < 2; ++node) {
    bool regroup = false;
    while (!regroup) {
      await_wake(pair[node]);
      regroup = pair[node].take_news().regroup;
    }
  }
  // What has ended otherwise does not end for that, too.
  pair[0].begin(2);
  pair[1].begin(2);
  pair[1].tell_failure(2, 1);
  CHECK(pair[0].tell_regroup(2));
  CHECK_FALSE(pair[0].take_news().regroup);
}

TEST_CASE("node 0 alone hears how each rank of another node ended") {
  Pair pair;
  REQUIRE(pair[0].publish(endpoints_of(1)).ok());
  REQUIRE(pair[1].await_endpoints(1, soon()).ok());
  pair[1].tell_end(0, {3, "h", 6}, "exited with code 0 after 0.1 s");  // of the attempt before
  pair[1].tell_end(1, {2, "h", 7}, "killed by SIGKILL after 0.3 s");
  pair[1].tell_end(1, {3, "h", 0}, "was not started (no program)");
  std::vector<std::string> heard;
  while (heard.size() < 2) {
    await_wake(pair[0]);
    const FleetNews news = pair[0].take_news();
    CHECK_FALSE(news.failed);
    for (const auto& [rank, how] : news.ended) heard.push_back(rank.text() + " " + how);
  }
  CHECK(heard == std::vector<std::string>{"rank 2 (h pid 7) killed by SIGKILL after 0.3 s",
                                          "rank 3 (h) was not started (no program)"});
  // What node 1 hears next is for all.
  pair[0].tell_end(1, {0, "h", 5}, "exited with code 0 after 0.1 s");
  pair[0].tell_failure(1, 0);
  await_wake(pair[1]);
  const FleetNews news = pair[1].take_news();
  CHECK(news.failed);
  CHECK(news.ended.empty());
}

TEST_CASE("agents know each other after the meeting, and node 0's word counts") {
  std::atomic<int> verdicts = 0;
  Pair pair(nullptr, [&](FleetOptions* options) { options->on_verdict = [&] { ++verdicts; }; });
  CHECK(verdicts.load() == 1);  // node 0's
  for (int node = 0; node < 2; ++node) {
    const Fleet& fleet = pair[node];
    CHECK(fleet.node_rank() == node);
    CHECK(fleet.world_size() == 5);
    CHECK(fleet.own().first_rank == 2 * node);
    CHECK(fleet.nodes()[1].host == "host1");
    CHECK(fleet.nodes()[1].pid == 1001);
    CHECK(fleet.job_id() == "job of node 0");
    CHECK(fleet.max_restarts() == 3);
  }
  CHECK(pair[0].reachable_host() == "127.0.0.1");
}

TEST_CASE("node 0 tells where the ranks of an attempt meet") {
  Pair pair;
  REQUIRE(pair[0].publish(endpoints_of(4)).ok());
  const auto told = pair[1].await_endpoints(4, soon());
  REQUIRE(told.ok());
  CHECK(told.value().attempt == 4);
  CHECK(told.value().store_host == "10.0.0.1");
  CHECK(told.value().store_port == 4711);
  CHECK(told.value().master_host == "10.0.0.2");
  CHECK(told.value().master_port == 4712);
  const auto late = pair[1].await_endpoints(5, {Deadline::after_ms(50), nullptr});
  CHECK(late.status().code() == dt::Code::kTimeout);
}

TEST_CASE("a failure is heard, also by an agent that begins the attempt later") {
  Pair pair;
  REQUIRE(pair[0].publish(endpoints_of(0)).ok());
  pair[0].tell_failure(0, 1);
  await_wake(pair[1]);
  REQUIRE(pair[1].await_endpoints(0, soon()).ok());
  CHECK(pair[1].take_news().failed);
  CHECK_FALSE(pair[1].take_news().failed);
  // It is no news for the next attempt.
  REQUIRE(pair[0].publish(endpoints_of(1)).ok());
  REQUIRE(pair[1].await_endpoints(1, soon()).ok());
  CHECK_FALSE(pair[1].take_news().failed);
}

TEST_CASE("a signal to an agent is heard, and a second one means at once") {
  Pair pair;
  pair[1].tell_stop(0, SIGTERM, 1);
  await_wake(pair[0]);
  FleetNews news = pair[0].take_news();
  CHECK(news.stop_signal == SIGTERM);
  CHECK_FALSE(news.kill);
  pair[1].tell_stop(0, SIGINT, 2);
  await_wake(pair[0]);
  news = pair[0].take_news();
  CHECK(news.stop_signal == SIGINT);
  CHECK(news.kill);
}

TEST_CASE("what no agent says is refused with its text") {
  dt::Guarded<std::vector<std::string>> said;
  const auto sink = [&](dt::LogLevel, const char* text) {
    said.with([&](std::vector<std::string>& lines) { lines.emplace_back(text); });
  };
  Pair pair(std::make_shared<dt::Logger>(dt::LogLevel::kWarning, sink));
  REQUIRE(pair[0].publish(endpoints_of(0)).ok());
  REQUIRE(pair[1].await_endpoints(0, soon()).ok());
  const auto loop = dt::net::Loop::start().value();
  dt::store::ClientOptions options;
  options.host = "127.0.0.1";
  options.port = pair.port.number;
  options.attempt = -1;
  auto foreign = dt::store::Client::connect(loop.get(), options, soon());
  REQUIRE_MESSAGE(foreign.ok(), foreign.status().message());
  const std::vector<std::string> wrong = {"end/0x",       "end/",       "end/-1",
                                          "stop/15",      "stop/15/0",  "stop/a/1",
                                          "stop/99999/1", "stop/15/1/", "pause/1"};
  for (const std::string& scope : wrong) {
    REQUIRE(foreign.value()->report_failure(scope, {}, soon()).ok());
  }
  pair[1].tell_stop(0, SIGTERM, 1);
  await_wake(pair[0]);
  const FleetNews news = pair[0].take_news();
  CHECK(news.stop_signal == SIGTERM);
  CHECK_FALSE(news.kill);
  CHECK_FALSE(news.failed);
  said.with([&](std::vector<std::string>& lines) {
    for (const std::string& scope : wrong) {
      CAPTURE(scope);
      CHECK(std::count(lines.begin(), lines.end(),
                       "another agent says \"" + scope +
                           "\", which makes no sense here and is ignored; use the same release of "
                           "dt on all nodes") >= 1);
    }
  });
}

TEST_CASE("without a thread for it the agreement is an error, not the end of the process") {
  Pair pair;
  pthread_attr_t usual;
  pthread_attr_t huge;
  REQUIRE(pthread_getattr_default_np(&usual) == 0);
  REQUIRE(pthread_getattr_default_np(&huge) == 0);
  REQUIRE(pthread_attr_setstacksize(&huge, size_t{1} << 50) == 0);  // no address space has it
  REQUIRE(pthread_setattr_default_np(&huge) == 0);
  const Status status =
      pair[0].settle(0, ends_of(pair[0], 0), [] { return dt::store::FirstFailure{}; });
  CHECK(pthread_setattr_default_np(&usual) == 0);
  CHECK(status.code() == dt::Code::kSystem);
  CHECK(status.message() ==
        "cannot start the thread that asks the other nodes how they ended: Resource temporarily "
        "unavailable; raise the limit of processes (ulimit -u)");
}

TEST_CASE("all agents get one outcome, from what every node told") {
  Pair pair;
  REQUIRE(pair[0].publish(endpoints_of(0)).ok());
  REQUIRE(pair[1].await_endpoints(0, soon()).ok());
  pair[1].tell_failure(0, 3);
  NodeEnds failed = ends_of(pair[1], 7 << 8);
  failed.first = 1;
  failed.candidates = {{1, false, {"it was me"}}};
  REQUIRE(pair[1].settle(0, failed, {}).ok());
  REQUIRE(
      pair[0].settle(0, ends_of(pair[0], SIGTERM), [] { return dt::store::FirstFailure{}; }).ok());
  for (int node = 0; node < 2; ++node) {
    const Outcome outcome = await_outcome(pair[node]);
    CHECK(outcome.rank == 3);
    CHECK(outcome.exit_code == 7);
    CHECK(outcome.restart);
    CHECK(outcome.headline ==
          "dt run: restart 1 of 3 after rank 3 (host host1 pid 10) exited with code 7 after 0.0 s");
    CHECK(outcome.tail == std::vector<std::string>{"it was me"});
  }
}

TEST_CASE("a node that does not learn the outcome in time gives up, though node 0 answers") {
  Pair pair(nullptr, [](FleetOptions* options) { options->settle_timeout_ms = 100; });
  REQUIRE(pair[0].publish(endpoints_of(0)).ok());
  REQUIRE(pair[1].await_endpoints(0, soon()).ok());
  pair[1].tell_failure(0, 3);
  REQUIRE(pair[1].settle(0, ends_of(pair[1], 7 << 8), {}).ok());
  const Outcome outcome = await_outcome(pair[1]);
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.headline.starts_with(
      "node 0 (host host0, dt run pid 1000) does not say how its ranks ended, "));
}

TEST_CASE("a node that is gone is named, and nobody waits for it") {
  for (const int victim : {1, 0}) {
    Pair pair;
    const int witness = 1 - victim;
    pair.fleets[victim].reset();
    await_wake(pair[witness]);
    CHECK(pair[witness].take_news().lost);
    REQUIRE(
        pair[witness]
            .settle(0, ends_of(pair[witness], SIGTERM), [] { return dt::store::FirstFailure{}; })
            .ok());
    const Outcome outcome = await_outcome(pair[witness]);
    CHECK(outcome.exit_code == 1);
    CHECK(outcome.headline ==
          "node " + std::to_string(victim) + " (host host" + std::to_string(victim) +
              ", dt run pid " + std::to_string(1000 + victim) +
              ") is gone: its agent was killed, or its machine or network is down; it held ranks " +
              (victim == 0 ? "0, 1" : "2-4") + "; look at its log, then start the job again");
  }
}

TEST_CASE("the meeting ends by its deadline and by its interrupt") {
  const Port port;
  const auto loop = dt::net::Loop::start().value();
  FleetOptions options = options_of(0, 2, port.number);
  options.timeout_ms = 100;
  bool decided = false;
  options.on_verdict = [&] { decided = true; };
  const auto late = Fleet::meet(loop.get(), options, {Deadline::after_ms(100), nullptr});
  CHECK(
      late.status().message() ==
      "1 of 2 nodes did not come to 127.0.0.1:" + std::to_string(port.number) +
          " within 0.1 s: missing node 1; there: 0 (host host0 pid 1000); start dt run there with "
          "the same --rendezvous and --nnodes, or raise rendezvous.timeout_ms");
  Interrupt interrupt;
  interrupt.fire(Status(dt::Code::kAborted, "enough"));
  const auto stopped = Fleet::meet(loop.get(), options, {Deadline::after_ms(kTestMs), &interrupt});
  CHECK(stopped.status().message() == "enough");
  CHECK_FALSE(decided);
}

TEST_CASE("node 0 says whom it waits for, and that its own name does not resolve yet") {
  const Port port;
  const auto loop = dt::net::Loop::start().value();
  dt::Guarded<std::vector<std::string>> said;
  Interrupt reminded;
  Interrupt tried_again;
  const auto sink = [&](dt::LogLevel, const char* text) {
    said.with([&](std::vector<std::string>& lines) { lines.emplace_back(text); });
    reminded.fire(Status(dt::Code::kAborted, "reminded"));
    if (std::string(text).find("; trying again for ") != std::string::npos) {
      tried_again.fire(Status(dt::Code::kAborted, "enough"));
    }
  };
  FleetOptions options = options_of(0, 3, port.number);
  options.remind_ms = 1;
  options.logger = std::make_shared<dt::Logger>(dt::LogLevel::kWarning, sink);
  const auto alone = Fleet::meet(loop.get(), options, {Deadline::after_ms(kTestMs), &reminded});
  CHECK(alone.status().message() == "reminded");
  const auto first = [&] {
    return said.with([](std::vector<std::string>& lines) {
      const std::string line = lines.empty() ? "" : lines.front();
      lines.clear();
      return line;
    });
  };
  CHECK(first() == "2 of 3 nodes have not come to 127.0.0.1:" + std::to_string(port.number) +
                       " yet: nodes 1, 2");
  options.node.host = "no-such-host.invalid";
  const auto met = Fleet::meet(loop.get(), options, {Deadline::after_ms(kTestMs), &tried_again});
  CHECK(met.status().message() == "enough");
  const std::string line = first();
  CHECK(line.find("\"no-such-host.invalid\" cannot be resolved") != std::string::npos);
  CHECK(line.find("; trying again for ") != std::string::npos);
  CHECK(line.substr(line.size() - 2) == " s");
  const auto late = Fleet::meet(loop.get(), options, {Deadline::after_ms(50), nullptr});
  CHECK(late.status().message().find("\"no-such-host.invalid\" cannot be resolved") !=
        std::string::npos);
}

TEST_CASE("an address that is not node 0's own is refused with the way out") {
  const auto loop = dt::net::Loop::start().value();
  FleetOptions options = options_of(0, 2, 4000);
  options.node.host = "192.0.2.1";  // TEST-NET-1: nobody's
  const auto met = Fleet::meet(loop.get(), options, soon());
  REQUIRE_FALSE(met.ok());
  const std::string& text = met.status().message();
  CHECK(text.rfind("node 0 (host host0 pid 1000) cannot serve the meeting of the nodes: ", 0) == 0);
  CHECK(text.find("the rendezvous (192.0.2.1:4000) must be an address of node 0 and a port that is "
                  "free there") != std::string::npos);
}
