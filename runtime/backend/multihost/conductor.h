// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/host/host_backend.h"
#include "backend/multihost/agreement.h"
#include "backend/multihost/multihost.h"
#include "collective/schedule.h"
#include "transport/tcp/link.h"
#include "transport/tcp/mesh.h"

namespace dt::backend {

/// Carries out the operations of one communicator that spans hosts: an actor on the mesh's loop,
/// where all of its functions run unless marked otherwise. It never blocks there: operations of the
/// local ranks are submitted to their backend, whose eventfd wakes the loop, and sockets wake it
/// too.
///
/// Steps are counted in `pending_`; when it is zero the next phase begins. Memory that steps use
/// belongs to this object or to the caller of the operation, and an operation completes, well or
/// ill, only when no local operation is under way that might touch it and no link has it queued.
class Conductor : public std::enable_shared_from_this<Conductor> {
 public:
  Conductor(const MultihostOptions& options, Interrupt* interrupt);
  /// Watches the local backend.
  Status open();
  void enqueue(const Collective& collective, std::shared_ptr<Work> work);
  /// The communicator is broken, see the interrupt: fails everything that is queued.
  void fail();
  /// Breaks it, if it is whole, and tells the control plane.
  void break_with(const Status& status);
  /// Fails what is queued, tells the peers that this rank has left, and lets go of all that the
  /// loop knows of; then sets `ended`.
  void stop(std::shared_ptr<Event> ended);

  /// This rank leaves the job, and what it had begun has ended. Tells the peers, also those that
  /// ask later. What is enqueued afterwards fails.
  void leave();

  /// The peer has left the job: it opens no connection any more, and one that breaks broke because
  /// of that.
  void peer_left(int32_t peer);
  /// Any thread.
  Status left_behind(Kind kind, int64_t sequence, int32_t peer, const std::string& label) const;

  /// For a caller that visits the loop: looks at the connections that something is awaited of.
  /// True: something moved.
  bool poll();
  /// Of a caller that visits, before each poll(): whether it is time to look at what else the loop
  /// has to do, as the operations of other communicators.
  bool turn_due() { return polls_++ % kPollsPerTurn == 0; }
  /// A caller has waited so long for what is under way: because of the ranks of other hosts that
  /// this one exchanges with, or else of its own.
  void count_wait(int64_t ns);

  /// Any thread. An eventfd that counts completions.
  void set_completion_fd(int fd) { completion_fd_.store(fd, std::memory_order_release); }
  /// Any thread. Returns when the eventfd counts every operation that is done by now: between the
  /// two lie a few instructions of the loop's thread.
  void await_count() const;
  /// Any thread. Operations that have ended.
  uint64_t completed() const { return completed_.load(std::memory_order_acquire); }
  /// Any thread.
  Pulse pulse() const { return pulse_.read(); }
  void excuse(int64_t until_ns) { excuse_.set(until_ns); }
  /// Behind excuse(): a pause may end sooner than the timer knows.
  void look_at_deadlines();

 private:
  enum class Phase { kSay, kState, kExchange, kPassOn, kPassOnMore, kMove };
  /// kContribution: an agreement with what the host contributes behind it.
  enum What : uint32_t { kAgreement = 1, kData = 2, kMessage = 3, kContribution = 4 };

  struct Operation {
    Collective collective;
    std::shared_ptr<Work> work;
    int64_t called_ns = 0;  ///< by the monotonic clock, when the loop heard of it
    bool begun = false;
    bool is_transfer() const { return collective.is_transfer(); }
  };
  using OperationPtr = std::shared_ptr<Operation>;
  struct EndsBefore {
    bool operator()(const OperationPtr& a, const OperationPtr& b) const {
      return a->collective.deadline.before(b->collective.deadline);
    }
  };
  using Transfers = std::multiset<OperationPtr, EndsBefore>;
  /// An operation of the local backend: a step of a collective, or a send or receive.
  struct LocalWork {
    std::shared_ptr<Work> work;
    std::optional<Transfers::iterator> transfer;  ///< none: a step
  };
  /// What the leaders of two hosts exchange, and what a leader tells its host.
  struct Verdict {
    uint64_t good = 0;  ///< 1; 0: differing calls, or some withhold; kUnbalanced
    int64_t statements = 0;
  };
  static constexpr uint64_t kUnbalanced = 2;
  static constexpr uint32_t kPollsPerTurn = 16;

  void drive();
  void note_busy();
  bool step();
  void start_transfer(const OperationPtr& operation);
  void begin(const OperationPtr& operation);
  bool next_phase();
  void say();
  void state();
  void exchange();
  void take_agreement(int32_t host, int32_t peer, const tcp::Header& found);
  void judge();
  void pass_on();
  void pass_on_more();
  void heard();
  void begin_move(const Collective& collective);
  bool reserve_scratch(int64_t bytes);
  bool rides(const Collective& collective) const;
  int64_t payload_bytes() const;
  static int64_t payload_bytes(const tcp::Header& found);
  static bool fits_agreement(const tcp::Header& found);
  void contribute();
  void conclude();
  bool move();
  void add_balances();
  void exchange_tables();
  Status unbalanced() const;
  void start_stage(const collective::Stage& stage);
  void sum(const collective::SumStep& step);
  void finish(Status status);

  void run_locally(Collective collective);
  void on_local_event();
  void finish_transfer(Transfers::iterator transfer);
  void end_transfer(Transfers::iterator transfer);
  void put_local(size_t queue, LocalWork work);
  void end_local(const LocalWork& ended);
  void complete(Operation& operation, const Status& status);
  void note_begin(Operation& operation, int64_t number);

