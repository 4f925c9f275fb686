// SPDX-License-Identifier: Apache-2.0
#include "net/tcp.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <string_view>

#include "net/handle.h"
#include "net/interfaces.h"

namespace dt::net {
namespace {

// A silent peer (power lost, cable out) is found after idle + count * interval = 30 s.
constexpr unsigned kKeepaliveIdleS = 15;
constexpr int kKeepaliveIntervalS = 5;
constexpr int kKeepaliveCount = 3;
constexpr int kMaxBacklog = 4096;
constexpr size_t kMaxHeldBytes = 64 << 10;  // pieces that are kept to go out as one

}  // namespace

/// Bytes that the kernel has not taken yet.
struct WriteRequest {
  uv_write_t request;
  std::string bytes;
  SharedBytes shared;
  size_t left;  // of both, to be sent
  std::shared_ptr<TcpHandle> handle;

  size_t kept_bytes() const { return sizeof *this + bytes.capacity(); }
};

struct TcpHandle final : Handle {
  Loop* owner_loop = nullptr;
  uv_tcp_t tcp;
  uv_connect_t connecting;
  uv_shutdown_t ending;
  ConnectionEvents events;
  Listener::OnAccept on_accept;
  uint64_t written_bytes = 0;        // by the owner, in all
  size_t queued_bytes = 0;           // with those that are held
  size_t kept_bytes = 0;             // of `writes`
  std::string held;                  // small pieces, while `holding` or behind `writes`
  std::deque<WriteRequest*> writes;  // in the order in which libuv ends them
  bool holding = false;
  int guarded_fd = -1;
  bool dialled = false;
  bool congested = false;
  bool paused = false;  // by its owner
  bool reading = false;
  bool writing_failed = false;
  bool told_close = false;

  uv_handle_t* raw() override { return reinterpret_cast<uv_handle_t*>(&tcp); }
  uv_stream_t* stream() { return reinterpret_cast<uv_stream_t*>(&tcp); }
  static TcpHandle* of(void* data) { return static_cast<TcpHandle*>(static_cast<Handle*>(data)); }
  std::shared_ptr<TcpHandle> keep() {
    return std::static_pointer_cast<TcpHandle>(shared_from_this());
  }

  void guard() {
    uv_os_fd_t fd = -1;
    if (uv_fileno(raw(), &fd) != 0) return;
    guarded_fd = fd;
    guard_fd_from_fork(fd);
  }
  void before_close() override;

  void tune() {
    uv_tcp_nodelay(&tcp, 1);
    uv_tcp_keepalive(&tcp, 1, kKeepaliveIdleS);
    if (guarded_fd < 0) return;
    // Best effort: without these two the kernel's own, longer values hold.
    setsockopt(guarded_fd, IPPROTO_TCP, TCP_KEEPINTVL, &kKeepaliveIntervalS,
               sizeof kKeepaliveIntervalS);
    setsockopt(guarded_fd, IPPROTO_TCP, TCP_KEEPCNT, &kKeepaliveCount, sizeof kKeepaliveCount);
  }

  void read(bool wanted) {
    if (closing() || wanted == reading) return;
    reading = wanted;
    if (!wanted) {
      uv_read_stop(stream());
      return;
    }
    const int error = uv_read_start(
        stream(),
        [](uv_handle_t* handle, size_t, uv_buf_t* buffer) {
          *buffer = uv_buf_init(of(handle->data)->owner_loop->scratch(), Loop::kScratchBytes);
        },
        [](uv_stream_t* stream, ssize_t bytes, const uv_buf_t* buffer) {
          const auto self = of(stream->data)->keep();
          if (bytes < 0) {
            self->tell_close(bytes == UV_EOF ? 0 : static_cast<int>(-bytes));
          } else if (bytes > 0 && self->events.on_bytes) {
            self->events.on_bytes(buffer->base, static_cast<size_t>(bytes));
          }
        });
    if (error != 0) fail_later(-error);
  }

