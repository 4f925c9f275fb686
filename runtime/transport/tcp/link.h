// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/loop.h"
#include "transport/tcp/socket.h"

namespace dt::tcp {

/// In front of every message.
struct Header {
  static constexpr uint32_t kMagic = 0x314d'5444;  // "DTM1"; also tells the order of bytes
  /// The last message of a side that has destroyed its communicator; without bytes.
  static constexpr uint32_t kLeft = 0xffff'ffff;
  /// The same of a side that has left the job.
  static constexpr uint32_t kFinalized = 0xffff'fffe;

  uint32_t magic = kMagic;
  uint32_t what = 0;       ///< of the owner, but for those two
  uint64_t sequence = 0;   ///< likewise
  uint64_t signature = 0;  ///< likewise
  int64_t count = 0;       ///< likewise
  int64_t bytes = 0;       ///< that follow

  bool is_last() const { return what == kLeft || what == kFinalized; }
};
static_assert(sizeof(Header) == 40);

/// Messages between two ranks of different hosts, in order in each direction, for one communicator.
/// Loop's thread only; held by a shared_ptr, because a callback may let go of it.
///
/// It may consist of several connections. The first carries all headers, and all of a short
/// message; of a long one each carries a share that follows from its bytes and the number of
/// connections, so that these need no headers. When one of them breaks, the link does.
///
/// Bytes go from the sender's buffer to the kernel and from the kernel into the receiver's; a
/// message for which nothing was posted stays in the socket, but for its first few KiB perhaps, so
/// a fast sender is held up by TCP.
class Link : public std::enable_shared_from_this<Link> {
 public:
  /// Where the message's bytes go; null refuses it (the owner then closes the link). A message
  /// without bytes is done in any case: until the link is closed, its Done runs.
  using OnHeader = std::function<void*(const Header&)>;
  using Done = std::function<void()>;

  /// One of the two runs, once: when the connection broke, with the reason, or when something was
  /// to be sent to or received from a peer that has left; whether it has left the job.
  /// `connections`: the same number on both sides, at least 1.
  Link(net::Loop* loop, std::function<void(const std::string& reason)> on_lost,
       std::function<void(bool finalized)> on_left, size_t connections = 1)
      : loop_(loop),
        on_lost_(std::move(on_lost)),
        on_left_(std::move(on_left)),
        lanes_(connections) {}

  /// Messages may be queued before; they begin to move when all connections are there.
  void open(Socket socket, size_t connection = 0);
  bool is_open() const { return opened_ == lanes_.size(); }
  /// No callback runs afterwards, and no buffer is touched.
  void close();
  /// close(); gives the connections where a last message may follow on the first: where they are
  /// open and no message half sent. Else none.
  std::vector<Socket> leave();

  /// `data` is borrowed until `done`.
  void send(const Header& header, const void* data, Done done);
  void receive(OnHeader on_header, Done done);
  /// Both: looks for what comes when the message is on its way, not before.
  void trade(const Header& header, const void* data, Done sent, OnHeader on_header, Done received);

  /// Looks at the socket without being told to. True: something moved.
  bool poll();

  /// Grows with each sign of the peer: bytes came from it, the kernel took more of ours after its
  /// buffers were full, or the peer's host has acknowledged a part of what is under way since the
  /// last look. A long message over a slow connection is not silence.
  uint64_t signs();
  /// Whether something is under way, for messages.
  bool sending() const { return !outgoing_.empty(); }
  bool receiving() const { return !incoming_.empty(); }
  /// Whether the peer's host has stopped to acknowledge what was sent: the way to it is cut.
  bool cut_off() const;

  /// Messages of so many bytes are long: each connection has a share of them.
  static constexpr int64_t kLongBytes = 64 << 10;

 private:
  struct Outgoing {
    Header header;
    const char* data;
    Done done;
  };
  struct Incoming {
    OnHeader on_header;
    Done done;
  };
  enum class Progress { kMore, kBlocked };
  /// A connection, and how much of its share of the message at work has moved.
  struct Lane {
    Socket socket;
    std::unique_ptr<net::FdWatcher> watcher;
    int64_t sent = 0;  ///< of the first lane: with the header
    int64_t received = 0;
    bool wants_read = false;
    bool wants_write = false;
    bool unwanted = false;   ///< the loop told of bytes that nobody awaits
    bool full = false;       ///< the kernel had no room for what was to be sent
    int unacknowledged = 0;  ///< bytes that the kernel held when signs() last looked
  };
  struct Share {
    int64_t begin;
    int64_t end;
  };

  Share share(int64_t bytes, size_t lane) const;
  /// Lanes that have a share of so many bytes, or the header in front of them.
  size_t lanes_of(int64_t bytes) const { return bytes < kLongBytes ? 1 : lanes_.size(); }
  int64_t left_to_send(size_t lane) const;
  int64_t left_to_receive(size_t lane) const;
  bool header_is_here() const { return header_bytes_ == sizeof header_; }
  bool awaits_bytes(size_t lane) const;
  bool sends_bytes(size_t lane) const;
  void pump(bool reads, bool writes);
  Progress write_some();
  Progress read_some();
  // False: broken, and so closed.
  bool write_lane(size_t lane);
  bool read_lane(size_t lane);
  bool read_header();
  void update_interest();
  /// Looks at what came while nobody waits for a message. True: the peer has ended, and so has
  /// this.
  bool ended_by_peer();
  /// Whether any message that has come says that the peer has left; the connection is no use any
  /// more.
  bool find_left();
  void lose(const std::string& reason);
  /// Because of one connection.
  void lose(size_t lane, const std::string& reason);
  void lose_to_leaver(const Header& last);

  net::Loop* const loop_;
  std::function<void(const std::string&)> on_lost_;
  std::function<void(bool)> on_left_;
  std::vector<Lane> lanes_;
  size_t opened_ = 0;
  bool closed_ = false;
  bool pumping_ = false;
  bool due_read_ = false;  ///< worth another try in this pump
  bool due_write_ = false;
  bool foreseen_ = false;  ///< the next message has come and is not the last one
  uint64_t moves_ = 0;     ///< calls that moved bytes
  uint64_t signs_ = 0;
  std::deque<Outgoing> outgoing_;
  std::deque<Incoming> incoming_;
  Header header_;  ///< of the message that is coming in
  size_t header_bytes_ = 0;
  char* target_ = nullptr;
};

}  // namespace dt::tcp
