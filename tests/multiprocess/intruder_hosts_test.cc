// SPDX-License-Identifier: Apache-2.0
// Who can reach the ports of a job over two hosts, and is no part of it: that at which the agents
// of dt run meet, and those at which ranks listen for ranks of the other host. The hosts are
// pretended on one machine by job.host_id. The job goes on undisturbed, ends well, and nobody
// grows.
#include <memory>

#include "../sanitizers.h"
#include "dt_run.h"
#include "held_port.h"
#include "intruder.h"

using dt::net::Purpose;
using dt::net::SecurityMode;
using namespace dt::test;
using namespace dt::test::intruder;

namespace {

constexpr size_t kHostGarbageBytes = size_t{16} << 20;
constexpr size_t kHostCrowd = 3000;  // far above what a rank keeps
constexpr char kAnswerMark[] = "DToW";
// A rank works on meanwhile, and sanitizers keep a part of what it frees: up to 256 MiB.
constexpr int64_t kRankGrowthBytes =
    dt::test::kThreadSanitizer || dt::test::kAddressSanitizer ? 768 << 20 : kGrowthBytes;

struct MeshHello {
  uint64_t magic = 0x316f'6c6c'6548'5444;
  uint64_t session = 0;  // of no job
  uint32_t protocol = 1;
  int32_t from = 0;
  int32_t to = 1;
  uint32_t name_bytes = 0;
};

std::string bytes_of(const MeshHello& hello) {
  return std::string(reinterpret_cast<const char*>(&hello), sizeof hello);
}

/// A job of two agents with one rank each that goes on until it is told to stop.
class TwoHosts {
 public:
  explicit TwoHosts(const std::string& mode) {
    for (int node = 0; node < 2; ++node) {
      Process::Options options;
      options.environment = {"DT_TOKEN=" + std::string(kToken), "DT_SECURITY_MODE=" + mode,
                             "DT_HOST_ID=host" + std::to_string(node)};
      agents_.push_back(std::make_unique<Process>(
          dt_run({"-n", "1", "--nnodes", "2", "--node-rank", std::to_string(node), "--rendezvous",
                  "127.0.0.1:" + std::to_string(meeting_.port())},
                 {"until", stop_.name()}),
          options));
    }
    for (const auto& agent : agents_) {
      REQUIRE(agent->wait_for_output("] store ", 1));
      ranks_.push_back(ready_pids(agent->out).at(0));
    }
    store_port_ = store_port(agents_[0]->out);
    REQUIRE(store_port_ != 0);
  }

  uint16_t meeting_port() const { return static_cast<uint16_t>(meeting_.port()); }
  int64_t agent_bytes() const { return resident_bytes(agents_[0]->pid()); }
  int64_t rank_bytes(size_t rank) const { return resident_bytes(ranks_[rank]); }
  /// Where the rank listens for those of the other host, as it has told them.
  uint16_t mesh_port(int rank, SecurityMode mode) const {
    const auto loop = std::move(dt::net::Loop::start()).value();
    dt::store::ClientOptions options;
    options.host = "127.0.0.1";
    options.port = store_port_;
    options.attempt = -1;
    options.security = secure(mode, kToken);
    const dt::Wait wait{dt::Deadline::after_ms(kPatienceMs)};
    const auto client = dt::store::Client::connect(loop.get(), options, wait);
    REQUIRE(client.ok());
    const auto record = client.value()->get(dt::store::join_record_key(rank), wait);
    dt::store::JoinRecord found;
    REQUIRE(record.ok());
    REQUIRE(decode(record.value(), &found));
    return found.reach.port;
  }
  void end_well() {
    stop_.make();
    for (const auto& agent : agents_) {
      const int code = agent->wait();
      INFO(agent->out);
      INFO(agent->err);
      CHECK(code == 0);
      CHECK(count_of(agent->out, "] good to the end\n") == 1);
      CHECK(count_of(agent->err + agent->out, kToken) == 0);
    }
  }

 private:
  const StopFile stop_;
  const HeldPort meeting_;
  std::vector<std::unique_ptr<Process>> agents_;
  std::vector<pid_t> ranks_;
  uint16_t store_port_ = 0;
};

/// A recorded greeting, with what followed it, is worth nothing on another connection.
void replay_to_rank(uint16_t port, SecurityMode mode) {
  std::string words;
  const Raw honest(port);
  REQUIRE(greet(honest, mode, Purpose::kMesh, &words));
  const Raw again(port);
  (void)again.say(words + bytes_of({}));
  again.end();
  CHECK(again.hear_all().find(kAnswerMark) == std::string::npos);
}

/// The keys of the store open no connection between ranks.
void come_from_the_store(uint16_t port, SecurityMode mode) {
  std::string words;
  CHECK_FALSE(greet(Raw(port), mode, Purpose::kStore, &words));
}

/// Who has the token and belongs to another job is told so; who promises too much is not read.
void come_in(uint16_t port, SecurityMode mode) {
  std::string words;
  const Raw member(port);
  REQUIRE(greet(member, mode, Purpose::kMesh, &words));
  if (mode != SecurityMode::kAuth) return;
  CHECK(member.say(bytes_of({})));
  member.end();
  CHECK(member.hear_all().find("belongs to another job or attempt") != std::string::npos);
  const Raw greedy(port);
  REQUIRE(greet(greedy, mode, Purpose::kMesh, &words));
  MeshHello hello;
  hello.name_bytes = 0xffff'fff0;
  CHECK(greedy.say(bytes_of(hello)));
  CHECK(greedy.hear_all().empty());
}

}  // namespace

TEST_CASE("intruders at the ports of agents and ranks disturb nothing, and nobody grows") {
  for (const SecurityMode mode : {SecurityMode::kAuth, SecurityMode::kEncrypt}) {
    CAPTURE(std::string(mode_name(mode)));
    TwoHosts job(mode_name(mode));
    const uint16_t agents = job.meeting_port();
    const uint16_t rank = job.mesh_port(1, mode);
    REQUIRE(rank != 0);
    knock_without_the_token(agents, mode);
    const int64_t agent_before = job.agent_bytes();
    const int64_t rank_before = job.rank_bytes(1);

    replay_to_rank(rank, mode);
    come_from_the_store(rank, mode);
    truncate(rank, mode, Purpose::kMesh);
    truncate(agents, mode, Purpose::kStore);
    come_in(rank, mode);
    send_garbage(rank, kHostGarbageBytes);
    send_garbage(agents, kHostGarbageBytes);
    const std::vector<Raw> at_rank = crowd(rank, kHostCrowd);
    const std::vector<Raw> at_agents = crowd(agents, kHostCrowd);
    MESSAGE(at_rank.size() << " idle connections to a rank, " << at_agents.size()
                           << " to the agents");
    CHECK(at_rank.size() > 500);
    CHECK(at_agents.size() > 500);
    come_in(rank, mode);  // beside them
    CHECK(knock(agents, secure(mode, kToken)).ok());

    const int64_t agent_growth = job.agent_bytes() - agent_before;
    const int64_t rank_growth = job.rank_bytes(1) - rank_before;
    MESSAGE("node 0's agent grew by " << agent_growth / 1024 << " KiB, the rank by "
                                      << rank_growth / 1024 << " KiB");
    CHECK(agent_growth < kGrowthBytes);
    CHECK(rank_growth < kRankGrowthBytes);
    job.end_well();
  }
}
