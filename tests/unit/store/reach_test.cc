// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "store/join.h"
#include "store/messages.h"

using namespace dt;
using namespace dt::store;

namespace {

constexpr const char* kAdvice =
    "choose with network.interface (a name, a network as 10.1.0.0/16, or an address), and give a "
    "job.master_addr that is no loopback address";

/// A rank on a host of its own, which has an interface with this address and docker0.
JoinRecord record_of(int32_t rank, const std::string& address) {
  JoinRecord record;
  record.rank = rank;
  record.host_name = "host" + std::to_string(rank);
  record.host_id = "id " + record.host_name;
  record.pid = 10 + rank;
  record.reach.network_id = "stack " + record.host_name;
  record.reach.address = address;
  record.reach.port = 4711;
  record.reach.interfaces = {"eth0 " + address + "/24"};
  return record;
}

std::vector<JoinRecord> records_of(const std::vector<std::string>& addresses) {
  std::vector<JoinRecord> records;
  for (const std::string& address : addresses) {
    records.push_back(record_of(static_cast<int32_t>(records.size()), address));
  }
  return records;
}

}  // namespace

TEST_CASE("JoinRecord: where a rank listens survives the encoding, and half of it is none") {
  JoinRecord record = record_of(3, "2001:db8::5");
  record.reach.problem = "why not";
  record.payload = "more";
  const std::string bytes = encode(record);
  JoinRecord found;
  REQUIRE(decode(bytes, &found));
  CHECK(found.reach.network_id == record.reach.network_id);
  CHECK(found.reach.address == record.reach.address);
  CHECK(found.reach.port == record.reach.port);
  CHECK(found.reach.interfaces == record.reach.interfaces);
  CHECK(found.reach.problem == record.reach.problem);
  CHECK(encode(found) == bytes);
  for (size_t length = 0; length < bytes.size(); ++length) {
    JoinRecord part;
    CHECK(!decode(std::string_view(bytes).substr(0, length), &part));
  }
}

TEST_CASE("compare_addresses: what all can reach is good") {
  CHECK(compare_addresses(records_of({"10.0.0.1", "10.0.0.2", "10.0.0.3"})).ok());
  CHECK(compare_addresses(records_of({"2001:db8::1", "2001:db8::2"})).ok());
  // One host.
  auto records = records_of({"127.0.0.1", "127.0.0.1"});
  records[1].host_id = records[0].host_id;
  records[1].reach = {};
  records[1].reach.network_id = "stack";
  records[1].reach.problem = "no port is free";
  CHECK(compare_addresses(records).ok());
  // Two by name, one network stack.
  records = records_of({"127.0.0.1", "127.0.0.1"});
  records[1].reach.network_id = records[0].reach.network_id;
  CHECK(compare_addresses(records).ok());
  // Agents, which nobody calls.
  records = records_of({"", ""});
  for (JoinRecord& record : records) record.reach = {};
  CHECK(compare_addresses(records).ok());
  // The same bridge on every host, which nobody chose.
  records = records_of({"10.0.0.1", "10.0.0.2"});
  for (JoinRecord& record : records) record.reach.interfaces.push_back("docker0 172.17.0.1/16");
  CHECK(compare_addresses(records).ok());
}

TEST_CASE("compare_addresses: two hosts with one address, neighbours or not") {
  const Status status = compare_addresses(records_of({"172.17.0.1", "10.0.0.2", "172.17.0.1"}));
  CHECK(status.code() == Code::kConfig);
  CHECK(status.info().rank == 0);
  CHECK(status.message() ==
        std::string("two hosts have the same address: rank 0 (host0 pid 10) is at 172.17.0.1, and "
                    "rank 2 (host2 pid 12) (at 172.17.0.1) has that address too; host0 has eth0 "
                    "172.17.0.1/24; host2 has eth0 172.17.0.1/24; ") +
            kAdvice);
}

TEST_CASE("compare_addresses: an address that another host has too, though it chose another") {
  auto records = records_of({"10.0.0.1", "172.17.0.1"});
  records[0].reach.interfaces.push_back("docker0 172.17.0.1/16");
  const Status status = compare_addresses(records);
  CHECK(status.info().rank == 1);
  CHECK(status.message() ==
        std::string("two hosts have the same address: rank 1 (host1 pid 11) is at 172.17.0.1, and "
                    "rank 0 (host0 pid 10) (at 10.0.0.1) has that address too; host1 has eth0 "
                    "172.17.0.1/24; host0 has eth0 10.0.0.1/24, docker0 172.17.0.1/16; ") +
            kAdvice);
}

TEST_CASE("compare_addresses: loopback") {
  for (const char* loopback : {"127.0.0.1", "127.0.1.1", "::1"}) {
    const Status status = compare_addresses(records_of({"10.0.0.1", loopback}));
    CHECK(status.code() == Code::kConfig);
    CHECK(status.info().rank == 1);
    CHECK(status.message() ==
          std::string("a loopback address reaches no other host: rank 1 (host1 pid 11) is at ") +
              loopback + "; host1 has eth0 " + loopback + "/24; host0 has eth0 10.0.0.1/24; " +
              kAdvice);
  }
}

TEST_CASE("compare_addresses: a rank that listens nowhere says why") {
  auto records = records_of({"10.0.0.1", ""});
  records[1].reach.problem = "every port from 1 to 2 is in use";
  const Status status = compare_addresses(records);
  CHECK(status.info().rank == 1);
  CHECK(status.info().host == "host1");
  CHECK(status.message() ==
        "rank 1 (host1 pid 11) cannot be reached by ranks of other hosts: every port from 1 to 2 "
        "is in use");
}

TEST_CASE("compare_addresses: many interfaces are not all shown") {
  auto records = records_of({"10.0.0.1", "10.0.0.1"});
  for (int i = 0; i < 20; ++i) records[0].reach.interfaces.push_back("veth" + std::to_string(i));
  CHECK(compare_addresses(records).message().find("veth6 and 13 more; host1 has eth0") !=
        std::string::npos);
}
