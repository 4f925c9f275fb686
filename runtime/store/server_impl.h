// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "net/address.h"
#include "net/secure_connection.h"
#include "net/tcp.h"
#include "store/gather.h"
#include "store/join.h"
#include "store/keyspace.h"
#include "store/order_table.h"
#include "store/protocol.h"
#include "store/server.h"
#include "store/torch_protocol.h"
#include "store/torch_service.h"
#include "store/uplink.h"
#include "store/vitals.h"

namespace dt::store {

/// A request to all ranks to write their traces; one at a time.
struct Dumping {
  Ticket asker;
  uint64_t id = 0;
  int64_t deadline_ns = kNeverNs;
  std::map<uint64_t, size_t> waiting;  ///< sessions that have not answered: their place in answers
  std::vector<DumpAnswer> answers;
};

uint64_t random_session();  // never 0

// Threads: everything runs on the loop's thread, except the constructor and what is const after
// start(). Callbacks capture `this`: connections, listener and timer are destroyed by stop(), on
// the loop's thread, and call nothing afterwards.
class Server::Impl {
 public:
  Impl(net::Loop* loop, ServerOptions options);

  FirstFailure first_failure() const {
    return {first_rank_.load(), first_is_silent_.load(), late_rank_.load()};
  }
  bool heeds_stop() const { return heeds_stop_.load(); }
  void push_stop();
  void process_ended(const Member& rank, const std::string& how);
  Status listen(const std::vector<net::Address>& addresses);
  void stop();
  void when_empty(std::shared_ptr<Event> empty);
  std::vector<std::string> connected() const;
  const net::Address& bound() const { return bound_; }

 private:
  /// Who is at the other end. Known when the connection is open: at once, from the first byte, or
  /// when the other side has proved that it has the token.
  enum class Peer { kUnknown, kDt, kTorch };
  struct Session {
    uint64_t id = 0;
    std::unique_ptr<Wire> connection;
    std::string peer_host;  // it may be gone when it is to be named
    Peer peer = Peer::kUnknown;
    FrameParser parser{kMaxHelloBytes};
    std::unique_ptr<TorchParser> torch;  // of a Peer::kTorch
    Member member;
    bool relayed = false;  // its wire is a channel
    bool welcomed = false;
    bool refused = false;       // waits for the other side to hang up, so that it can read why
    bool one_too_many = false;  // told so as soon as its protocol is known
    bool tolerated = false;     // silent, and taken for a PyTorch client's second connection
    bool heeds_stop = false;    // it has said that it ends when it is asked to stop
    int64_t beat_ns = 0;        // when it was given a sign of life last
    size_t noted_bytes = 0;     // what was kept for it when it was looked at last
    // Over its wire, at the last look if that was not read then; see note_deliveries().
    std::optional<uint64_t> delivered_bytes;

    /// Not a stranger: it has said who it is.
    bool known() const { return welcomed || peer == Peer::kTorch; }
    Owner owner() const { return welcomed ? Owner::kMembers : Owner::kGuests; }
  };

  /// Ranks that were asked whether they are there, and who wants to know.
  struct Question {
    Ticket asker;
    uint64_t asked = 0;  // session
    int64_t deadline_ns = kNeverNs;
  };

