// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/host/host.h"
#include "backend/host/spin_policy.h"
#include "backend/host/turn.h"
#include "base/fifo.h"
#include "base/guarded.h"
#include "collective/channel.h"
#include "collective/group.h"
#include "collective/mailbox.h"

namespace dt::backend {

/// A communicator of ranks of one host.
///
/// Whoever holds `turn_` advances the operations: run() on the caller's thread while nothing is
/// queued, wait() on the waiter's, the engine's progress thread when nobody waits. It is held while
/// sleeping by run() only. Without a progress thread those that wait, submit or poll advance the
/// other communicators of the engine as well.
class HostBackend : public Backend, public std::enable_shared_from_this<HostBackend> {
 public:
  HostBackend(std::shared_ptr<HostEngine> engine, std::unique_ptr<collective::Group> group,
              HostWorldOptions options);
  ~HostBackend() override;

  const char* name() const override { return "host"; }
  Status submit(const Collective& collective, std::shared_ptr<Work> work) override;
  Status begin_group() override;
  void leave_group() override;
  Status run(const Collective& collective) override;
  bool wait(Work& work, const Wait& wait) override;
  bool help() override;
  Result<int> completion_fd() override;
  Result<void*> allocate(int64_t bytes) override;
  Status release(void* pointer) override;
  Pulse pulse() const override { return pulse_.read(); }
  void excuse(int64_t until_ns) override;
  void interrupt(Status status) override;
  void fail(Status status) override;
  Status broken() const override { return interrupt_.status(); }
  Status left_behind(const Collective& collective, int64_t sequence, int32_t rank) const override {
    return collective::left_behind(*group_, collective, sequence, rank);
  }
  bool quiesce(const Wait& wait) override;
  Result<Split> split(int32_t color, int32_t key, const std::string& name,
                      Deadline deadline) override {
    return split_as(options_.part, color, key, name, deadline);
  }
  /// `part`, equal for one color: the new communicator is a part of a larger one, in which the keys
  /// are the ranks.
  Result<Split> split_as(bool part, int32_t color, int32_t key, const std::string& name,
                         Deadline deadline);

  /// The memory that messages go through, before the first of them.
  void map_slots() { group_->map_slots(group_->shape().slots); }

  /// For the progress thread. True: somebody waits and advances, keep away.
  bool helped() const { return helpers_.load(std::memory_order_seq_cst) > 0; }
  bool idle() const override { return !pending(); }
  bool pending() const { return queued_.load(std::memory_order_seq_cst) > 0; }

  struct Advance {
    collective::Step step = collective::Step::kDone;  ///< kDone: the queue is empty
    Deadline deadline = Deadline::never();            ///< of what it is blocked on
    std::vector<int32_t> awaited;                     ///< before sleep only: the ranks
  };
  /// Advances the queue if nobody else does. False: somebody else does.
  /// `before_sleep`: the rank's doorbell rings when that one is through.
  bool try_advance(Advance* out, bool before_sleep);
  /// A caller has waited so long for the operation that is under way here. Where somebody else
  /// advances it, it is not known for whom, and counts for nobody.
  void count_wait(int64_t ns);

 private:
  struct Operation {
    Collective collective;
    std::shared_ptr<Work> work;
    bool started = false;
    collective::Transfer transfer;
  };
  using OperationPtr = std::unique_ptr<Operation>;
  /// An operation that has not begun.
  struct Queued {
    const Operation* operation = nullptr;      ///< null: there is none
    const Fifo<OperationPtr>* lane = nullptr;  ///< that it is in; null: it is in active_
    Deadline deadline = Deadline::never();     ///< behind a pause, if there was one
  };
  struct Inbox {
    std::vector<OperationPtr> queue;
    std::vector<OperationPtr> pool;
  };