  tcp::Link& link(int32_t peer);
  tcp::Header header(What what, int64_t bytes) const;
  /// False: it was not what is due, and the communicator is broken.
  bool expect(int32_t peer, const tcp::Header& found, What what, int64_t bytes);
  void send(int32_t peer, const tcp::Header& header, const void* data);
  void step_done();
  void broke(int32_t peer, const std::string& reason);
  void unreachable(int32_t peer, const Status& status);
  /// `finalized`: the job, not only this communicator.
  void left(int32_t peer, bool finalized);
  bool take_leave(bool finalized);
  Status destroyed() const;
  /// Because of a connection to `peer`.
  void suspect(int32_t peer, Status status);
  bool will_not_dial(int32_t peer) const;

  Status failure(Code code, int32_t culprit, const std::string& message) const {
    return failure_of(present(), code, culprit, message);
  }
  Status failure_of(const Operation* operation, Code code, int32_t culprit,
                    const std::string& message) const;
  std::string peer_text(int32_t peer) const;
  enum class Blame { kNone, kWaits, kCutOff };
  Blame blame(const tcp::Link& link) const;
  bool any_link(Blame wanted) const;
  bool awaits_several() const;
  std::string doing(int32_t peer, const tcp::Link& link) const;
  Status timed_out() const;
  Status timed_out_in_queue(const Operation& operation) const;
  void tell(const Status& status);
  void on_handed_over();
  void drain();
  void set_timer();
  void on_timer();
  void on_grace();

  char* address(const collective::Piece& piece) const;
  /// What is under way; of several transfers the one whose deadline comes first.
  const Operation* present() const;
  /// Of what has not begun, the one whose deadline comes first. Cost: linear.
  const Operation* queued() const;
  bool concerns_present(int32_t peer) const;

  // The backend outlives all that this does; the last reference to this, which a task may hold,
  // must not be the last one to any of them.
  const Roster roster_;
  HostBackend& local_;
  tcp::Mesh& mesh_;
  net::Loop* const loop_;
  const MultihostOptions* const options_;
  Interrupt* const interrupt_;
  const int64_t pid_;
  std::atomic<int> completion_fd_{-1};
  PulseCell pulse_;  // written by the loop's thread
  Excuse excuse_;
  // Written by the loop's thread: one before an operation is done, the other after the eventfd.
  std::atomic<uint64_t> completing_{0};
  std::atomic<uint64_t> completed_{0};

  std::unique_ptr<net::FdWatcher> local_watcher_;
  std::unique_ptr<net::Timer> timer_;
  std::unique_ptr<net::Timer> grace_timer_;
  int local_fd_ = -1;
  bool busy_ = false;  ///< told the mesh so
  uint32_t polls_ = 0;
  bool driving_ = false;
  bool again_ = false;
  bool broken_ = false;
  bool telling_ = false;  ///< the control plane does not have the failure yet: nobody may see it
  Status suspicion_;      ///< a link ended; the control plane may know why
  int32_t suspect_ = -1;  ///< whose connection it is about
  std::shared_ptr<Event> ended_;

  std::deque<OperationPtr> queue_;  ///< not begun
  /// Sends and receives under way, which progress together. Sorted by deadline, then by call.
  Transfers transfers_;
  /// Of queue_, active_ and transfers_, and of some that have ended.
  Deadline soonest_ = Deadline::never();
  /// Works that the local backend completes in order: the sends to each rank of this host, the
  /// receives from it (2 * local rank, + 1), and last the steps of collectives.
  std::vector<std::deque<LocalWork>> local_works_;
  size_t local_count_ = 0;  ///< works in all queues
  std::map<std::pair<int32_t, bool>, int64_t>
      messages_;                                         ///< begun, by peer and whether they go out
  std::map<int32_t, std::shared_ptr<tcp::Link>> links_;  ///< by rank of the communicator
  std::set<int32_t> absent_;  ///< ranks of the communicator that have left the job
  bool left_ = false;         ///< this rank has

  // The collective at work:
  OperationPtr active_;
  int64_t sequence_ = 0;
  Phase phase_ = Phase::kSay;
  int32_t pending_ = 0;     ///< steps under way
  int64_t skew_ms_ = 0;     ///< from the call here until all ranks had arrived; 0 before
  std::vector<Said> said_;  ///< by local index
  std::vector<Statement> statements_;
  std::vector<std::vector<Statement>> heard_;  ///< by host
  bool rides_ = false;                         ///< its elements are exchanged with the agreement
  const char* contribution_ = nullptr;         ///< of this host, then; at the leader
  std::vector<char> message_;                  ///< what this leader sends then
  std::vector<std::vector<char>> incoming_;    ///< agreements of other leaders, by host
  std::vector<int64_t> payload_at_;            ///< where contributions begin in them; -1: none
  Verdict verdict_;
  Statement own_statement_;
  const Collective* moving_ = nullptr;  ///< whose data moves
  std::optional<collective::Schedule> schedule_;
  int64_t round_ = 0;
  std::vector<collective::Stage> stages_;
  size_t stage_ = 0;
  const collective::Stage* sums_due_ = nullptr;
  std::unique_ptr<char[]> scratch_;
  int64_t scratch_bytes_ = 0;
  // Of an irregular collective whose counts do not fit together: those of all ranks, see
  // exchange_tables().
  Collective tables_call_;
  std::vector<int64_t> table_;
  std::vector<int64_t> tables_;
};

}  // namespace dt::backend