  void tell_close(int error) {
    if (told_close || closing()) return;
    told_close = true;
    // Closed first: a callback that does nothing must not leave a socket behind.
    close();
    if (events.on_close) events.on_close(error);
  }

  // From within a call of the owner, who must not be called back before it returned.
  void fail_later(int error) {
    owner_loop->post([self = keep(), error] { self->tell_close(error); });
  }

  void send_held();

  void wrote(const WriteRequest& write, int error) {
    queued_bytes -= write.left;
    if (closing()) return;
    writes.pop_front();
    kept_bytes -= write.kept_bytes();
    if (error != 0) {
      // The reading side tells the reason, after what the peer said last, such as a refusal.
      writing_failed = true;
      read(true);
      return;
    }
    if (writes.empty() && !holding) send_held();
    if (congested && queued_bytes < Connection::kHighWaterBytes / 2) {
      congested = false;
      read(!paused);
      if (events.on_drained) events.on_drained();
    }
  }
};

void TcpHandle::before_close() {
  if (!held.empty()) {
    // Only what the kernel takes at once, as of all that is queued.
    uv_buf_t last = uv_buf_init(held.data(), static_cast<unsigned>(held.size()));
    uv_try_write(stream(), &last, 1);
  }
  // The memory goes now: who drops a connection for its sake counts on that. libuv, which tells the
  // end of each request in the loop's next turn, never reads the bytes of a closed handle.
  for (WriteRequest* write : std::exchange(writes, {})) {
    std::string().swap(write->bytes);
    write->shared = {};
  }
  std::string().swap(held);
  kept_bytes = 0;
  if (guarded_fd >= 0) release_fd_from_fork_guard(guarded_fd);
  guarded_fd = -1;
}

namespace {

/// What is left of a string and of a shared one behind it, once `taken` of their bytes are sent.
struct Pieces {
  Pieces(const std::string& bytes, const SharedBytes& shared, size_t taken) {
    const std::string_view parts[2] = {bytes, shared.view()};
    for (std::string_view part : parts) {
      const size_t skipped = std::min(taken, part.size());
      taken -= skipped;
      part.remove_prefix(skipped);
      if (part.empty()) continue;
      // libuv only reads it.
      buffers[count++] =
          uv_buf_init(const_cast<char*>(part.data()), static_cast<unsigned>(part.size()));
    }
  }

