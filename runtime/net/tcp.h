// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "net/address.h"
#include "net/loop.h"

namespace dt::net {

struct TcpHandle;

/// Bytes that many connections are sent: kept once, and changed by nobody.
class SharedBytes {
 public:
  SharedBytes() = default;
  SharedBytes(std::shared_ptr<const std::string> text)  // NOLINT(google-explicit-constructor)
      : text_(std::move(text)) {
    if (text_ != nullptr) view_ = *text_;
  }

  std::string_view view() const { return view_; }
  size_t size() const { return view_.size(); }
  SharedBytes part(size_t at, size_t bytes) const {
    SharedBytes part = *this;
    part.view_ = view_.substr(at, bytes);
    return part;
  }

 private:
  std::shared_ptr<const std::string> text_;
  std::string_view view_;
};

/// What a connection tells its owner, on the loop's thread. After the Connection is destroyed or
/// closed by its owner nothing is told any more. A callback may destroy the Connection.
struct ConnectionEvents {
  std::function<void()> on_open;  ///< dialled and connected
  std::function<void(const char* data, size_t bytes)> on_bytes;
  /// The queue of unsent bytes fell from above the high-water mark to below half of it.
  std::function<void()> on_drained;
  /// Once, the last event. `error` is an errno value; 0 is the peer's end of file.
  std::function<void(int error)> on_close;
};

/// A TCP connection: TCP_NODELAY, keepalive, close-on-exec, closed in forked children.
/// Loop's thread only.
class Connection {
 public:
  /// Above this many unsent bytes the connection counts as congested, and an accepted one stops
  /// reading: a peer that does not take its answers gets no more questions answered. A dialled one
  /// reads on, so that two ends with much to say to each other both get through.
  static constexpr size_t kHighWaterBytes = 1 << 20;
  /// Above this many, shared ones aside, the peer is given up: on_close(ENOBUFS).
  static constexpr size_t kMaxQueuedBytes = size_t{512} << 20;

  static Result<std::unique_ptr<Connection>> dial(Loop* loop, const Address& address,
                                                  ConnectionEvents events);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// For an accepted connection: sets the events and starts reading.
  void open(ConnectionEvents events);
  /// Queues the bytes. Errors arrive through on_close, never during this call.
  void write(std::string bytes);
  void write(std::string bytes, SharedBytes shared);
  /// Until release(), small pieces are kept and go out as one: for the answers to questions that
  /// came together. What is kept goes out at the latest with the end of the connection.
  void hold();
  void release();
  /// Reads nothing until pause(false): for bytes that would go to somebody who takes no more.
  void pause(bool paused);
  /// Sends what is queued, then end of file. Reading goes on.
  void shutdown();
  /// Ends the connection as if `error` had come from it: on_close(error), later.
  void give_up(int error);
  /// Drops the connection with a reset instead of an orderly end. No event follows.
  void reset();
  /// How many bytes are not sent yet, with the shared ones.
  size_t queued_bytes() const;
  /// How many bytes the peer's kernel has acknowledged, in all. While bytes are queued as well, the
  /// peer's process reads: what the two kernels hold for it is full.
  uint64_t delivered_bytes() const;
  /// The memory that its queue takes, without shared bytes.
  size_t kept_bytes() const;
  /// What the kernel may keep of it, either way; it counts against the memory of a cgroup.
  void limit_kernel_buffers(int bytes);
  /// The numeric address of this end, without the port; empty when there is none.
  std::string local_host() const;
  /// The same of the other end.
  std::string peer_host() const;
  bool congested() const { return queued_bytes() > kHighWaterBytes; }

 private:
  friend class Listener;
  explicit Connection(std::shared_ptr<TcpHandle> handle) : handle_(std::move(handle)) {}

  std::shared_ptr<TcpHandle> handle_;
};

/// Accepts connections. Loop's thread only.
class Listener {
 public:
  using OnAccept = std::function<void(std::unique_ptr<Connection>)>;

  /// The backlog is min(net.core.somaxconn, 4096).
  static Result<std::unique_ptr<Listener>> open(Loop* loop, const Address& address,
                                                OnAccept on_accept);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// Where it listens, with the port that the kernel chose.
  const Address& bound() const { return bound_; }

 private:
  Listener(std::shared_ptr<TcpHandle> handle, Address bound)
      : handle_(std::move(handle)), bound_(bound) {}

  std::shared_ptr<TcpHandle> handle_;
  Address bound_;
};

}  // namespace dt::net
