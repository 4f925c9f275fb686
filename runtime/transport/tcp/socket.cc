// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/fork.h"

namespace dt::tcp {
namespace {

constexpr int kBacklog = 4096;  // the kernel cuts it at net.core.somaxconn

// Within a building; a round trip between regions takes ten times that.
constexpr int64_t kShortWayUs = 2000;

constexpr size_t kRecordBytes = 16 << 10;  // of TLS

const sockaddr* raw(const net::Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

Result<Socket> make_socket(int family) {
  const int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd >= 0) return Socket(fd);
  return Status(Code::kSystem, format("cannot make a socket: %s; look at the limit of open files "
                                      "(ulimit -n)",
                                      errno_text(errno).c_str()));
}

constexpr size_t kCongestionBytes = 16;  // TCP_CA_NAME_MAX

std::string congestion_of(int fd) {
  char name[kCongestionBytes] = {};
  socklen_t length = sizeof name;
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0) return {};
  return std::string(name, strnlen(name, length));
}

int use_congestion(int fd, const std::string& name) {
  return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                    static_cast<socklen_t>(name.size()));
}

bool parse_port(std::string_view text, uint16_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && *out > 0;
}

}  // namespace

Socket::Socket(int fd) : fd_(fd), generation_(fork_generation()) { guard_fd_from_fork(fd); }

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
    generation_ = other.generation_;
    tls_ = std::move(other.tls_);
    ahead_ = std::move(other.ahead_);
  }
  return *this;
}

void Socket::close() {
  tls_ = nullptr;
  ahead_ = nullptr;
  const int fd = std::exchange(fd_, -1);
  if (fd < 0 || generation_ != fork_generation()) return;
  release_fd_from_fork_guard(fd);
  ::close(fd);
}

net::Address Socket::local() const {
  net::Address address;
  address.length = sizeof address.storage;
  if (getsockname(fd_, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) {
    address.length = 0;
  }
  return address;
}

void Socket::encrypt(std::unique_ptr<net::Tls> tls) {
  tls_ = std::move(tls);
  tls_->attach(fd_);
}

void Socket::read_ahead() {
  if (tls_ == nullptr && ahead_ == nullptr) ahead_.reset(new Ahead);
}

ssize_t Socket::read(void* out, size_t bytes) {
  if (tls_ != nullptr) return tls_->read(out, bytes);
  if (ahead_ == nullptr) return recv(fd_, out, bytes, 0);
  if (ahead_->held() == 0) {
    if (bytes >= kAheadBytes) return recv(fd_, out, bytes, 0);
    const ssize_t got = recv(fd_, ahead_->bytes, kAheadBytes, 0);
    if (got <= 0) return got;
    ahead_->begin = 0;
    ahead_->end = static_cast<size_t>(got);
  }
  const size_t taken = std::min(bytes, ahead_->held());
  memcpy(out, ahead_->bytes + ahead_->begin, taken);
  ahead_->begin += taken;
  return static_cast<ssize_t>(taken);
}

ssize_t Socket::peek(void* out, size_t bytes) {
  if (tls_ != nullptr) return tls_->peek(out, bytes);
  size_t taken = 0;
  if (ahead_ != nullptr) {
    taken = std::min(bytes, ahead_->held());
    memcpy(out, ahead_->bytes + ahead_->begin, taken);
  }
  if (taken == bytes) return static_cast<ssize_t>(taken);
  const ssize_t got = recv(fd_, static_cast<char*>(out) + taken, bytes - taken, MSG_PEEK);
  return taken == 0 ? got : static_cast<ssize_t>(taken) + std::max<ssize_t>(got, 0);
}

ssize_t Socket::write(const iovec* parts, size_t count) {
  if (tls_ == nullptr) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts);
    message.msg_iovlen = count;
    return sendmsg(fd_, &message, MSG_NOSIGNAL);
  }
  if (count == 1) return tls_->write(parts[0].iov_base, parts[0].iov_len);
  // One record for a header and what comes first behind it; the same one again after EAGAIN.
  char record[kRecordBytes];
  const size_t head = std::min(parts[0].iov_len, sizeof record);
  const size_t tail = std::min(parts[1].iov_len, sizeof record - head);
  memcpy(record, parts[0].iov_base, head);
  memcpy(record + head, parts[1].iov_base, tail);
  const ssize_t sent = tls_->write(record, head + tail);
  if (sent < static_cast<ssize_t>(head + tail) || tail == parts[1].iov_len) return sent;
  const ssize_t more =
      tls_->write(static_cast<const char*>(parts[1].iov_base) + tail, parts[1].iov_len - tail);
  return more < 0 ? sent : sent + more;  // an error comes again
}

std::string automatic_congestion(const std::string& system, int64_t round_trip_us) {
  return system.rfind("bbr", 0) == 0 && round_trip_us <= kShortWayUs ? "cubic" : system;
}

