// SPDX-License-Identifier: Apache-2.0
#include "job/host_links.h"

#include <doctest/doctest.h>

using namespace dt;
using namespace dt::job;

namespace {

LinkRecord record(const std::string& network, const std::string& address) {
  return {network, address, 4711, "eth0 " + address + "/24"};
}

}  // namespace

TEST_CASE("HostLinks: a record survives its encoding, and other bytes are none") {
  const LinkRecord record{"boot/4026531840", "2001:db8::5", 29600, "eth0 2001:db8::5/64"};
  LinkRecord found;
  REQUIRE(LinkRecord::decode(record.encode(), &found));
  CHECK(found.network_id == record.network_id);
  CHECK(found.address == record.address);
  CHECK(found.port == record.port);
  CHECK(found.interfaces == record.interfaces);
  const std::string bytes = record.encode();
  for (size_t length = 0; length < bytes.size(); ++length) {
    CHECK(!LinkRecord::decode(std::string_view(bytes).substr(0, length), &found));
  }
  CHECK(!LinkRecord::decode(bytes + "x", &found));
}

TEST_CASE("HostLinks: addresses that cannot reach another host are an error with both sides") {
  CHECK(check_addresses("rank 0", record("a", "10.0.0.1"), "rank 1", record("b", "10.0.0.2")).ok());
  // One network stack: hosts by name only.
  CHECK(
      check_addresses("rank 0", record("a", "127.0.0.1"), "rank 1", record("a", "127.0.0.1")).ok());
  const Status same = check_addresses("rank 0 (hostA)", record("a", "172.17.0.1"),
                                      "rank 1 (hostB pid 7)", record("b", "172.17.0.1"));
  CHECK(same.code() == Code::kConfig);
  CHECK(same.message() ==
        "two hosts gave the same address: rank 0 (hostA) is at 172.17.0.1 and rank 1 (hostB pid 7) "
        "at 172.17.0.1; the first host has eth0 172.17.0.1/24; the second has eth0 172.17.0.1/24; "
        "choose with network.interface (a name, a network as 10.1.0.0/16, or an address), and give "
        "a job.master_addr that is no loopback address");
  const Status loopback =
      check_addresses("rank 0", record("a", "10.0.0.1"), "rank 1", record("b", "127.0.0.1"));
  CHECK(loopback.message().find("a loopback address reaches no other host: rank 0 is at 10.0.0.1 "
                                "and rank 1 at 127.0.0.1; ") == 0);
}
