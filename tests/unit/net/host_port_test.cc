// SPDX-License-Identifier: Apache-2.0
#include "net/host_port.h"

#include <doctest/doctest.h>

using dt::net::parse_host;
using dt::net::parse_host_maybe_port;
using dt::net::parse_host_port;

TEST_CASE("host_port: an address is a host and a port, and nothing else") {
  CHECK(parse_host_port("node0:29500").value().host == "node0");
  CHECK(parse_host_port("node0:29500").value().port == 29500);
  CHECK(parse_host_port("10.0.0.7:065535").value().port == 65535);
  CHECK(parse_host_port("[::1]:1").value().host == "::1");
  CHECK(parse_host_port("[fe80::1%eth0]:1").value().host == "fe80::1%eth0");
  for (const char* bad :
       {"",        ":",       "h",       "h:",      ":29500",  "[]:29500",
        "h: +80",  "h:+80",   "h: 80",   "h:80 ",   "h:-1",    "h:0",
        "h:65536", "h:0x50",  "::1:80",  "[::1]",   "[h]:80",  "h:99999999999999999999",
        "a b:80",  "[::1]80", "[::1:80", "::1]:80", "h:80:80", "[::1]:"}) {
    CAPTURE(std::string(bad));
    const auto parsed = parse_host_port(bad);
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.status().code() == dt::Code::kConfig);
    CHECK(parsed.status().message() ==
          "\"" + std::string(bad) + "\" is no address; write host:port, or [::1]:port");
  }
}

TEST_CASE("host_port: the port may be left out where that is meant") {
  CHECK(parse_host_maybe_port("node0").value().host == "node0");
  CHECK(parse_host_maybe_port("node0").value().port == 0);
  CHECK(parse_host_maybe_port("[fd00::1]").value().host == "fd00::1");
  CHECK(parse_host_maybe_port("[fd00::1]:5").value().port == 5);
  for (const char* bad : {"", "fd00::1", "h:", "h:x", "[h]", ":5", "[", "]", ":]"}) {
    CAPTURE(std::string(bad));
    CHECK_FALSE(parse_host_maybe_port(bad).has_value());
  }
}

TEST_CASE("host_port: a host alone, an IPv6 address with or without brackets") {
  CHECK(parse_host("fd00::1") == "fd00::1");
  CHECK(parse_host("[fd00::1]") == "fd00::1");
  CHECK(parse_host("train-0.train_a") == "train-0.train_a");
  CHECK(parse_host(std::string(255, 'h')).has_value());
  for (const std::string& bad :
       {std::string(256, 'h'), std::string("h:5"), std::string("a b"), std::string("[h]"),
        std::string("fe80::1%"), std::string(), std::string("fe80::1\0x", 9)}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_host(bad).has_value());
  }
}
