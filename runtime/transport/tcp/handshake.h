// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "net/guard.h"
#include "net/loop.h"
#include "transport/tcp/socket.h"

namespace dt::tcp {

/// The first bytes on a connection: who dials whom for which communicator of which job.
struct Hello {
  uint64_t session = 0;
  int32_t from = -1;  ///< world ranks
  int32_t to = -1;
  std::string communicator;  ///< empty: only whether there is a way
  int32_t connection = 0;    ///< which of those of the two for it
};

/// Of a communicator: longer ones are refused when they are made.
inline constexpr size_t kMaxNameBytes = 1024;
/// The message of ABORTED where the callee has left the job.
inline constexpr char kPeerFinalized[] = "finalized";
/// With this begins the message of a dial whose hello the callee has refused; its reason follows.
inline constexpr char kRefuses[] = "it refuses: ";

/// The greeting of one connection, on either side. Loop's thread only; held by a shared_ptr.
class Handshake : public std::enable_shared_from_this<Handshake> {
 public:
  /// Ok: welcome. ABORTED: the callee has destroyed the communicator, or left the job
  /// (kPeerFinalized). Else why `hello` is refused.
  using Judge = std::function<Status(const Hello& hello)>;
  using Dialled = std::function<void(Result<Socket>)>;
  using Accepted = std::function<void(const Hello&, Socket)>;

  /// Sends `hello` once connected and greeted, and waits for the answer. `done` runs once; with
  /// ABORTED when the other side has destroyed the communicator, CONFIG or VERSION when what the
  /// two sides have for security does not fit.
  static std::shared_ptr<Handshake> dial(net::Loop* loop, Socket connecting,
                                         const net::Security& security, const Hello& hello,
                                         Dialled done);
  /// Reads a hello and answers. One of the two runs, once.
  static std::shared_ptr<Handshake> accept(net::Loop* loop, Socket socket,
                                           const net::Security& security, Judge judge,
                                           Accepted accepted, std::function<void()> dropped,
                                           int64_t silence_ms = kSilenceMs);
  /// A connection that does not greet within this time is dropped. The time is long because a rank
  /// on a busy machine may be slow to greet; the mesh limits the number of such connections.
  static constexpr int64_t kSilenceMs = 60'000;
  /// No callback runs afterwards.
  void close();
  bool connected() const { return connected_; }

 private:
  explicit Handshake(net::Loop* loop) : loop_(loop) {}
  Status watch();
  void step(bool readable, bool writable);
  void on_connected();
  void on_greeting();
  void greeted();
  void refused();
  void on_answer();
  void on_hello();
  void end_dial(Result<Socket> result);
  void drop();
  void on_silence();
  /// Reads until `bytes` are in the buffer. False: not yet, or broken (then it has ended).
  bool fill(size_t bytes);
  void broke(const std::string& reason);
  bool put(const std::string& bytes);

  net::Loop* const loop_;
  Socket socket_;
  std::unique_ptr<net::Guard> guard_;  ///< until the two sides know each other
  std::unique_ptr<net::FdWatcher> watcher_;
  std::unique_ptr<net::Timer> timer_;
  std::string buffer_;
  Hello hello_;
  bool dials_ = false;
  bool connected_ = false;
  bool closed_ = false;
  Dialled dialled_;
  Judge judge_;
  Accepted accepted_;
  std::function<void()> dropped_;
};

}  // namespace dt::tcp
