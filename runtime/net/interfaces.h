// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "net/address.h"

namespace dt::net {

/// An address of this host that is in use.
struct Interface {
  std::string name;
  Address address;  ///< port 0
  int prefix_bits = 0;
};

/// In the kernel's order; IPv4 and IPv6 only.
std::vector<Interface> list_interfaces();
/// Each as "eth0 10.0.0.1/24", without the link-local ones that every interface has.
std::vector<std::string> interface_texts(const std::vector<Interface>& interfaces);
/// These joined: for messages, a bounded number of them; or "none".
std::string interfaces_text(const std::vector<Interface>& interfaces);

bool is_loopback(const Address& address);
/// Whether `error` of a connection to `to` means that this host's loopback interface is down.
bool is_loopback_down(int error, const Address& to);
inline constexpr const char* kLoopbackDown =
    "the loopback interface of this host is down; run: ip link set lo up";
/// Whether who writes `host` means loopback: a literal of it, or localhost. A host's own name may
/// lead there too, in its own /etc/hosts (Debian has 127.0.1.1), but means the host.
bool means_loopback(const std::string& host);
/// Whether `host` is a literal that means all addresses of this host, and none on another.
bool means_anywhere(const std::string& host);
/// Where to listen for other hosts that know this one as `host`: at it, or on all interfaces
/// (empty) where that leads to loopback and is not meant. May block, like resolve_now().
Result<std::string> bind_host(const std::string& host);

/// The address of this host from which packets to `to` leave, by its routes. Sends nothing.
Result<Address> route_source(const Address& to);
/// Where processes of this host reach each other: 127.0.0.1, or ::1 where only that has a route.
std::string loopback_host();
/// The same for the default route: from where packets to anywhere leave.
Result<Address> default_route_source();

/// Which of the own addresses peers are to use. `wanted`: a name ("eth1"), a network
/// ("10.1.0.0/16") or an address; empty: by the route to `rendezvous`, which is the own address
/// itself where that is meant. `interfaces` is what list_interfaces() gave.
Result<Address> choose_address(const std::string& wanted, const Address& rendezvous,
                               const std::vector<Interface>& interfaces);

}  // namespace dt::net
