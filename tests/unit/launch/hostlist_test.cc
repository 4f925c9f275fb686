// SPDX-License-Identifier: Apache-2.0
#include "launch/hostlist.h"

#include <doctest/doctest.h>

using dt::launch::expand_hostlist;

namespace {

std::string joined(const std::string& text) {
  const auto hosts = expand_hostlist(text);
  INFO(hosts.status().message());
  REQUIRE(hosts.ok());
  std::string all;
  for (const std::string& host : hosts.value()) all += (all.empty() ? "" : " ") + host;
  return all;
}

std::string error_of(const std::string& text, size_t limit = 100000) {
  const auto hosts = expand_hostlist(text, limit);
  REQUIRE_FALSE(hosts.ok());
  CHECK(hosts.status().code() == dt::Code::kConfig);
  return hosts.status().message();
}

}  // namespace

TEST_CASE("expand_hostlist: keeps order and zeros, multiplies brackets left slowest") {
  CHECK(joined("") == "");
  CHECK(joined(" ,, ") == "");
  CHECK(joined("gpu4") == "gpu4");
  CHECK(joined("node[01-03,7],gpu4,rack[1-2]n[1-4]") ==
        "node01 node02 node03 node7 gpu4 rack1n1 rack1n2 rack1n3 rack1n4 rack2n1 rack2n2 rack2n3 "
        "rack2n4");
  CHECK(joined("n[5,1-2],n1") == "n5 n1 n2 n1");
  CHECK(joined("n[8-11]") == "n8 n9 n10 n11");
  CHECK(joined("n[008-11]") == "n008 n009 n010 n011");
  CHECK(joined("n[98-101] b") == "n98 n99 n100 n101 b");
  CHECK(joined("r[0-1]n[00-02]") == "r0n00 r0n01 r0n02 r1n00 r1n01 r1n02");
  CHECK(joined("[1-2]") == "1 2");
  CHECK(joined("n[1-2]-ib") == "n1-ib n2-ib");
}

TEST_CASE("expand_hostlist: faults are told with their position") {
  CHECK(error_of("n[1-2") == "host list \"n[1-2\", position 2: [ without ]");
  CHECK(error_of("a,n[") == "host list \"a,n[\", position 4: [ without ]");
  CHECK(error_of("n]") == "host list \"n]\", position 2: ] without [");
  CHECK(error_of("n[]") == "host list \"n[]\", position 3: expected a number");
  CHECK(error_of("n[1,]") == "host list \"n[1,]\", position 5: expected a number");
  CHECK(error_of("n[3-1]") == "host list \"n[3-1]\", position 3: the range runs backwards");
  CHECK(error_of("n[1-2-3]") ==
        "host list \"n[1-2-3]\", position 6: expected a digit, \"-\", \",\" or \"]\"");
  CHECK(error_of("n[1[2]]").substr(0, 32) == "host list \"n[1[2]]\", position 4:");
  CHECK(error_of("n[12345678901]") ==
        "host list \"n[12345678901]\", position 3: a number of more than 9 digits");
  CHECK(error_of("a\x01") == "host list \"a?\", position 2: a character that no host name has");
  CHECK(error_of(std::string(256, 'n')).find("a name is longer than 255 bytes") !=
        std::string::npos);
}

TEST_CASE("expand_hostlist: a short text cannot ask for too many names") {
  CHECK(error_of("a[0-99999999]b[0-99999999]") ==
        "host list \"a[0-99999999]b[0-99999999]\", position 1: more than 100000 hosts");
  CHECK(error_of("x,a[1-3]", 3) == "host list \"x,a[1-3]\", position 3: more than 3 hosts");
  CHECK(expand_hostlist("a[1-3]", 3).ok());
  CHECK(error_of("a[0-9][0-9][0-9][0-9][0-9][0-9]").find("more than 100000") != std::string::npos);
  CHECK(expand_hostlist("a[0-9][0-9][0-9][0-9][0-9]").value().size() == 100000);
  CHECK_FALSE(expand_hostlist("a", 0).ok());
  CHECK(expand_hostlist("", 0).ok());
}
