// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "base/status.h"
#include "net/address.h"

namespace dt::tcp {

/// Owns a non-blocking socket: close-on-exec, closed in forked children.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd);
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}
  Socket& operator=(Socket&& other) noexcept;

  bool valid() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void close();
  net::Address local() const;

 private:
  int fd_ = -1;
  uint32_t generation_ = 0;  ///< of forks at its birth: in a child the number may be the host's
};

/// Ports to listen on; {0, 0}: the kernel chooses.
struct PortRange {
  uint16_t first = 0;
  uint16_t last = 0;
};
/// "" or "0", "4711", "4700-4799".
Result<PortRange> parse_port_range(const std::string& text);

/// Listens on `address` at the first free port of the range.
Result<Socket> listen_on(net::Address address, PortRange ports);
/// Begins to connect, from `source` where the families agree; ends when the socket is writable.
Result<Socket> begin_connect(const net::Address& to, const net::Address& source);
/// The errno value of a connect() that ended; 0: connected.
int connect_error(const Socket& socket);
void set_port(net::Address* address, uint16_t port);

/// What an errno value of connecting means to the user: "Connection refused: the host answers, ..."
std::string connect_error_text(int error);

}  // namespace dt::tcp
