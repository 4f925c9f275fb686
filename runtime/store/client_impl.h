// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "store/client.h"
#include "store/link.h"

namespace dt::store {

/// A call in flight. `done` is set last, by the loop's thread; the caller reads the rest after it.
struct Call {
  Event done;
  Status status;
  std::string payload;
  uint64_t id = 0;            // loop's thread only
  bool bears_deaths = false;  // the same: goes on when other ranks die
  bool joins = false;         // the same
};

/// The client's state. Loop's thread only, except the const members.
class Client::Impl : public std::enable_shared_from_this<Client::Impl> {
 public:
  Impl(net::Loop* loop, ClientOptions options);

  /// `ready` is completed when the server has answered the hello, or refused it.
  void start(std::shared_ptr<Call> ready, Deadline deadline);
  /// Ends the tries; "12 tries, the last: ...".
  std::string give_up();
  void begin(const std::shared_ptr<Call>& call, FrameType type, const std::string& payload);
  /// The caller no longer waits; the server is told.
  void withdraw(const std::shared_ptr<Call>& call);
  void set_callback(std::function<void(const Failure&)> callback);
  void set_observers(Observers observers);
  /// As often as the server says. Called again, the next one is due at once.
  void begin_beats();
  void set_dumper(std::function<void(const std::string&, DumpAnswerer)> dumper) {
    dumper_ = std::move(dumper);
  }
  void forgive(const std::vector<int32_t>& ranks);
  void know(const ErrorInfo& info);
  void close();

  const ClientOptions options;
  const std::string address;  ///< "host:port", for texts
  const Member self;
  /// Written before the caller of connect() goes on, constant afterwards.
  Welcome welcome;
  std::string peer_host;
  /// "the store at 127.0.0.1:4711 (rank 0, hostA pid 12)"
  std::string server_text() const;

 private:
  void on_frame(Frame frame);
  void on_beat();
  void tell_orders(bool all);
  void on_news(Frame frame);
  void on_silence(int64_t silence_ms);
  void on_lost(const std::string& reason);
  void lose(const std::string& what, bool silent = false);
  void on_dump_request(const Frame& frame);
  void answer_dump(uint64_t id, const Result<std::string>& written);
  void fail(const Failure& failure);
  void finish_all(const Status& status);
  void fail_calls();
  Status obstacle() const;
  static void finish(Call* call, Status status, std::string payload);

  net::Loop* const loop_;
  std::unique_ptr<Link> link_;
  std::map<uint64_t, std::shared_ptr<Call>> pending_;
  uint64_t last_id_ = 1;  // 1 was the hello
  uint64_t goodbye_id_ = 0;
  bool goodbye_ended_ = false;
  std::vector<Status> failures_;  // of the whole job, in order, but those that were forgiven
  Status broken_;                 // the first of them
  Status store_gone_;             // why, where lost_ is not on purpose
  bool lost_ = false;
  std::function<void(const Failure&)> callback_;
  std::function<void(const std::string&, DumpAnswerer)> dumper_;  // of a rank that records
  std::vector<Failure> untold_;  // failures before there was a callback
  Observers observers_;
  bool observed_ = false;
  std::vector<Frame> unseen_;               // news from before there were observers
  std::unique_ptr<net::Timer> beat_timer_;  // null: no signs of life
  int64_t beat_at_ns_ = 0;                  // when the timer should fire
  int64_t awake_ns_ = 0;                    // this process ran again after a long pause
  int64_t excused_until_ns_ = 0;            // the rank that serves is away on purpose
};

}  // namespace dt::store
