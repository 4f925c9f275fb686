// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "net/secure_connection.h"
#include "store/protocol.h"

namespace dt::store {

// An uplink is one connection over which a relay brings the connections of many ranks of its host.
// Each of them is a channel with a number. The uplink's frames: kUplink once, answered, in place of
// a hello; then, with the channel's number as their id, kOpen from the relay, kData and kClose from
// both, and kPause and kResume from the relay, whose rank does not read. Numbers only grow. A relay
// that has sent kPause sends no kData of that channel before kResume, so that neither side keeps
// more for a channel than it would for a connection. Channels with much to be sent take turns, a
// kData each, so that a large answer to one rank does not delay what the others are sent. The bytes
// of a channel are those of a rank's own connection behind its guard. kClose ends both ways; its
// payload is one byte, 0 where the rank closed its connection, 1 where it was lost. The relay
// answers the store's kClose with its own at once: a store that still waits for the end of the
// channel would otherwise keep it for as long as the uplink. A store that has forgotten the channel
// ignores the answer.

inline constexpr size_t kMaxDataBytes = 256 << 10;  ///< of one kData
inline constexpr size_t kMaxChannels = 8192;        ///< open ones of one uplink
/// Connections that have not said who they are, for net::stranger_limit(): of a store, and of a
/// relay. A rank whose connection is closed because of it tries again.
inline constexpr size_t kMaxStrangers = 2048;

/// The payload of kUplink.
struct UplinkHello {
  uint32_t protocol = kProtocolVersion;
  std::string job_id;
  int32_t attempt = 0;
  std::string host;  ///< whose ranks these are, for texts
};

std::string encode(const UplinkHello& hello);
bool decode(std::string_view bytes, UplinkHello* out);

/// The server's end of an uplink. Loop's thread only.
struct Uplink {
  std::unique_ptr<net::SecureConnection> connection;
  std::string host;
  FrameParser parser{kMaxDataBytes};
  std::map<uint64_t, uint64_t> channels;  ///< open ones: their session
  uint64_t last_channel = 0;              ///< the highest number that was opened
  uint64_t next_turn = 0;                 ///< the channel to go on with once bytes are taken
  size_t noted_bytes = 0;                 ///< as of a session
  bool ended = false;                     ///< nothing is written any more
  bool touched = false;                   ///< something was, in this turn of the loop
  std::vector<uint64_t> overflowed;       ///< channels for which too much waits
  std::function<void()> on_touched;       ///< what was written goes out with connection->release()

  /// Packs what is written in one turn of the loop.
  void touch();
};

/// One channel of an uplink, which outlives it.
class Channel {
 public:
  Channel(Uplink* uplink, uint64_t number) : uplink_(uplink), number_(number) {}
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  void write(std::string bytes, net::SharedBytes shared);
  /// Gives the uplink the next kData of what waits. False: nothing waits, or it may not go yet.
  bool send_slice();
  /// What waits for the rank to read, or for its turn on the uplink, without shared bytes.
  size_t kept_bytes() const { return waiting_bytes_; }
  /// Says, behind what was written, that the channel ends.
  void shutdown();
  void pause() { paused_ = true; }
  void resume();
  bool paused() const { return paused_; }
  bool congested() const {
    return paused_ || !waiting_.empty() || uplink_->connection->congested();
  }
  const net::SecureConnection& carrier() const { return *uplink_->connection; }
  /// The host of the uplink where that is what ended; else empty.
  std::string lost_relay() const { return uplink_->ended ? uplink_->host : std::string(); }

 private:
  struct Piece {
    std::string bytes;
    net::SharedBytes shared;

    size_t size() const { return bytes.size() + shared.size(); }
    size_t kept_bytes() const { return sizeof *this + bytes.capacity(); }
  };
  void send_waiting();
  void send_close();

  Uplink* const uplink_;
  const uint64_t number_;
  bool paused_ = false;
  bool shut_ = false;
  bool close_sent_ = false;
  std::deque<Piece> waiting_;
  size_t sent_ = 0;           // bytes of the first of them
  size_t waiting_bytes_ = 0;  // without shared ones
};

/// What a session of the server speaks through: a connection of its own, or a channel.
class Wire {
 public:
  explicit Wire(std::unique_ptr<net::SecureConnection> own) : own_(std::move(own)) {}
  Wire(Uplink* uplink, uint64_t number) : channel_(std::make_unique<Channel>(uplink, number)) {}

  /// Null: the session has a connection of its own.
  Channel* channel() const { return channel_.get(); }
  /// The connection, for an uplink; this is of no use any more.
  std::unique_ptr<net::SecureConnection> take_own() { return std::move(own_); }

  /// What the bytes go over: the connection, or that of the uplink.
  const net::SecureConnection& carrier() const {
    return own_ != nullptr ? *own_ : channel_->carrier();
  }

  bool is_open() const { return own_ == nullptr || own_->is_open(); }
  bool passed() const { return own_ != nullptr && own_->passed(); }
  void write(std::string bytes) { write(std::move(bytes), {}); }
  void write(std::string bytes, net::SharedBytes shared);
  /// The memory of what waits to be sent, without shared bytes. A channel counts only what its
  /// uplink does not have yet.
  size_t kept_bytes() const {
    return own_ != nullptr ? own_->kept_bytes() : channel_->kept_bytes();
  }
  /// All bytes that wait to be sent.
  size_t queued_bytes() const { return own_ != nullptr ? own_->queued_bytes() : kept_bytes(); }
  void limit_kernel_buffers(int bytes) {
    if (own_ != nullptr) own_->limit_kernel_buffers(bytes);
  }
  /// An uplink holds what its channels write until the end of the turn, without being asked.
  void hold() {
    if (own_ != nullptr) own_->hold();
  }
  void release() {
    if (own_ != nullptr) own_->release();
  }
  void shutdown() { own_ != nullptr ? own_->shutdown() : channel_->shutdown(); }
  bool congested() const { return own_ != nullptr ? own_->congested() : channel_->congested(); }
  void write_plain(std::string bytes) {
    if (own_ != nullptr) own_->write_plain(std::move(bytes));
  }

 private:
  std::unique_ptr<net::SecureConnection> own_;
  std::unique_ptr<Channel> channel_;
};

}  // namespace dt::store
