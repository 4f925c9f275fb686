// SPDX-License-Identifier: Apache-2.0
#include "net/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace dt::net {
namespace {

Status lookup_error(const std::string& host, int error, int system_error) {
  const std::string reason =
      error == EAI_SYSTEM ? errno_text(system_error) : std::string(gai_strerror(error));
  return Status(Code::kSystem,
                format("the name \"%s\" cannot be resolved: %s; check the name, /etc/hosts and DNS "
                       "on this host, or give an address",
                       host.c_str(), reason.c_str()));
}

Result<std::vector<Address>> look_up(const std::string& host, uint16_t port, int flags,
                                     bool* not_a_literal) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  const int error =
      getaddrinfo(host.empty() ? nullptr : host.c_str(), service.c_str(), &hints, &found);
  *not_a_literal = error == EAI_NONAME;
  if (error != 0) return lookup_error(host, error, errno);
  std::vector<Address> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_addrlen > sizeof(sockaddr_storage)) continue;
    Address address;
    memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
    addresses.push_back(address);
  }
  freeaddrinfo(found);
  if (addresses.empty()) return lookup_error(host, EAI_NONAME, 0);
  return addresses;
}

}  // namespace

uint16_t Address::port() const {
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

void Address::set_port(uint16_t port) {
  if (family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
  }
}

std::string Address::host() const {
  char text[NI_MAXHOST];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&storage), length, text, sizeof text, nullptr,
                  0, NI_NUMERICHOST) != 0) {
    return "?";
  }
  return text;
}

std::string Address::text() const { return host_port_text(host(), port()); }

std::string host_port_text(const std::string& host, uint16_t port) {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return format(is_ipv6 ? "[%s]:%u" : "%s:%u", host.c_str(), static_cast<unsigned>(port));
}

Result<Address> literal_address(const std::string& text, uint16_t port) {
  bool ignored = false;
  const auto found = look_up(text, port, AI_NUMERICHOST, &ignored);
  if (text.empty() || !found.ok()) {  // an empty text stands for loopback there
    return Status(Code::kInvalidArgument, "\"" + text + "\" is no numeric address");
  }
  return found.value().front();
}

Result<std::vector<Address>> resolve_now(const std::string& host, uint16_t port, bool to_bind) {
  bool ignored = false;
  return look_up(host, port, to_bind ? AI_PASSIVE : 0, &ignored);
}

void resolve(Loop* loop, const std::string& host, uint16_t port,
             std::function<void(Result<std::vector<Address>>)> done) {
  bool not_a_literal = false;
  auto literal = look_up(host, port, AI_NUMERICHOST, &not_a_literal);
  if (!not_a_literal) {
    loop->post([done = std::move(done), literal = std::move(literal)] { done(literal); });
    return;
  }
  // Detached on purpose, see the header: it holds only the poster, which outlives the Loop. Called
  // on the loop's thread, so the new thread inherits a mask with every signal blocked.
  const auto look_up_and_tell = [poster = loop->poster(), host, port, done] {
    auto result = resolve_now(host, port, false);
    poster([done, result = std::move(result)] { done(result); });
  };
  try {
    std::thread(look_up_and_tell).detach();
  } catch (const std::system_error& error) {
    const Status status(Code::kSystem, format("cannot start a thread to resolve \"%s\": %s",
                                              host.c_str(), error.what()));
    loop->post([done, status] { done(status); });
  }
}

}  // namespace dt::net
