// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ps/checkpoint.h"
#include "ps/protocol.h"
#include "ps/server.h"
#include "ps/table.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/link.h"

namespace dt::ps {

/// A connection of a worker, or of an evaluator, to this server.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(ServerCore* core, net::Loop* loop, int32_t worker)
      : core_(core), loop_(loop), worker_(worker), heard_ns_(monotonic_ns()) {}

  void open(tcp::Socket socket);
  /// Nothing is told to the core any more.
  void close();
  bool closed() const { return core_ == nullptr; }
  /// When its peer gave the last sign, at most a tick of the core ago.
  int64_t heard_ns(int64_t now_ns) {
    const uint64_t signs = link_->signs();
    if (std::exchange(signs_, signs) != signs) heard_ns_ = now_ns;
    return heard_ns_;
  }
  int32_t worker() const { return worker_; }
  void answer(What what, uint64_t sequence, int64_t count = 0);
  void answer(What what, uint64_t sequence, std::string payload);
  /// `values` of `bytes`, which it keeps until they are sent.
  void answer(uint64_t sequence, int64_t count, std::shared_ptr<float[]> values, int64_t bytes);
  void refuse(uint64_t sequence, Code code, std::string text);

  // Used by the core.
  bool entered = false;
  bool keeps_clock = true;
  std::vector<Table*> tables;      ///< by the worker's numbers
  int32_t saves = 0;               ///< that it has asked for, and that are not over
  std::vector<uint64_t> goodbyes;  ///< which are answered after these
  /// A clock that waits for slower workers.
  struct ClockRequest {
    bool waits = false;
    uint64_t sequence = 0;
    uint64_t ahead = 0;
    int32_t told = -1;  ///< of whom, and of which clock
    int64_t told_clock = 0;
  } clock;

 private:
  void receive();
  void send(const tcp::Header& header, const void* data, std::function<void()> keep);

  ServerCore* core_;  // null: closed
  net::Loop* const loop_;
  const int32_t worker_;
  std::shared_ptr<tcp::Link> link_;
  tcp::Header header_;
  std::string payload_;
  int64_t unsent_ = 0;  ///< bytes of answers
  bool receiving_ = false;
  uint64_t signs_ = 0;  ///< of the link, when it was last looked at
  int64_t heard_ns_;
};

/// What a Server has on its loop's thread.
class ServerCore {
 public:
  ServerCore(const Server::Options& options, Server::Statistics* statistics, net::Loop* loop,
             net::Loop* files)
      : options_(options), statistics_(statistics), loop_(loop), files_(files) {}
  ~ServerCore();

  Status begin(tcp::Socket listener);
  /// Closes everything, and ends with ABORTED unless it has ended.
  void stop();
  /// A worker, or with -1 an evaluator, whose greeting was right.
  std::shared_ptr<Session> admit(int32_t worker, tcp::Socket socket);
  // For sessions.
  void on_message(Session& session, const tcp::Header& header, std::string_view payload);
  void on_lost(Session& session, const std::string& reason);
  void drop(Session& session, const std::string& reason);
  void save(std::function<void(const Status&)> done);

  Event ended;
  Status end_status;  ///< before `ended`

 private:
  /// A worker, connected or not.
  struct Member {
    uint64_t nonce = 0;
    uint64_t last_change = 0;
    int64_t clock = 0;
    std::string host;
    int64_t pid = 0;
    Session* session = nullptr;  ///< null: absent
    bool said_goodbye = false;
    int64_t absent_ns = 0;  ///< since
  };

  void close();
  void on_readable();
  Status judge(const tcp::Hello& hello) const;
  void enter(Session& session, const Enter& enter);
  void open(Session& session, uint64_t sequence, uint64_t number, const OpenRequest& request);
  void use_rows(Session& session, const tcp::Header& header, std::string_view payload);
  void change(Table& table, What what, const Rows& rows, int64_t count);
  void pull(Session& session, uint64_t sequence, Table& table, const Rows& rows, int64_t count);
  void set_clock(Session& session, const tcp::Header& header);
  /// The connected worker with the lowest clock; null: none keeps one.
  const std::pair<const int32_t, Member>* slowest() const;
  void review_clocks();
  void tick();
  int64_t patience_ms() const;
  std::string after_loss() const;
  void replace_session_of(int32_t worker, Member& member);
  bool gone(const Member& member, int64_t now_ns) const;
  bool may_come(int64_t now_ns) const;
  void look_for_end();
  Status after_all_have_gone(int64_t now_ns) const;
  /// A checkpoint is due at that time, or earlier.
  void save_by(int64_t at_ns);
  void begin_saving();
  void end(Status status);
  Table* find(const std::string& name) const;
  std::string own_text() const;

  const Server::Options& options_;
  Server::Statistics* const statistics_;
  net::Loop* const loop_;
  net::Loop* const files_;
  tcp::Socket listener_;
  std::unique_ptr<net::FdWatcher> watcher_;
  std::unique_ptr<net::Timer> timer_;
  std::map<uint64_t, std::shared_ptr<tcp::Handshake>> greeting_;  ///< by age
  uint64_t last_greeting_ = 0;
  std::set<std::shared_ptr<Session>> sessions_;
  std::map<int32_t, Member> members_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::shared_ptr<Saving> saving_;
  std::vector<std::function<void(const Status&)>> save_waiters_;  ///< of the one under way
  std::vector<std::function<void(const Status&)>> next_waiters_;  ///< of the next one

  std::vector<Known> known_;  ///< workers of the server that this one takes the place of
  bool replaces_ = false;     ///< one of them has come, so it does
  bool closed_ = false;       ///< nobody comes any more: the socket was shut
  int64_t begun_ns_ = 0;
  int64_t save_at_ns_ = 0;  ///< 0: nothing has changed since the last one
  bool ending_ = false;
};

}  // namespace dt::ps
