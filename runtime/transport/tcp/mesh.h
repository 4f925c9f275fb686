// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/guarded.h"
#include "base/status.h"
#include "base/wait.h"
#include "net/address.h"
#include "net/loop.h"
#include "net/security.h"
#include "transport/tcp/farewell.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/socket.h"

namespace dt::tcp {

/// A rank of another host, as the others know it.
struct Peer {
  int32_t rank = -1;  ///< world rank
  std::string host;
  int64_t pid = 0;
  net::Address address;  ///< where it listens

  /// "rank 2 (hostB pid 4711) at 10.0.0.2:29600"
  std::string text() const;
};

/// The connections of one rank to the ranks of other hosts: for each communicator and peer as many
/// as the options say, made when first needed, so that a message which nobody awaits yet holds up
/// its own communicator only. Of two ranks the lower one dials.
///
/// Owns the thread "dt-tcp" and its loop. What is marked so runs there; the rest is for any thread.
class Mesh {
 public:
  using LookUp =
      std::function<Result<std::vector<Peer>>(const std::vector<int32_t>& ranks, const Wait& wait)>;
  struct Options {
    uint64_t session = 0;  ///< equal on all ranks of this job and attempt, in no other
    int32_t rank = 0;      ///< world rank of this process
    int32_t world_size = 0;
    std::string host;                 ///< its name, for texts
    net::Security security;           ///< of the connections
    std::string congestion = "auto";  ///< see set_congestion()
    int32_t connections = 1;          ///< to each peer for each communicator; equal on all ranks
    LookUp look_up;                   ///< who the ranks are; may block, under `wait`
  };

  /// `listener`: from listen_on(); connections that came before wait in it.
  static Result<std::shared_ptr<Mesh>> start(Socket listener, Options options);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  net::Loop* loop() const { return loop_.get(); }
  const Options& options() const { return options_; }
  const net::Address& address() const { return address_; }
  /// "rank 0 (hostA) at 10.0.0.1:29600"
  std::string own_text() const;

  /// Learns who these world ranks are, where that is not known yet.
  Status know(const std::vector<int32_t>& ranks, const Wait& wait);
  /// After know().
  Peer peer(int32_t rank) const;
  /// Whether `rank` can be reached: a greeting there and back. Not on the loop's thread.
  Status probe(int32_t rank, const Wait& wait);

  using Connected = std::function<void(Result<Socket>)>;
  /// Loop's thread. Dials, or waits for the peer's call; `done` runs once, unless forgotten; with
  /// ABORTED when the peer has destroyed the communicator, and with SYSTEM where the fault is this
  /// process's.
  void connect(const std::string& communicator, int32_t rank, int32_t connection, Connected done);
  /// Loop's thread. The communicator is made here; its name may have been forgotten before.
  void expect(const std::string& communicator);
  /// Loop's thread. Drops what belongs to the communicator, and refuses what comes for it later.
  enum class End : uint8_t { kBroken, kDestroyed, kFinalized };
  void forget(const std::string& communicator, End end);
  /// Loop's thread. Sends a last message over connections that nobody uses any more, over one
  /// after the other: the peer has it from the first, while the others still stand.
  void part(std::vector<Socket> sockets, const Header& last);
  /// Loop's thread. So many users of the loop have begun something that they wait for, or ended it.
  void count_busy(int change) { busy_ += change; }
  bool busy() const { return busy_ > 0; }
  /// Loop's thread. How far the connection is, for messages: "is being dialled".
  std::string progress(const std::string& communicator, int32_t rank) const;

 private:
  using Key = std::tuple<std::string, int32_t, int32_t>;  ///< communicator, world rank, connection

  Mesh(Options options, std::unique_ptr<net::Loop> loop);
  Status listen(Socket listener);
  size_t greeting_limit() const;
  void on_readable();
  Status judge(const Hello& hello) const;
  void drop(const std::string& communicator);
  const End* ended(const std::string& communicator) const;
  void accepted(const Hello& hello, Socket socket);
  void dial(const Key& key, Connected done);

  const Options options_;
  net::Address address_;
  const std::unique_ptr<net::Loop> loop_;
  Guarded<std::map<int32_t, Peer>> peers_;
  // Loop's thread:
  int busy_ = 0;
  Socket listener_;
  std::unique_ptr<net::FdWatcher> watcher_;
  std::unique_ptr<net::Timer> shortage_;  ///< of descriptors: accepts again when it fires
  int accept_error_ = 0;                  ///< what there is too little of; 0: enough
  std::map<uint64_t, std::shared_ptr<Handshake>> greeting_;  ///< accepted, no hello yet; by age
  uint64_t last_greeting_ = 0;
  std::map<Key, std::shared_ptr<Handshake>> dialling_;
  std::map<Key, Connected> awaited_;
  std::map<Key, Socket> early_;  ///< dialled by a peer before this rank asked
  std::set<Key> taken_;          ///< dialled by a peer and handed over
  std::set<std::shared_ptr<Farewell>> parting_;
  /// What became of communicators, by the hash of their names: the last ones and those before.
  std::unordered_map<size_t, End> ended_[2];
};

}  // namespace dt::tcp