Status set_congestion(const Socket& socket, const std::string& choice) {
  if (choice == "system") return {};
  if (choice == "auto") {
    // Best effort: without privileges only what the administrator allows can be chosen.
    const std::string system = congestion_of(socket.fd());
    const std::string better = automatic_congestion(system, 0);
    if (better != system) (void)use_congestion(socket.fd(), better);
    return {};
  }
  if (use_congestion(socket.fd(), choice) == 0) return {};
  return Status(Code::kConfig,
                format("network.congestion is \"%s\": %s; give one that "
                       "/proc/sys/net/ipv4/tcp_allowed_congestion_control lists, system or auto",
                       choice.c_str(),
                       errno == ENOENT ? "the kernel has no such congestion control"
                                       : errno_text(errno).c_str()));
}

void settle_congestion(const Socket& socket, const std::string& choice) {
  if (choice != "auto") return;
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(socket.fd(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return;
  if (info.tcpi_rtt <= kShortWayUs) return;
  const int fresh = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fresh < 0) return;
  const std::string system = congestion_of(fresh);
  ::close(fresh);
  if (system != congestion_of(socket.fd())) (void)use_congestion(socket.fd(), system);
}

Result<PortRange> parse_port_range(const std::string& text) {
  PortRange range;
  if (text.empty() || text == "0") return range;
  const size_t dash = text.find('-');
  const std::string_view whole(text);
  const bool good = dash == std::string::npos
                        ? parse_port(whole, &range.first) && parse_port(whole, &range.last)
                        : parse_port(whole.substr(0, dash), &range.first) &&
                              parse_port(whole.substr(dash + 1), &range.last);
  if (good && range.first <= range.last) return range;
  return Status(Code::kConfig,
                format("network.port_range is \"%s\"; give \"first-last\" with ports from 1 to "
                       "65535, as in \"29600-29699\", or nothing",
                       text.c_str()));
}

int listen_at(const net::Address& address, Socket* out) {
  const int fd = socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd < 0) return errno;
  Socket made(fd);
  const int on = 1;
  const int off = 0;
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.family() == AF_INET6) {
    (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (bind(fd, raw(address), address.length) != 0 || listen(fd, kBacklog) != 0) return errno;
  *out = std::move(made);
  return 0;
}

Result<Socket> listen_on(net::Address address, PortRange ports) {
  DT_TRY_VALUE(Socket socket, make_socket(address.family()));
  const int on = 1;
  (void)setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  int error = 0;
  for (uint32_t port = ports.first; port <= ports.last; ++port) {
    address.set_port(static_cast<uint16_t>(port));
    // Two sockets may bind a port that nobody listens on: listen() decides.
    if (bind(socket.fd(), raw(address), address.length) == 0 &&
        listen(socket.fd(), kBacklog) == 0) {
      return socket;
    }
    error = errno;
    if (error != EADDRINUSE) break;
    DT_TRY_VALUE(socket, make_socket(address.family()));
    (void)setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  }
  if (error == EADDRINUSE && ports.first != 0) {
    return Status(Code::kConfig,
                  format("every port from %u to %u of %s is in use; widen network.port_range: each "
                         "rank of a host takes one",
                         ports.first, ports.last, address.host().c_str()));
  }
  return Status(Code::kSystem, format("cannot listen on %s for ranks of other hosts: %s; choose "
                                      "the address with network.interface",
                                      address.host().c_str(), errno_text(error).c_str()));
}

Result<Socket> begin_connect(const net::Address& to, const net::Address& source) {
  DT_TRY_VALUE(Socket socket, make_socket(to.family()));
  net::Address target = to;
  auto& v6 = reinterpret_cast<sockaddr_in6&>(target.storage);
  if (to.family() == AF_INET6 && source.family() == AF_INET6 && v6.sin6_scope_id == 0 &&
      IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr)) {
    // Link-local addresses need the interface, which is a matter of this host.
    v6.sin6_scope_id = reinterpret_cast<const sockaddr_in6&>(source.storage).sin6_scope_id;
  }
  const int on = 1;
  (void)setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (source.length > 0 && source.family() == to.family()) {
    net::Address from = source;
    from.set_port(0);
    // Best effort: without the one, a port that differs for all peers is taken, and there are few;
    // without the other, the kernel chooses the source by its routes.
    (void)setsockopt(socket.fd(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    (void)bind(socket.fd(), raw(from), from.length);
  }
  if (connect(socket.fd(), raw(target), target.length) == 0 || errno == EINPROGRESS ||
      errno == EINTR) {
    return socket;
  }
  return Status(Code::kPeerLost, connect_error_text(errno));
}

int connect_error(const Socket& socket) {
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

std::string connect_error_text(int error) {
  const std::string name = errno_text(error);
  switch (error) {
    case ECONNREFUSED:
      return name + ": the host answers, but not at this port: a firewall rejects it";
    case ETIMEDOUT: return name + ": a firewall drops the packets, or the host is down";
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EINVAL:  // a blackhole route
      return name + ": there is no way to this address from here";
    case EACCES:
    case EPERM: return name + ": a firewall or a route of this host forbids it";
    default: return name;
  }
}

}  // namespace dt::tcp
