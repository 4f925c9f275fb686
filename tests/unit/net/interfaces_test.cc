// SPDX-License-Identifier: Apache-2.0
#include "net/interfaces.h"

#include <doctest/doctest.h>

using namespace dt;
using namespace dt::net;

namespace {

Address address(const std::string& text) { return resolve_now(text, 0, false).value()[0]; }

std::vector<Interface> host() {
  return {{"lo", address("127.0.0.1"), 8},
          {"eth0", address("10.0.0.5"), 24},
          {"docker0", address("172.17.0.1"), 16},
          {"ib0", address("192.168.9.5"), 20},
          {"lo", address("::1"), 128},
          {"eth0", address("fe80::5"), 64},
          {"eth0", address("2001:db8::5"), 64}};
}

std::string chosen(const std::string& wanted, const std::string& rendezvous) {
  const auto found = choose_address(wanted, address(rendezvous), host());
  return found.ok() ? found.value().host() : found.status().message();
}

}  // namespace

TEST_CASE("Interfaces: a name, a network or an address chooses; the rendezvous says the protocol") {
  CHECK(chosen("eth0", "10.0.0.1") == "10.0.0.5");
  CHECK(chosen("eth0", "2001:db8::1") == "2001:db8::5");
  CHECK(chosen("ib0", "10.0.0.1") == "192.168.9.5");
  CHECK(chosen("192.168.0.0/16", "10.0.0.1") == "192.168.9.5");
  CHECK(chosen("10.0.0.0/8", "10.0.0.1") == "10.0.0.5");
  CHECK(chosen("2001:db8::/32", "10.0.0.1") == "2001:db8::5");
  CHECK(chosen("192.168.9.5", "10.0.0.1") == "192.168.9.5");
}

TEST_CASE("Interfaces: what this host has not is an error that lists what it has") {
  for (const char* wrong : {"eth1", "eth", "10.0.1.0/24", "10.0.0.6", "10.0.0.0/x", "nonsense/8"}) {
    const Status status = choose_address(wrong, address("10.0.0.1"), host()).status();
    CHECK(status.code() == Code::kConfig);
    CHECK(status.message() ==
          format("network.interface is \"%s\", and this host has no such interface, network or "
                 "address; it has lo 127.0.0.1/8, eth0 10.0.0.5/24, docker0 172.17.0.1/16, ib0 "
                 "192.168.9.5/20, lo ::1/128, eth0 2001:db8::5/64",
                 wrong));
  }
}

TEST_CASE("Interfaces: the route to the rendezvous chooses where nothing is wanted") {
  CHECK(choose_address("", address("127.0.0.1"), {}).value().host() == "127.0.0.1");
  CHECK(choose_address("", address("127.0.0.7"), {}).value().family() == AF_INET);
}

TEST_CASE("Interfaces: loopback is recognised") {
  CHECK(is_loopback(address("127.0.1.1")));
  CHECK(is_loopback(address("::1")));
  CHECK(!is_loopback(address("10.0.0.1")));
  CHECK(!is_loopback(address("2001:db8::1")));
}

TEST_CASE("Interfaces: a literal and localhost mean loopback, other hosts are listened for") {
  for (const char* meant : {"127.0.0.1", "127.0.1.1", "::1", "localhost"}) {
    CHECK(means_loopback(meant));
    CHECK(bind_host(meant).value() == meant);
  }
  for (const char* other : {"10.0.0.5", "0.0.0.0", "2001:db8::5", "node0", ""}) {
    CHECK(!means_loopback(other));
  }
  CHECK(bind_host("0.0.0.0").value() == "0.0.0.0");
  CHECK(bind_host("10.0.0.5").value() == "10.0.0.5");
  CHECK(!bind_host("no-such-host.invalid").ok());
  CHECK(literal_address("fd77::1", 99).value().text() == "[fd77::1]:99");
  CHECK(!literal_address("localhost", 99).ok());
  CHECK(!literal_address("", 99).ok());
}

TEST_CASE("Interfaces: a literal of all addresses means anywhere, in any spelling") {
  for (const char* all : {"0.0.0.0", "0", "::", "::0", "0:0:0:0:0:0:0:0"}) {
    CAPTURE(all);
    CHECK(means_anywhere(all));
  }
  for (const char* other : {"10.0.0.5", "127.0.0.1", "::1", "localhost", "node0", ""}) {
    CAPTURE(other);
    CHECK(!means_anywhere(other));
  }
}

TEST_CASE("Interfaces: the default route leaves from no loopback address, or there is none") {
  const auto source = default_route_source();
  CHECK((!source.ok() || !is_loopback(source.value())));
}

TEST_CASE("Interfaces: this host has a loopback address and a text for it") {
  const auto found = list_interfaces();
  const std::string text = interfaces_text(found);
  CHECK(text.find("127.0.0.1/8") != std::string::npos);
  CHECK(interfaces_text({}) == "none");
}
