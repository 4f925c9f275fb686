// SPDX-License-Identifier: Apache-2.0
#include "net/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace dt::net {
namespace {

constexpr size_t kShownMax = 8;

/// The address as bytes in network order, and how many.
const uint8_t* bits_of(const Address& address, int* bytes) {
  if (address.family() == AF_INET6) {
    *bytes = 16;
    return reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr.s6_addr;
  }
  *bytes = 4;
  return reinterpret_cast<const uint8_t*>(
      &reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr);
}

int count_bits(const Address& mask) {
  int bytes = 0;
  const uint8_t* bits = bits_of(mask, &bytes);
  int count = 0;
  for (int i = 0; i < bytes; ++i) count += __builtin_popcount(bits[i]);
  return count;
}

bool same_prefix(const Address& a, const Address& b, int prefix_bits) {
  if (a.family() != b.family()) return false;
  int bytes = 0;
  const uint8_t* left = bits_of(a, &bytes);
  const uint8_t* right = bits_of(b, &bytes);
  for (int bit = 0; bit < std::min(prefix_bits, 8 * bytes); ++bit) {
    if (((left[bit / 8] ^ right[bit / 8]) >> (7 - bit % 8) & 1) != 0) return false;
  }
  return true;
}

bool is_link_local(const Address& address) {
  return address.family() == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr);
}

bool parse_literal(const std::string& text, Address* out) {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    memcpy(&out->storage, &v4, sizeof v4);
    out->length = sizeof v4;
    return true;
  }
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) != 1) return false;
  memcpy(&out->storage, &v6, sizeof v6);
  out->length = sizeof v6;
  return true;
}

Status no_match(const std::string& wanted, const std::vector<Interface>& interfaces) {
  return Status(Code::kConfig,
                format("network.interface is \"%s\", and this host has no such interface, network "
                       "or address; it has %s",
                       wanted.c_str(), interfaces_text(interfaces).c_str()));
}

}  // namespace

std::vector<Interface> list_interfaces() {
  std::vector<Interface> result;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return result;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Interface one;
    one.name = each->ifa_name;
    one.address.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    memcpy(&one.address.storage, each->ifa_addr, one.address.length);
    if (each->ifa_netmask != nullptr) {
      Address mask;
      mask.length = one.address.length;
      memcpy(&mask.storage, each->ifa_netmask, mask.length);
      mask.storage.ss_family = static_cast<sa_family_t>(family);
      one.prefix_bits = count_bits(mask);
    }
    result.push_back(std::move(one));
  }
  freeifaddrs(all);
  return result;
}

std::vector<std::string> interface_texts(const std::vector<Interface>& interfaces) {
  std::vector<std::string> texts;
  for (const Interface& each : interfaces) {
    if (is_link_local(each.address)) continue;
    texts.push_back(
        format("%s %s/%d", each.name.c_str(), each.address.host().c_str(), each.prefix_bits));
  }
  return texts;
}

std::string interfaces_text(const std::vector<Interface>& interfaces) {
  const std::vector<std::string> texts = interface_texts(interfaces);
  std::string joined;
  for (size_t i = 0; i < std::min(texts.size(), kShownMax); ++i) {
    joined += (i == 0 ? "" : ", ") + texts[i];
  }
  if (texts.size() > kShownMax) joined += format(" and %zu more", texts.size() - kShownMax);
  return joined.empty() ? "none" : joined;
}

bool is_loopback(const Address& address) {
  int bytes = 0;
  const uint8_t* bits = bits_of(address, &bytes);
  if (bytes == 4) return bits[0] == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr);
}

bool is_loopback_down(int error, const Address& to) {
  return error == ENETUNREACH && is_loopback(to);
}

bool means_loopback(const std::string& host) {
  const auto literal = literal_address(host, 0);
  return literal.ok() ? is_loopback(literal.value()) : host == "localhost";
}

bool means_anywhere(const std::string& host) {
  const auto literal = literal_address(host, 0);
  return literal.ok() && (literal.value().host() == "0.0.0.0" || literal.value().host() == "::");
}

Result<std::string> bind_host(const std::string& host) {
  if (means_loopback(host)) return host;
  DT_TRY_VALUE(const std::vector<Address> addresses, resolve_now(host, 0, true));
  return std::all_of(addresses.begin(), addresses.end(), is_loopback) ? std::string() : host;
}

Result<Address> route_source(const Address& to) {
  const int fd = socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Status(Code::kSystem, "cannot make a socket: " + errno_text(errno));
  Address target = to;
  // A datagram socket only looks the route up; any port will do where none is known.
  if (target.port() == 0) target.set_port(9);
  Address source;
  source.length = sizeof source.storage;
  const bool found =
      connect(fd, reinterpret_cast<const sockaddr*>(&target.storage), target.length) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&source.storage), &source.length) == 0;
  const int error = errno;
  close(fd);
  if (!found) {
    return Status(Code::kSystem,
                  format("no route to %s: %s", to.host().c_str(), errno_text(error).c_str()));
  }
  source.set_port(0);
  return source;
}

std::string loopback_host() {
  for (const char* host : {"127.0.0.1", "::1"}) {
    const auto address = literal_address(host, 0);
    if (address.ok() && route_source(address.value()).ok()) return host;
  }
  return "127.0.0.1";
}

Result<Address> default_route_source() {
  // Addresses that belong to nobody (RFC 5737, RFC 3849).
  Status status;
  for (const char* outside : {"198.51.100.1", "2001:db8::1"}) {
    DT_TRY_VALUE(const Address to, literal_address(outside, 0));
    Result<Address> source = route_source(to);
    if (source.ok() && !is_loopback(source.value())) return source;
    if (status.ok()) {
      status =
          source.ok() ? Status(Code::kSystem, "the default route is loopback") : source.status();
    }
  }
  return status;
}

Result<Address> choose_address(const std::string& wanted, const Address& rendezvous,
                               const std::vector<Interface>& interfaces) {
  if (wanted.empty()) return route_source(rendezvous);
  const size_t slash = wanted.find('/');
  Address literal;
  int prefix_bits = 128;
  if (slash != std::string::npos) {
    const char* end = wanted.data() + wanted.size();
    const auto [stop, error] = std::from_chars(wanted.data() + slash + 1, end, prefix_bits);
    if (error != std::errc() || stop != end || prefix_bits < 0 ||
        !parse_literal(wanted.substr(0, slash), &literal)) {
      return no_match(wanted, interfaces);
    }
  }
  const bool by_bits = slash != std::string::npos || parse_literal(wanted, &literal);
  const Interface* best = nullptr;
  for (const Interface& each : interfaces) {
    if (by_bits ? !same_prefix(each.address, literal, prefix_bits) : each.name != wanted) continue;
    // Of several addresses the one that speaks the rendezvous' protocol.
    const bool better =
        best == nullptr || (is_link_local(best->address) && !is_link_local(each.address)) ||
        (best->address.family() != rendezvous.family() &&
         each.address.family() == rendezvous.family() && !is_link_local(each.address));
    if (better) best = &each;
  }
  if (best == nullptr) return no_match(wanted, interfaces);
  return best->address;
}

}  // namespace dt::net
