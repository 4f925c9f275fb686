// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "base/wait.h"
#include "cli/run/node_place.h"
#include "cli/run/roster.h"
#include "net/loop.h"
#include "store/client.h"
#include "store/server.h"

namespace dt::cli {

struct LobbyOptions {
  NodePlace node;
  std::string host_name;     ///< for texts
  int64_t pid = 0;           ///< likewise
  uint64_t nonce = 0;        ///< of this process
  std::string bind_address;  ///< where the lead listens; empty: its own address
  net::Security security;
  LoggerPtr logger;
  int64_t answer_ms = 10'000;  ///< after such a silence the lead counts as lost
};

/// What a lead says to other leads, of which only one may go on.
struct Standing {
  int attempt = -1;  ///< the last one that it saw begin
  int agents = 0;    ///< there, or in it
};

/// Where agents wait for the next attempt: a store that one of them, the lead, serves at its
/// rendezvous address between and during attempts. An agent that waits gives signs of life there; a
/// connection alone tells nothing of a host that has lost its power.
///
/// Any thread, one at a time.
class Lobby {
 public:
  /// This agent leads, at its own address.
  static Result<std::unique_ptr<Lobby>> open(net::Loop* loop, const LobbyOptions& options,
                                             const Wait& wait);
  /// The lobby at another agent's address. CONFIG: it is another job's, or was started otherwise,
  /// for good. Anything else may be tried again: nobody is there yet.
  static Result<std::unique_ptr<Lobby>> visit(net::Loop* loop, const LobbyOptions& options,
                                              int address, const Wait& wait);
  /// Absent: nobody leads there now.
  static std::optional<Standing> standing_of(net::Loop* loop, const LobbyOptions& options,
                                             int address, const Wait& wait);
  ~Lobby();
  Lobby(const Lobby&) = delete;
  Lobby& operator=(const Lobby&) = delete;

  bool leads() const { return server_ != nullptr; }
  /// Of the lead, for what it serves besides.
  std::string bound_address() const { return server_->bound_address(); }
  const std::string& address() const { return address_; }

  /// This agent waits for an attempt.
  Status present(const Presence& presence, const Wait& wait);
  /// The answer. TIMEOUT at the deadline, when the lead is there; PEER_LOST when it is not.
  Result<Offer> await_offer(const Presence& presence, const Wait& wait);
  /// `lost` runs on the loop's thread when the connection to the lead is gone; now, if it is
  /// already. Empty: no more, once this returns.
  void on_lost(std::function<void()> lost);
  /// What the lead waits for; empty unknown.
  std::string lead_text();

  // The lead.
  /// Those that wait and were not answered yet, and are alive; the first to come is the first.
  Result<std::vector<Presence>> waiting(const Wait& wait);
  Status answer(const std::vector<Presence>& whom, const Offer& offer);
  /// For lead_text() and standing_of().
  void tell(const std::string& text, const Standing& standing);

 private:
  Lobby(net::Loop* loop, LobbyOptions options) : loop_(loop), options_(std::move(options)) {}
  Result<std::shared_ptr<store::Client>> connect(const std::string& host, uint16_t port,
                                                 const Wait& wait) const;
  struct Signs {
    int64_t beats = 0;
    int64_t moved_ns = 0;  ///< when they were seen to grow
    size_t order = 0;      ///< of its coming
  };
  bool is_alive(uint64_t nonce, const std::optional<std::string>& beats);

  net::Loop* const loop_;
  const LobbyOptions options_;
  std::string address_;
  std::string host_;  // of the lead, as this agent reaches it; the lead itself has none
  std::unique_ptr<store::Server> server_;
  std::shared_ptr<store::Client> client_;
  std::set<std::pair<uint64_t, int64_t>> answered_;  // nonce and serial
  std::map<uint64_t, Signs> signs_;                  // by nonce; the lead's
};

}  // namespace dt::cli
