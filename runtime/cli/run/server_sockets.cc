// SPDX-License-Identifier: Apache-2.0
#include "cli/run/server_sockets.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <functional>
#include <utility>

#include "launch/aside.h"
#include "net/address.h"
#include "net/interfaces.h"

namespace dt::cli {
namespace {

constexpr int kFirstFd = 3;  // behind the standard descriptors
constexpr int64_t kLookAgainMs = 500;

/// Looks names up, so it may block.
Result<std::string> own_host_of(const std::string& rendezvous, const std::string& interface) {
  DT_TRY_VALUE(const std::vector<net::Address> found, net::resolve_now(rendezvous, 0, false));
  Status status;
  for (const net::Address& to : found) {
    const auto own = net::choose_address(interface, to, net::list_interfaces());
    if (own.ok()) return own.value().host();
    status = own.status();
  }
  return status;
}

/// The name of a pod may appear later than the pod.
Result<std::string> look_until(const Wait& wait, const std::function<Result<std::string>()>& look) {
  for (;;) {
    auto host = launch::run_aside(
        look, "looking up where the other nodes reach this one did not end in time", wait);
    if (host.ok() || wait.deadline.passed() || wait.interrupted()) return host;
    Event nothing;
    nothing.wait({Deadline::after_ms(kLookAgainMs).earlier(wait.deadline), wait.interrupt});
  }
}

Result<ServerSocket> listen_at(const ServerHost& host) {
  DT_TRY_VALUE(const std::vector<net::Address> found, net::resolve_now(host.bind, 0, true));
  if (found.empty()) return Status(Code::kSystem, host.bind + " has no address");
  const net::Address& at = found.front();
  net::Address bound;
  bound.length = sizeof bound.storage;
  const Fd socket(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.is_open() ||
      bind(socket.get(), reinterpret_cast<const sockaddr*>(&at.storage), at.length) != 0 ||
      listen(socket.get(), SOMAXCONN) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) != 0) {
    return Status(Code::kSystem, "cannot listen at " + at.host() + ": " + errno_text(errno));
  }
  ServerSocket result;
  result.fd.reset(fcntl(socket.get(), F_DUPFD_CLOEXEC, kFirstFd));
  if (!result.fd.is_open()) {
    return Status(Code::kSystem, "cannot keep a socket: " + errno_text(errno));
  }
  result.address = net::host_port_text(host.shown, bound.port());
  return result;
}

}  // namespace

Result<ServerHost> find_server_host(const NodePlace& node, const std::string& interface,
                                    const Wait& wait) {
  if (node.node_count == 1) return ServerHost{net::loopback_host(), net::loopback_host()};
  ServerHost host;
  if (node.node_rank == 0 && interface.empty()) {
    host.shown = node.host;
    DT_TRY_VALUE(host.bind, look_until(wait, [name = node.host] { return net::bind_host(name); }));
    return host;
  }
  DT_TRY_VALUE(host.shown, look_until(wait, [name = node.host, interface] {
                 return own_host_of(name, interface);
               }));
  host.bind = host.shown;
  return host;
}

Result<std::vector<ServerSocket>> listen_for_servers(int count, const ServerHost& host) {
  std::vector<ServerSocket> sockets;
  for (int i = 0; i < count; ++i) {
    auto socket = listen_at(host);
    if (!socket.ok()) return socket.status().within("a socket for parameter servers");
    sockets.push_back(std::move(socket).value());
  }
  return sockets;
}

}  // namespace dt::cli