  void accept(std::unique_ptr<net::Connection> connection);
  /// Makes room for it where strangers are many. Its wire is still to be set.
  Session* add_session(uint64_t id, std::string peer_host);
  /// Of dt. Those of guests do not count: they must not take the place of a rank.
  size_t connections() const {
    return known_ - guests_ - relayed_ + uplinks_.size() + handed_over_.size();
  }
  size_t guests() const { return guests_ + tolerated_; }
  size_t guest_limit() const;
  void begin_uplink(uint64_t id, const Frame& frame);
  void handle_uplink(uint64_t id);
  Status handle_channel(Uplink* uplink, const Frame& frame);
  void open_channel(Uplink* uplink, uint64_t number);
  void uplink_drained(uint64_t id);
  void flush_uplinks();
  std::unique_ptr<Uplink> end_uplink(uint64_t id, int error);
  void break_uplink(uint64_t id, const Status& why);
  void received(uint64_t id, const char* data, size_t bytes);
  void opened(uint64_t id);
  void turned_away(uint64_t id, const Status& why, bool plain);
  void settle(Session* session, Peer peer);
  std::set<std::string> torch_hosts() const;
  void tolerate(Session* session);
  void turn_away_guest(uint64_t id, const Session& session);
  void evict_strangers();
  enum class Standing { kStranger, kTolerated, kKnown };
  Standing standing(const Session& session, const std::set<std::string>& torch_hosts) const;
  void drop_strangers(int64_t now_ns);
  void proceed(uint64_t id);
  void handle_frames(uint64_t id);
  void handle_torch(uint64_t id);
  void handle(uint64_t id, Session* session, const Frame& frame);
  void hello(uint64_t id, Session* session, const Request& request);
  JoinSetup join_setup() const;
  bool begins_next_job(const Hello& hello) const;
  void begin_next_job();
  bool begins_next_attempt(const Hello& hello) const;
  void begin_next_attempt(const Hello& hello);
  void start_timers();
  Impl* impl_of(uint64_t id);
  Result<Impl*> find_other_job(const Hello& hello);
  void evict_ended_job();
  void hand_over(uint64_t id, Impl* job, const Request& request);
  void adopt(std::unique_ptr<Session> session, const Request& request);
  void reported(uint64_t id, const Session& reporter, const Failure& failure, Answers* answers);
  void ask_peer(Ticket asker, int64_t rank, Patience patience);
  void peer_answered(uint64_t question, bool answers);
  void drop_questions(uint64_t id);
  /// Of those that are asked and will not answer, or too late.
  void end_questions(const std::function<bool(const Question&)>& ended);
  void dump_traces(Ticket asker, const std::string& directory, Patience patience);
  void trace_dumped(uint64_t id, const Request& request);
  /// The session is gone: it will not answer, nor wait for answers.
  void drop_dumping(uint64_t id);
  void end_dumping();
  void review_gatherings();
  void note_partings();
  void abort_job(uint64_t id, const Session& session, const Request& request);
  Result<std::string> answer_now(const Request& request, Answers* answers);
  void refuse(Session* session, const Status& status);
  void send(Session* session, std::string bytes, net::SharedBytes shared = {});
  void note(Session* session);
  size_t told_bytes(const Session& session) const;
  void note(Uplink* uplink);
  size_t noted_for(const Uplink& uplink) const;
  void count_anew();
  size_t kept_for(Owner owner) const;
  void keep_within_budget();
  /// `whose` memory it is that is at its `limit`.
  void let_go(uint64_t id, const char* whose, size_t limit);
  void drop(uint64_t id, int error);
  void reply(Session* session, uint64_t request, const Result<std::string>& result);
  bool reply_again(Session* session, const Frame& frame);
  void deliver(const Answers& answers);
  void gone(const Session& session);
  void tell_if_empty();
  void note_first(const Failure& failure);
  void note_late(const Failure& failure);
  void push(const Failure& failure, uint64_t except);
  void tell_members(std::string frame, uint64_t except = 0);
  void push_soon(const Failure& death);
  void tell_news();
  void begin_watch(int64_t now_ns);
  void beat(uint64_t id, Session* session, Request* request, int64_t now_ns);
  void beat_unasked(Session* session);
  void beat_neighbours(int64_t now_ns);
  void note_deliveries(int64_t now_ns);
  void set_busy(Session* session, Request* request, int64_t now_ns);
  bool name_laggards(Failure* failure, int32_t reporter, int64_t now_ns) const;
  void compare_orders(uint64_t id, const Session& session, const Request& request, int64_t now_ns);
  void tell_disagreements(int64_t now_ns);
  void note_departure(int32_t rank, int64_t now_ns);
  void tell_departed(int64_t now_ns);
  void look_for_silence(int64_t now_ns);
  /// `doubt` follows what is said of it; empty: none.
  void declare_lost(int32_t rank, const std::string& doubt, int64_t now_ns);
  void add_last_words(const Session& session, Ending* ending) const;
  void notice(const std::string& text);
  void on_timer();
  void arm_timer();

