// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "net/guard.h"
#include "net/security.h"
#include "net/tcp.h"

namespace dt::net {

/// What a SecureConnection tells its owner, on the loop's thread. After the connection is destroyed
/// nothing is told any more. A callback may destroy it.
struct SecureEvents {
  std::function<void()> on_open;  ///< the two sides know each other
  std::function<void(const char* data, size_t bytes)> on_bytes;
  std::function<void()> on_drained;  ///< as of a Connection
  /// Once, instead of on_open: the two do not fit, see Guard::failure(). The other side is told
  /// where it can understand that; the owner may write_plain() to one that speaks without a guard
  /// (`plain`), and drops the connection when it likes.
  std::function<void(const Status& why, bool plain)> on_refused;
  std::function<void(int error)> on_close;  ///< as of a Connection
};

/// A Connection behind a Guard. Loop's thread only.
class SecureConnection {
 public:
  static Result<std::unique_ptr<SecureConnection>> dial(Loop* loop, const Address& address,
                                                        const Security& security, Purpose purpose,
                                                        SecureEvents events);
  /// For an accepted connection. `passes`: whether a client whose first byte this is may come in
  /// without a guard, because its protocol has none; may be empty. Where it may not, and the mode
  /// is none, the connection is open from the start and on_open does not come.
  static std::unique_ptr<SecureConnection> accept(std::unique_ptr<Connection> connection,
                                                  const Security& security, Purpose purpose,
                                                  std::function<bool(char)> passes,
                                                  SecureEvents events);
  ~SecureConnection();
  SecureConnection(const SecureConnection&) = delete;
  SecureConnection& operator=(const SecureConnection&) = delete;

  bool is_open() const;
  /// `passes` let it in.
  bool passed() const;

  // As of a Connection, once it is open; before, nothing is sent.
  void write(std::string bytes);
  void write(std::string bytes, SharedBytes shared);
  void hold();
  void release();
  void pause(bool paused);
  void shutdown();
  bool congested() const;
  size_t queued_bytes() const;
  uint64_t delivered_bytes() const;
  size_t kept_bytes() const;
  void limit_kernel_buffers(int bytes);
  std::string peer_host() const;
  /// After on_refused only.
  void write_plain(std::string bytes);

 private:
  struct State;
  explicit SecureConnection(std::shared_ptr<State> state) : state_(std::move(state)) {}

  const std::shared_ptr<State> state_;
};

}  // namespace dt::net
