// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the ranks of join_load say, and how they read what they are answered.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "net/guard.h"
#include "net/security.h"
#include "store/messages.h"
#include "store/protocol.h"
#include "store/uplink.h"

namespace dt::load {

constexpr int64_t kRoundLimitMs = 3'600'000;

/// What a rank of `ranks` brings to the join: 8 of them on a host.
store::JoinRecord record_of(int rank, int ranks);

struct Rank {
  int index = 0;
  int fd = -1;
  int second_fd = -1;
  bool connected = false;
  bool second_connected = false;
  bool greeted = false;               ///< the server has answered for the first time
  std::unique_ptr<net::Guard> guard;  ///< until both sides have proved that they have the token
  std::string out;                    ///< what is to be said; empty once it was
  size_t sent = 0;                    ///< of out
  int stage = 0;
  int next = 0;                                     ///< record to ask for
  int expected = 0;                                 ///< record to be answered
  std::string partial;                              ///< of a header
  size_t skip = 0;                                  ///< bytes of a payload that are still to come
  store::FrameParser uplink{store::kMaxDataBytes};  ///< of a relay
  bool done = false;
};

/// One way of meeting: what a rank says, and when it is content.
class Script {
 public:
  virtual ~Script() = default;
  virtual void connected(Rank* rank) = 0;
  /// All was said: there may be more.
  virtual void drained(Rank*) {}
  virtual void heard(Rank* rank, const char* data, size_t bytes) = 0;
  /// True: the rank wants its second connection now; second_open() follows.
  virtual bool wants_second(const Rank&) const { return false; }
  virtual void second_open(Rank*) {}
  /// False: the server is silent until all have come.
  virtual bool greets() const { return true; }
};

/// With `reads`, each rank reads all records behind the verdict.
std::unique_ptr<Script> dt_script(int ranks, bool reads, net::Security security);

/// For serve_least().
std::unique_ptr<Script> least_script(int question_bytes, int answer_bytes);

/// Each "rank" of it is the relay of a host, which brings kRelayedRanks ranks over its connection.
constexpr int kRelayedRanks = 8;
std::unique_ptr<Script> relay_script(int ranks, net::Security security);

enum class Reading { kNone, kPipelined, kAsClient };
std::unique_ptr<Script> torch_script(int ranks, bool as_client, Reading reading);

}  // namespace dt::load
