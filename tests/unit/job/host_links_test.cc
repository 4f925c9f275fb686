// SPDX-License-Identifier: Apache-2.0
#include "job/host_links.h"

#include <doctest/doctest.h>

#include "net/address.h"
#include "transport/tcp/socket.h"

using namespace dt;
using namespace dt::job;

namespace {

constexpr int64_t kPatienceMs = 1'000;

/// Rank 0, whose next host has rank 1: it listens and says nothing.
struct Ring {
  tcp::Socket silent =
      std::move(tcp::listen_on(net::literal_address("127.0.0.1", 0).value(), {})).value();
  store::Verdict verdict;
  HostLinks::Store store;

  Ring() {
    verdict.session = 77;
    verdict.world_size = 2;
    verdict.node_count = 2;
    verdict.hosts = {{"hostA", 0, {0}}, {"hostB", 1, {1}}};
    store.multi_get = [port = silent.local().port()](const std::vector<std::string>& keys,
                                                     const Wait&) {
      CHECK(keys == std::vector<std::string>{store::join_record_key(1)});
      store::JoinRecord record;
      record.rank = 1;
      record.host_name = "hostB";
      record.pid = 12;
      record.reach.address = "127.0.0.1";
      record.reach.port = port;
      return std::vector<std::optional<std::string>>{encode(record)};
    };
  }

  Status connect(const Result<bool>& answers) {
    store.answers = [answers](int32_t rank, const Wait&) {
      CHECK(rank == 1);
      return answers;
    };
    auto links = HostLinks::open(Config(), {0, "hostA", "stack"}, "127.0.0.1", "127.0.0.1");
    REQUIRE(links.ok());
    return links.value()->connect(verdict, store, Wait{Deadline::after_ms(kPatienceMs), nullptr});
  }
};

bool contains(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("HostLinks: a blocked way is told from a dead host by asking through the store") {
  Ring ring;
  const Status blocked = ring.connect(true);
  CHECK(blocked.code() == Code::kSystem);
  CHECK(blocked.info().rank == 1);
  CHECK(blocked.info().host == "hostB");
  CHECK(blocked.message().find("dt_init: rank 0 (hostA) at 127.0.0.1:") == 0);
  CHECK(contains(blocked, " cannot reach rank 1 (hostB pid 12) at 127.0.0.1:"));
  CHECK(contains(blocked, "took the connection and does not answer"));
  CHECK(contains(blocked,
                 "; rank 1 (hostB pid 12) does answer through the store, so its host is "
                 "up and the way between the two is blocked"));

  const Status dead = ring.connect(false);
  CHECK(dead.code() == Code::kPeerLost);
  CHECK(dead.info().rank == 1);
  CHECK(contains(dead,
                 "; rank 1 (hostB pid 12) does not answer through the store either: its "
                 "process is stopped, or its host is down or off the network"));

  const Status unknown = ring.connect(Status(Code::kTimeout, "no answer from the store"));
  CHECK(unknown.code() == Code::kTimeout);
  CHECK(contains(unknown,
                 "; whether rank 1 (hostB pid 12) is up is not known, because the store "
                 "does not say: no answer from the store"));
}

TEST_CASE("HostLinks: a rank that cannot listen says so in the join") {
  const HostLinks::Self self{0, "hostA", "stack"};
  const auto opened = HostLinks::open(Config(), self, "127.0.0.1", "not an address");
  REQUIRE(!opened.ok());
  const store::Reach reach = HostLinks::reach_of(opened, self);
  CHECK(reach.network_id == "stack");
  CHECK(reach.address.empty());
  CHECK(reach.problem == opened.status().message());
}

TEST_CASE("HostLinks: a verdict whose next host is empty is an error") {
  Ring ring;
  ring.verdict.hosts[1].ranks.clear();
  CHECK(ring.connect(true).code() == Code::kInternal);
}