  /// Somebody has to see to it then: a helper, or the progress thread, which wants to be notified.
  void enqueue(const Collective& collective, std::shared_ptr<Work> work);
  OperationPtr make_operation(Inbox& inbox, const Collective& collective,
                              std::shared_ptr<Work> work);
  Status run_here(const Collective& collective);
  Status transfer_here(const Collective& collective, std::shared_ptr<Work>* out_work);
  Status finish_helping(Work& work);
  Advance advance_queue();
  collective::Step advance_head(Operation& operation);
  /// channel_.advance(); but what waits for a rank that has left the job breaks the communicator.
  collective::Step advance_channel();
  /// The same for a send or receive.
  collective::Step advance_transfer(const Collective& collective, collective::Transfer& transfer,
                                    Status* out_result);
  bool has_left(int32_t rank) const;
  /// Moves the sends and receives at the head of `active_` to their lanes.
  void open_lanes();
  void put_in_lane(OperationPtr operation);
  /// The first transfer of each lane, together, and what comes behind those that are done.
  collective::Step advance_lanes(Deadline* out_deadline);
  collective::Step advance_lane(Fifo<OperationPtr>& lane, Deadline* out_deadline);
  void take_inbox();
  Queued most_urgent();
  /// For what is blocked until `deadline`: brings that forward to the deadline of the most urgent
  /// operation in the queue; breaks the communicator if that has passed. `running`: the collective
  /// that is blocked; null: sends and receives.
  void look_at_queued(const Collective* running, Deadline* deadline);
  Status timed_out_in_queue(const Queued& queued, const Collective* running);
  void fail_queue();
  void fail_all(Fifo<OperationPtr>& operations);
  void complete(OperationPtr operation, Status status);
  void note_last(const Collective& collective, int64_t sequence);
  /// Breaks the communicator with `status` if it is the first; returns the first.
  Status break_with(Status status);
  void leave_help();
  /// Advances the other communicators where no thread does; brings `deadline` forward to theirs.
  /// True: something moved.
  bool help_others(bool before_sleep, Deadline* deadline);
  /// Whom the operation at the head waits for. With the turn.
  std::vector<int32_t> awaited();
  /// doorbell_.sleep(), counted as a wait for `awaited` since then; 0: since now.
  void sleep(uint32_t ticket, Deadline deadline, int64_t since_ns,
             const std::vector<int32_t>& awaited);
  void count_wait(const std::vector<int32_t>& awaited, int64_t ns) const;
  Result<std::vector<int64_t>> exchange(const std::vector<int64_t>& mine, Deadline deadline,
                                        const char* what);

  const std::shared_ptr<HostEngine> engine_;
  const HostWorldOptions options_;
  const std::unique_ptr<collective::Group> group_;
  Doorbell& doorbell_;  ///< the rank's

  Turn turn_;
  // Of whoever has the turn:
  collective::Channel channel_;
  collective::Mailboxes mailboxes_;
  Fifo<OperationPtr> active_;  ///< begins when the lanes are empty
  /// Sends to and receives from each peer, which progress together: a peer's at 2 * peer and behind
  /// it. A collective, and all that is behind it, waits until they are empty.
  std::vector<Fifo<OperationPtr>> lanes_;
  std::vector<size_t> busy_lanes_;  ///< those that are not empty
  /// Not later than the deadline of anything that active_ and the lanes hold.
  Deadline soonest_ = Deadline::never();

  Guarded<Inbox> inbox_;
  std::atomic<int32_t> queued_{0};  ///< operations in inbox_ and active_
  std::atomic<int32_t> helpers_{0};
  std::atomic<int32_t> groups_{0};  ///< begun and not left
  std::atomic<int> completion_fd_{-1};
  std::atomic<bool> broke_{false};
  std::mutex breaking_;  ///< held while a failure is reported and set
  PulseCell pulse_;      ///< written by whoever has the turn
  Excuse excuse_;
  Interrupt interrupt_;  ///< fired: broken, for good
};

}  // namespace dt::backend
