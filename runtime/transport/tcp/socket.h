// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "net/address.h"
#include "net/tls.h"

namespace dt::tcp {

/// Owns a non-blocking socket: close-on-exec, closed in forked children.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd);
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)),
        generation_(other.generation_),
        tls_(std::move(other.tls_)),
        ahead_(std::move(other.ahead_)) {}
  Socket& operator=(Socket&& other) noexcept;

  bool valid() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void close();
  net::Address local() const;

  /// What follows is encrypted.
  void encrypt(std::unique_ptr<net::Tls> tls);
  /// From now on a short read() may take more from the kernel than it gives, for those that follow:
  /// a message and its header then cost one call. Of no use where that is encrypted.
  void read_ahead();
  // As recv() and sendmsg(): -1 with errno, EAGAIN where it would block. After that the same bytes
  // are to be written again, or more of the same message.
  ssize_t read(void* out, size_t bytes);
  ssize_t peek(void* out, size_t bytes);
  /// At most two parts.
  ssize_t write(const iovec* parts, size_t count);
  /// A message is half sent although no byte of it counts as written.
  bool half_written() const { return tls_ != nullptr && tls_->half_written(); }
  /// There is something to read that poll() does not tell.
  bool has_pending() const {
    return tls_ != nullptr ? tls_->has_pending() : ahead_ != nullptr && ahead_->held() > 0;
  }

  static constexpr size_t kAheadBytes = 8 << 10;

 private:
  struct Ahead {
    size_t begin = 0;
    size_t end = 0;
    char bytes[kAheadBytes];

    size_t held() const { return end - begin; }
  };

  int fd_ = -1;
  uint32_t generation_ = 0;  ///< of forks at its birth: in a child the number may be the host's
  std::unique_ptr<net::Tls> tls_;
  std::unique_ptr<Ahead> ahead_;  ///< null: not read ahead
};

/// How the kernel limits what a connection has under way (network.congestion): "system", "auto", or
/// the name of one that the kernel has. To be set before it connects or listens, which those that
/// are accepted inherit; CONFIG where the kernel does not have or allow it.
Status set_congestion(const Socket& socket, const std::string& choice);
/// The same once it is connected, for what depends on how long the way is.
void settle_congestion(const Socket& socket, const std::string& choice);
/// What "auto" takes where the system's is `system`: BBR paces by timers and measures the way for
/// seconds, which costs half of the speed where a round trip takes microseconds; there it is cubic.
std::string automatic_congestion(const std::string& system, int64_t round_trip_us);

/// Ports to listen on; {0, 0}: the kernel chooses.
struct PortRange {
  uint16_t first = 0;
  uint16_t last = 0;
};
/// "" or "0", "4711", "4700-4799".
Result<PortRange> parse_port_range(const std::string& text);

/// Listens at `address` with its port; an unspecified IPv6 address stands for those of IPv4, too.
/// 0, or an errno value.
int listen_at(const net::Address& address, Socket* out);
/// Listens on `address` at the first free port of the range.
Result<Socket> listen_on(net::Address address, PortRange ports);
/// Begins to connect, from `source` where the families agree; ends when the socket is writable.
/// Fails with SYSTEM if this process gets no socket, with PEER_LOST if it cannot connect to `to`.
Result<Socket> begin_connect(const net::Address& to, const net::Address& source);
/// The errno value of a connect() that ended; 0: connected.
int connect_error(const Socket& socket);

/// What an errno value of connecting means to the user: "Connection refused: the host answers, ..."
std::string connect_error_text(int error);

}  // namespace dt::tcp
