// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "base/wait.h"
#include "net/loop.h"
#include "transport/tcp/link.h"
#include "transport/tcp/socket.h"

namespace dt::tcp {

/// The end of a connection whose owner is gone: sends a last message and closes when the peer's
/// host has it. Before, what the peer still sends would reset the connection, message and all; then
/// the reset is welcome, because it ends the peer's sending. Loop's thread only; held by a
/// shared_ptr.
class Farewell : public std::enable_shared_from_this<Farewell> {
 public:
  /// Null: all is said. Else `done` runs once, unless closed before.
  static std::shared_ptr<Farewell> say(net::Loop* loop, Socket socket, const Header& last,
                                       std::function<void()> done);
  /// No callback runs afterwards.
  void close();

 private:
  Farewell(net::Loop* loop, Socket socket, const Header& last, std::function<void()> done);
  /// True: nothing is left to do.
  bool step();
  void go_on();

  Socket socket_;
  const Header last_;
  const Deadline deadline_;
  std::function<void()> done_;
  net::Timer timer_;
  size_t sent_ = 0;
  int64_t delay_ms_ = 1;
};

}  // namespace dt::tcp
