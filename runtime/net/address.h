// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/loop.h"

namespace dt::net {

/// A socket address with its port.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  uint16_t port() const;
  void set_port(uint16_t port);
  /// "10.0.0.5" or "fe80::1%eth0".
  std::string host() const;
  /// "10.0.0.5:4711" or "[::1]:4711".
  std::string text() const;
};

/// "host:port", with brackets around an IPv6 literal.
std::string host_port_text(const std::string& host, uint16_t port);

/// The address that a literal stands for; anything else is an error. Never blocks.
Result<Address> literal_address(const std::string& text, uint16_t port);

/// Looks up a literal or a name. May block for as long as the resolver likes: never on the loop.
/// An empty host means all interfaces, for binding.
Result<std::vector<Address>> resolve_now(const std::string& host, uint16_t port, bool to_bind);

/// The same without blocking: `done` runs on the loop's thread, later. A literal is answered
/// without a lookup; a name is looked up on a thread of its own, which nobody waits for, because a
/// broken resolver must not hold up the end of a job.
void resolve(Loop* loop, const std::string& host, uint16_t port,
             std::function<void(Result<std::vector<Address>>)> done);

}  // namespace dt::net
