// SPDX-License-Identifier: Apache-2.0
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "launch/aside.h"
#include "launch/exchange.h"
#include "net/interfaces.h"

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

/// An own address that `name` stands for; empty: none. A name that only this host takes for
/// loopback (Debian's /etc/hosts) is of no use to others, but a literal is meant.
std::string own_address_of(const std::string& name) {
  const auto addresses = net::resolve_now(name, 0, false);
  if (!addresses.ok()) return {};
  for (const net::Address& address : addresses.value()) {
    if (net::is_loopback(address) && address.host() != name) continue;
    if (is_own(address)) return address.host();
  }
  return {};
}

/// `interface` as network.interface, which goes before all names.
Result<std::string> choose(const std::string& interface, const std::vector<std::string>& names) {
  if (!interface.empty()) {
    DT_TRY_VALUE(const net::Address chosen,
                 net::choose_address(interface, net::Address(), net::list_interfaces()));
    return chosen.host();
  }
  for (const std::string& name : names) {
    const std::string address = own_address_of(name);
    if (!address.empty()) return address;
  }
  const auto address = net::default_route_source();
  return address.ok() ? address.value().host() : "127.0.0.1";
}

}  // namespace

Result<std::string> own_address(const Place& place, const Environment& environment,
                                const std::string& interface, const Wait& wait) {
  if (place.node_count == 1) return std::string("127.0.0.1");
  std::vector<std::string> names;
  if (!place.master_addr.empty()) names.push_back(place.master_addr);
  // What the launchers call this host, as its other nodes know it.
  for (const char* variable :
       {"MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "PMI_HOSTNAME", "PMIX_HOSTNAME", "SLURMD_NODENAME"}) {
    const auto found = environment.find(variable);
    if (found != environment.end() && !found->second.empty()) names.push_back(found->second);
  }
  return run_aside([interface, names]() -> Result<std::string> { return choose(interface, names); },
                   "rendezvous: looking up this host's own address did not end in time; set "
                   "MASTER_ADDR and MASTER_PORT to the host of rank 0 and a free port there",
                   wait);
}

}  // namespace dt::launch
