// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ps/client.h"
#include "ps/protocol.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/link.h"

namespace dt::ps {

/// A call of the program, of one or more requests. Loop's thread, once it is issued.
struct Call {
  std::string what;  ///< "push to variable "x"", for texts
  std::shared_ptr<backend::Work> work;
  Deadline deadline = Deadline::never();
  float* values = nullptr;           ///< of a pull
  int32_t columns = 0;               ///< likewise
  size_t open = 0;                   ///< requests without an answer
  int64_t lowest_clock = INT64_MAX;  ///< of answers to kClock
  bool ended = false;
};

/// Rows one behind the other in the memory of a pull.
struct Run {
  int64_t row = 0;
  int64_t count = 0;
};

/// What one server is asked.
struct Request {
  std::shared_ptr<Call> call;
  What what = What::kSign;
  uint64_t sequence = 0;
  uint64_t signature = 0;
  int64_t count = 0;
  std::string payload;
  int64_t answer_bytes = 0;  ///< that are expected
  std::vector<Run> targets;  ///< of a pull: where its rows go in call->values
  Waiting waiting;           ///< of kClock
  bool restores = false;     ///< kOpen of a variable that the server had
};

/// What callers and the loop share of a Client.
struct Client::Room {
  /// Calls that wait for room, by the order in which they came: a large one would otherwise never
  /// find any while other threads make small ones.
  struct Queue {
    uint64_t last = 0;
    std::set<uint64_t> waiting;
  };
  std::atomic<int64_t> bytes{0};  ///< under way; calls add theirs under the queue's lock
  Guarded<Queue> queue;
  Doorbell bell;  ///< rung when bytes become fewer, or the queue shorter
  Guarded<Statistics> statistics;
};

/// A server, as the client's loop has it.
class ServerLink {
 public:
  ServerLink(ClientCore* core, net::Loop* loop, const Client::Options& options, int32_t index);
  ~ServerLink();

  void begin();
  void ask(std::shared_ptr<Request> request);
  /// A variable that it has; repeated when it comes back.
  void know(uint64_t number, std::string variable);
  /// Fails what has no answer by its deadline.
  void look_for_overdue();
  /// Gives a sign of life, and gives up a server that has given none.
  void sign(int64_t now_ns);
  /// Fails all that waits, with ABORTED, and ends.
  void close();
  bool connected() const { return phase_ == Phase::kOpen; }
  int64_t lowest_clock() const { return lowest_clock_; }
  /// "parameter server 1 (hostB pid 4711) at hostB:4000"
  std::string text() const;
  /// Why it is not connected.
  std::string state() const;
  const Status& fatal() const { return fatal_; }

 private:
  enum class Phase { kIdle, kDialling, kEntering, kOpen, kClosed };

  void resolved(const Result<std::vector<net::Address>>& addresses);
  void dial();
  void dialled(Result<tcp::Socket> result);
  void receive();
  void on_message();
  void on_welcome(const Welcome& welcome);
  void on_answer(const std::shared_ptr<Request>& request, What what);
  void repeat();
  void send(const std::shared_ptr<Request>& request);
  int64_t clock_to_enter_with() const;
  void replace_clocks();
  void lose(const std::string& reason);
  void fail_all(const Status& status);
  /// The request needs nothing more.
  void finish(const std::shared_ptr<Request>& request, const Status& status);
  /// Its call hears of the end, or of a failure.
  static void tell(Call& call, const Status& status);

  ClientCore* const core_;
  net::Loop* const loop_;
  const Client::Options& options_;
  const int32_t index_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  net::Timer retry_;
  Phase phase_ = Phase::kIdle;
  uint64_t tries_ = 0;  ///< what belongs to an earlier one is not looked at
  std::vector<net::Address> addresses_;
  size_t address_ = 0;
  std::shared_ptr<tcp::Handshake> handshake_;
  std::shared_ptr<tcp::Link> link_;
  tcp::Header header_;
  std::string payload_;
  std::shared_ptr<Request> target_;                          ///< whose answer is coming
  std::map<uint64_t, std::shared_ptr<Request>> unanswered_;  ///< by sequence
  std::map<uint64_t, std::string> variables_;                ///< by number
  uint64_t last_sequence_ = 0;
  int64_t heard_ns_ = 0;  ///< when the server gave the last sign, at most a tick ago
  uint64_t signs_ = 0;    ///< of link_, when it was last looked at
  int64_t signed_ns_ = 0;
  int64_t lost_ns_ = 0;   ///< 0: it was never lost
  int64_t delay_ms_ = 0;  ///< before the next try
  int64_t lowest_clock_ = 0;
  bool was_open_ = false;
  std::string host_;  ///< as it says itself
  int64_t pid_ = 0;
  std::string reason_ = "it was not tried yet";
  Status fatal_;  ///< no further try would help
};

/// What a Client has on its loop's thread.
class ClientCore {
 public:
  ClientCore(const Client::Options& options, std::shared_ptr<Client::Room> room, net::Loop* loop);
  ~ClientCore();

  Status begin();
  void close();
  void ask(size_t server, std::shared_ptr<Request> request);
  ServerLink& server(size_t index) { return *servers_[index]; }
  /// A server has answered the greeting, or never will.
  void on_state();
  void end_request(const Request& request);
  /// What of the servers is not there, for messages.
  std::string missing() const;
  Client::Room& room() { return *room_; }
  int64_t clock() const { return clock_; }
  void set_clock(int64_t clock) { clock_ = clock; }
  uint64_t nonce() const { return nonce_; }

  Event ready;  ///< all are connected, or one never will be
  Status ready_status;

 private:
  void tick();

  const Client::Options& options_;
  const std::shared_ptr<Client::Room> room_;
  uint64_t nonce_ = 0;
  int64_t clock_ = kNoClock;
  std::vector<std::unique_ptr<ServerLink>> servers_;
  net::Timer timer_;
};

}  // namespace dt::ps