  net::Loop* const loop_;
  ServerOptions options_;  // another attempt changes attempt and world_size
  const MemoryBudget budget_;
  net::Address bound_;
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<net::Timer> timer_;
  /// Frames of deaths that are not told yet. Only while connections end one after the other in one
  /// turn of the loop: whatever else is done or said comes behind them.
  std::vector<std::string> news_;
  std::unique_ptr<net::Timer> news_timer_;  // due at the end of the turn while there are news_
  int64_t armed_for_ns_ = kNeverNs;
  uint64_t last_id_ = 0;
  std::unordered_map<uint64_t, std::unique_ptr<Uplink>> uplinks_;  // above their sessions' wires
  std::vector<uint64_t> touched_uplinks_;      // written to in this turn of the loop
  std::unique_ptr<net::Timer> uplinks_timer_;  // due at the end of the turn while there are some
  std::unordered_map<uint64_t, std::unique_ptr<Session>> sessions_;
  std::deque<std::pair<int64_t, uint64_t>> strangers_;  // deadline_ns, session; in order
  const size_t open_files_ = net::open_files_limit();
  const size_t max_strangers_;
  size_t known_ = 0;          // sessions that are known()
  size_t guests_ = 0;         // of those, PyTorch's clients
  size_t tolerated_ = 0;      // sessions that are tolerated, none of them known()
  size_t relayed_ = 0;        // of those, ranks that come over an uplink
  uint64_t turned_away_ = 0;  // connections that the guard refused
  uint64_t turned_away_guests_ = 0;
  /// The last multi_get. Ranks that need each other's records all ask the same question, and their
  /// answers together would be the square of the number of ranks.
  struct {
    std::string question;
    uint64_t version = 0;
    SharedText answer;  // null: none yet
  } last_read_;
  std::map<uint64_t, Question> questions_;  // by the id of the kPing
  uint64_t last_question_ = 0;
  std::optional<Dumping> dumping_;
  uint64_t last_dumping_ = 0;
  size_t dt_sessions_ = 0;  // of Peer::kDt
  Keyspace keyspace_;
  TorchService torch_;
  /// What the connections make this process keep, by owner: the sum of noted_bytes. What was sent
  /// since then makes it less; that is looked up when it seems to be too much.
  size_t noted_bytes_[2] = {};
  std::vector<uint64_t> overfull_;  // guests above their limit
  uint64_t let_go_ = 0;             // connections, for the sake of memory
  JoinTable joins_;
  GatherTable gatherings_;
  Vitals vitals_;                        // of the members, where they give signs of life
  OrderTable orders_;                    // of the members, where they tell what they call
  std::set<std::string> late_comms_;     // whose time-out all ranks were told of
  int64_t look_at_ns_ = kNeverNs;        // when to look for silent ones
  std::vector<int32_t> departed_;        // said goodbye, and the others have not been told
  int64_t tell_departed_ns_ = kNeverNs;  // when they are
  int64_t join_deadline_ns_ = kNeverNs;  // of joins_; looked up only when it may have changed
  bool aborted_ = false;
  // Written on the loop's thread.
  std::atomic<int32_t> first_rank_{-1};  // once, behind the next one
  std::atomic<bool> first_is_silent_{false};
  std::atomic<int32_t> late_rank_{-1};
  std::atomic<bool> heeds_stop_{false};
  std::vector<std::shared_ptr<Event>> empty_waiters_;
  // With any_job: the jobs next to this one, by job_id. They accept no connections: this one does,
  // and hands over those whose hello belongs to them.
  struct OtherJob {
    uint64_t order = 0;  // of the first hello
    std::unique_ptr<Impl> impl;
  };
  std::map<std::string, OtherJob> other_jobs_;
  uint64_t last_order_ = 0;
  std::unordered_map<uint64_t, Impl*> handed_over_;  // by session
  Impl* front_ = nullptr;                            // of one of the other jobs: who accepts
};

}  // namespace dt::store
