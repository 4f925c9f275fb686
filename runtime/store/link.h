// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "base/log.h"
#include "base/status.h"
#include "net/address.h"
#include "net/dial_sequence.h"
#include "net/loop.h"
#include "net/secure_connection.h"
#include "store/protocol.h"

namespace dt::store {

/// What a Link tells its owner. The owner may stop() the Link inside, not destroy it.
struct LinkEvents {
  std::function<void(Status)> on_ready;  ///< once: hello answered (ok), or refused for good
  std::function<void(Frame)> on_frame;   ///< after on_ready
  /// Once, after a good on_ready: the connection is gone. `reason` completes "the server ...".
  std::function<void(const std::string& reason)> on_lost;
};

/// A client's connection: found, opened and greeted with patience, then a stream of frames.
/// Loop's thread only.
class Link {
 public:
  /// `deadline`: of whoever waits for the greeting.
  Link(net::Loop* loop, std::string host, uint16_t port, Hello hello, net::Security security,
       LoggerPtr logger, LinkEvents events, int64_t greeting_ms, Deadline deadline);

  void start() { attempt(); }
  /// Closes the connection; no event follows.
  void stop();
  void send(FrameType type, uint64_t id, std::string_view payload);
  const Welcome& welcome() const { return welcome_; }
  /// When the last bytes came, on the monotonic clock.
  int64_t heard_ns() const { return heard_ns_; }
  /// The numeric address of the server; empty while there is no connection.
  std::string peer_host() const { return connection_ == nullptr ? "" : connection_->peer_host(); }
  /// Why there is no connection yet: "12 tries; the last: connection refused: ...".
  std::string progress() const;

 private:
  void attempt();
  void dial(const net::Address& to);
  void opened();
  void received(const char* data, size_t bytes);
  void refused(const Status& why);
  void closed(int error);
  void handle_greeting(const Frame& frame);
  void end_try(std::string reason);
  void fail_try(std::string reason);
  void fail_greeting(std::string reason);
  void finish(Status status);

  net::Loop* const loop_;
  const Hello hello_;
  const net::Security security_;
  const LoggerPtr logger_;
  const LinkEvents events_;
  const int64_t greeting_ms_;  // 0: a stranger may make way for the store
  std::unique_ptr<net::SecureConnection> connection_;
  net::Timer retry_timer_;
  net::DialSequence addresses_;
  FrameParser parser_{kMaxPayloadBytes};
  Welcome welcome_;
  bool only_local_ = true;    // what has failed in this try never left this host
  bool kept_silent_ = false;  // what took a connection in this try, at an address before the last
  int tries_ = 0;
  int64_t delay_ms_;
  int64_t heard_ns_ = 0;
  std::string last_reason_ = "the first try has not ended";
  bool ready_ = false;
  bool stopped_ = false;
  std::minstd_rand random_;
};

}  // namespace dt::store
