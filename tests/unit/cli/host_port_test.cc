// SPDX-License-Identifier: Apache-2.0
#include "cli/host_port.h"

#include <doctest/doctest.h>

using dt::cli::parse_host_port;

TEST_CASE("an address is a host and a port, and nothing else") {
  CHECK(parse_host_port("node0:29500").value().host == "node0");
  CHECK(parse_host_port("node0:29500").value().port == 29500);
  CHECK(parse_host_port("[::1]:1").value().host == "::1");
  CHECK(parse_host_port("::1:65535").value().host == "::1");
  for (const char* bad : {"", ":", "h", "h:", ":29500", "[]:29500", "h: +80", "h:+80", "h: 80",
                          "h:80 ", "h:-1", "h:0", "h:65536", "h:0x50", "h:99999999999999999999"}) {
    CAPTURE(std::string(bad));
    const auto parsed = parse_host_port(bad);
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.status().code() == dt::Code::kInvalidArgument);
    CHECK(parsed.status().message() ==
          "\"" + std::string(bad) + "\" is no address; write host:port, or [::1]:port");
  }
}