  uv_buf_t buffers[2] = {};
  unsigned count = 0;
};

/// `bytes` and `shared` count as queued already. What the kernel takes at once needs no request,
/// after which libuv would tell the kernel anew what it waits for.
void send(TcpHandle* handle, std::string bytes, SharedBytes shared) {
  const size_t count = bytes.size() + shared.size();
  Pieces all(bytes, shared, 0);
  const int sent = uv_try_write(handle->stream(), all.buffers, all.count);
  const size_t taken = sent > 0 ? static_cast<size_t>(sent) : 0;  // an error comes again below
  handle->queued_bytes -= taken;
  if (taken == count) return;
  auto* write =
      new WriteRequest{{}, std::move(bytes), std::move(shared), count - taken, handle->keep()};
  write->request.data = write;
  handle->writes.push_back(write);
  handle->kept_bytes += write->kept_bytes();
  Pieces rest(write->bytes, write->shared, taken);
  const int error = uv_write(
      &write->request, handle->stream(), rest.buffers, rest.count,
      [](uv_write_t* request, int status) {
        const std::unique_ptr<WriteRequest> done(static_cast<WriteRequest*>(request->data));
        done->handle->wrote(*done, status);
      });
  if (error == 0) return;
  handle->queued_bytes -= write->left;
  handle->kept_bytes -= write->kept_bytes();
  handle->writes.pop_back();
  delete write;
  handle->fail_later(-error);
}

}  // namespace

void TcpHandle::send_held() {
  if (!held.empty()) send(this, std::exchange(held, {}), {});
}

namespace {

int read_somaxconn() {
  char text[16] = {};
  const int fd = open("/proc/sys/net/core/somaxconn", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SOMAXCONN;
  const ssize_t bytes = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  const int value = bytes > 0 ? atoi(text) : 0;
  return value > 0 ? value : SOMAXCONN;
}

Status system_error(const char* what, const Address& address, int error, const std::string& next) {
  return Status(Code::kSystem, format("%s %s: %s; %s", what, address.text().c_str(),
                                      errno_text(error).c_str(), next.c_str()));
}

/// What to do where `address` cannot be listened on.
std::string next_for_listener(int error) {
  switch (error) {
    case UV_EADDRINUSE:
      return "another process listens there: choose another port, or 0 for a free one";
    case UV_EADDRNOTAVAIL:
      return "no interface of this host has that address; it has " +
             interfaces_text(list_interfaces());
    default: return "choose another address or port";
  }
}

}  // namespace

// ---- Connection ----

Result<std::unique_ptr<Connection>> Connection::dial(Loop* loop, const Address& address,
                                                     ConnectionEvents events) {
  auto handle = std::make_shared<TcpHandle>();
  handle->owner_loop = loop;
  handle->dialled = true;
  int error = uv_tcp_init_ex(loop->uv(), &handle->tcp, static_cast<unsigned>(address.family()));
  if (error != 0) return system_error("cannot connect to", address, -error, "check ulimit -n");
  handle->adopt();
  handle->guard();
  handle->tune();
  handle->events = std::move(events);
  error = uv_tcp_connect(&handle->connecting, &handle->tcp,
                         reinterpret_cast<const sockaddr*>(&address.storage),
                         [](uv_connect_t* request, int status) {
                           if (status == UV_ECANCELED) return;  // closed by its owner
                           const auto self = TcpHandle::of(request->handle->data)->keep();
                           if (self->closing()) return;
                           if (status != 0) {
                             self->tell_close(-status);
                             return;
                           }
                           self->read(true);
                           if (self->events.on_open) self->events.on_open();
                         });
  if (error != 0) handle->fail_later(-error);
  return std::unique_ptr<Connection>(new Connection(std::move(handle)));
}

Connection::~Connection() { handle_->close(); }

void Connection::open(ConnectionEvents events) {
  handle_->events = std::move(events);
  handle_->read(!handle_->paused);
}

void Connection::write(std::string bytes) { write(std::move(bytes), {}); }

void Connection::write(std::string bytes, SharedBytes shared) {
  TcpHandle& handle = *handle_;
  const size_t count = bytes.size() + shared.size();
  if (handle.closing() || handle.writing_failed || count == 0) return;
  if (kept_bytes() + bytes.size() > kMaxQueuedBytes) {
    handle.fail_later(ENOBUFS);
    return;
  }
  handle.queued_bytes += count;
  handle.written_bytes += count;
  // Behind what is under way small pieces wait too: each request has a price of its own.
  const bool holds = handle.holding || !handle.writes.empty();
  if (holds && shared.size() == 0 && handle.held.size() + count <= kMaxHeldBytes) {
    handle.held += bytes;
  } else if (handle.held.empty()) {
    send(&handle, std::move(bytes), std::move(shared));
  } else {
    send(&handle, std::exchange(handle.held, {}) + bytes, std::move(shared));
  }
  if (!handle.congested && handle.queued_bytes > kHighWaterBytes) {
    handle.congested = true;
    // Of one who asks only the answers come in. Two ends that both stopped would wait for ever.
    if (!handle.dialled) handle.read(false);
  }
}

void Connection::hold() { handle_->holding = true; }

void Connection::release() {
  handle_->holding = false;
  if (!handle_->closing() && handle_->writes.empty()) handle_->send_held();
}

void Connection::pause(bool paused) {
  handle_->paused = paused;
  const bool waits_for_peer = handle_->congested && !handle_->dialled;
  handle_->read((!paused && !waits_for_peer) || handle_->writing_failed);
}

void Connection::shutdown() {
  if (handle_->closing()) return;
  handle_->send_held();
  // The callback needs nothing: an error also shows on the reading side.
  uv_shutdown(&handle_->ending, handle_->stream(), [](uv_shutdown_t*, int) {});
}

void Connection::give_up(int error) { handle_->fail_later(error); }

void Connection::reset() {
  if (handle_->closing()) return;
  const linger now{1, 0};
  if (handle_->guarded_fd >= 0) {
    setsockopt(handle_->guarded_fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  handle_->close();
}

std::string Connection::local_host() const {
  Address local;
  int length = sizeof local.storage;
  auto* address = reinterpret_cast<sockaddr*>(&local.storage);
  if (handle_->closing() || uv_tcp_getsockname(&handle_->tcp, address, &length) != 0) return {};
  local.length = static_cast<socklen_t>(length);
  return local.host();
}

std::string Connection::peer_host() const {
  Address peer;
  int length = sizeof peer.storage;
  auto* address = reinterpret_cast<sockaddr*>(&peer.storage);
  if (handle_->closing() || uv_tcp_getpeername(&handle_->tcp, address, &length) != 0) return {};
  peer.length = static_cast<socklen_t>(length);
  return peer.host();
}

size_t Connection::queued_bytes() const { return handle_->queued_bytes; }

uint64_t Connection::delivered_bytes() const {
  int sent = 0;  // by the kernel, and not acknowledged
  if (handle_->guarded_fd >= 0 && ioctl(handle_->guarded_fd, SIOCOUTQ, &sent) != 0) sent = 0;
  const size_t unsent = handle_->held.size() + uv_stream_get_write_queue_size(handle_->stream());
  return handle_->written_bytes - unsent - static_cast<uint64_t>(sent);
}

size_t Connection::kept_bytes() const { return handle_->kept_bytes + handle_->held.capacity(); }

void Connection::limit_kernel_buffers(int bytes) {
  if (handle_->guarded_fd < 0) return;
  setsockopt(handle_->guarded_fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  setsockopt(handle_->guarded_fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

// ---- Listener ----

Result<std::unique_ptr<Listener>> Listener::open(Loop* loop, const Address& address,
                                                 OnAccept on_accept) {
  auto handle = std::make_shared<TcpHandle>();
  handle->owner_loop = loop;
  int error = uv_tcp_init_ex(loop->uv(), &handle->tcp, static_cast<unsigned>(address.family()));
  if (error != 0) {
    return system_error("cannot listen on", address, -error, "check ulimit -n and IPv6 support");
  }
  handle->adopt();
  handle->guard();
  handle->tune();  // Linux hands the options on to each accepted connection
  handle->on_accept = std::move(on_accept);
  error = uv_tcp_bind(&handle->tcp, reinterpret_cast<const sockaddr*>(&address.storage), 0);
  if (error == 0) {
    error = uv_listen(
        handle->stream(), std::min(read_somaxconn(), kMaxBacklog),
        [](uv_stream_t* server, int status) {
          if (status != 0) return;  // out of descriptors: libuv tries again
          const auto self = TcpHandle::of(server->data)->keep();
          auto accepted = std::make_shared<TcpHandle>();
          accepted->owner_loop = self->owner_loop;
          if (uv_tcp_init(server->loop, &accepted->tcp) != 0) return;
          accepted->adopt();
          if (uv_accept(server, accepted->stream()) != 0) {
            accepted->close();
            return;
          }
          accepted->guard();
          self->on_accept(std::unique_ptr<Connection>(new Connection(std::move(accepted))));
        });
  }
  Address bound;
  bound.length = sizeof bound.storage;
  int length = static_cast<int>(bound.length);
  if (error == 0) {
    error = uv_tcp_getsockname(&handle->tcp, reinterpret_cast<sockaddr*>(&bound.storage), &length);
    bound.length = static_cast<socklen_t>(length);
  }
  if (error != 0) {
    handle->close();
    return system_error("cannot listen on", address, -error, next_for_listener(error));
  }
  return std::unique_ptr<Listener>(new Listener(std::move(handle), bound));
}

Listener::~Listener() { handle_->close(); }

}  // namespace dt::net
