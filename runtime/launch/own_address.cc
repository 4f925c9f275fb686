// SPDX-License-Identifier: Apache-2.0
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "launch/aside.h"
#include "launch/exchange.h"
#include "net/address.h"

namespace dt::launch {
namespace {

/// Whether a socket can be bound to it: it belongs to this host.
bool is_own(const net::Address& address) {
  const int fd = socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool bound =
      bind(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0;
  close(fd);
  return bound;
}

bool is_loopback(const net::Address& address) {
  const std::string host = address.host();
  return host == "::1" || host.substr(0, 4) == "127.";
}

/// An own address that `name` stands for; empty: none. A name that only this host takes for
/// loopback (Debian's /etc/hosts) is of no use to others, but a literal is meant.
std::string own_address_of(const std::string& name) {
  const auto addresses = net::resolve_now(name, 0, false);
  if (!addresses.ok()) return {};
  for (const net::Address& address : addresses.value()) {
    if (is_loopback(address) && address.host() != name) continue;
    if (is_own(address)) return address.host();
  }
  return {};
}

/// The source address of a route to `destination`; nothing is sent. Empty: no route.
std::string source_of_route(const std::string& destination) {
  constexpr uint16_t kDiscard = 9;
  const auto addresses = net::resolve_now(destination, kDiscard, false);
  if (!addresses.ok() || addresses.value().empty()) return {};
  const net::Address& to = addresses.value().front();
  const int fd = socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return {};
  net::Address from;
  from.length = sizeof from.storage;
  const bool routed =
      connect(fd, reinterpret_cast<const sockaddr*>(&to.storage), to.length) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&from.storage), &from.length) == 0;
  close(fd);
  return routed && !is_loopback(from) ? from.host() : std::string();
}

std::string choose(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string address = own_address_of(name);
    if (!address.empty()) return address;
  }
  // Addresses that belong to nobody (RFC 5737, RFC 3849): they are reached by the default route.
  for (const char* outside : {"198.51.100.1", "2001:db8::1"}) {
    const std::string address = source_of_route(outside);
    if (!address.empty()) return address;
  }
  return "127.0.0.1";
}

}  // namespace

Result<std::string> own_address(const Place& place, const Environment& environment,
                                const Wait& wait) {
  if (place.node_count == 1) return std::string("127.0.0.1");
  std::vector<std::string> names;
  if (!place.master_addr.empty()) names.push_back(place.master_addr);
  // What the launchers call this host, as its other nodes know it.
  for (const char* variable :
       {"MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "PMI_HOSTNAME", "PMIX_HOSTNAME", "SLURMD_NODENAME"}) {
    const auto found = environment.find(variable);
    if (found != environment.end() && !found->second.empty()) names.push_back(found->second);
  }
  return run_aside([names]() -> Result<std::string> { return choose(names); },
                   "rendezvous: looking up this host's own address did not end in time; set "
                   "MASTER_ADDR and MASTER_PORT to the host of rank 0 and a free port there",
                   wait);
}

}  // namespace dt::launch
