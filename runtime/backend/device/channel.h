// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/device/carrier.h"
#include "backend/device/engine.h"
#include "backend/device/gate.h"
#include "backend/device/ledger.h"
#include "base/fifo.h"
#include "base/guarded.h"
#include "base/pool.h"
#include "base/thread.h"

namespace dt::backend {

/// One communicator on the device thread: operations are `queued`, then `enqueuing` when their turn
/// has come, then `under_way` until the stream has passed their done events.
///
/// Threads: callers push to the queue and take a place in the device thread's order, under one
/// lock, so that both have one order. The device thread moves operations on. Whoever breaks the
/// communicator completes what is queued; what the GPU may touch is completed by the device thread
/// when it is aborted and the GPU has passed it, so that a caller who was told may free his memory;
/// only where that takes long, or the abort hangs, it is completed without. Whoever takes an
/// operation out of the lists completes it, so it is completed once. Nobody holds the lock during a
/// call to CUDA, NCCL or a callback.
///
/// What may wait for peers or for the whole GPU, the carrier's end() and release() and the freeing
/// of `used_`, runs on an ending thread, so that the device thread goes on with the other
/// communicators. The device thread starts it and joins it (`ending_`). In between the ending
/// thread alone uses the carrier, `used_` and `carrier_released_`; start and join order its
/// accesses and those of the device thread. It reads `closes_`, which does not change meanwhile.
/// Everything else stays the device thread's. A channel has one ending thread at a time, which
/// holds the channel: one that still waits when the job ends is left behind with all that it may
/// touch.
class DeviceChannel : public std::enable_shared_from_this<DeviceChannel> {
 public:
  struct Options {
    std::string name;  ///< of the communicator
    std::string self;  ///< "rank 3 (node7)"
    std::shared_ptr<Carrier> carrier;
    /// The first to break it tells the control plane; must not block.
    std::function<void(const std::string& communicator, const Status&)> on_broken;
    /// Shows the peers of this host what was called last; may be null.
    std::function<void(Kind, int64_t sequence, const std::string& name)> note_last;
    std::shared_ptr<Ledger> ledger;  ///< null: what ranks call is not compared
    std::unique_ptr<Gate> gate;      ///< null: not before it is launched
    /// The error of a send or receive whose peer has left the job. Null: the carrier finds that
    /// such an operation cannot end.
    std::function<Status(const Collective&, int64_t sequence, int32_t peer)> departed_error;
  };
  DeviceChannel(std::shared_ptr<DeviceThread> device, Options options)
      : device_(std::move(device)), options_(std::move(options)) {}

  // Any thread:
  /// Meets the other ranks.
  Status open(const Wait& wait);
  Status submit(const Collective& collective, std::shared_ptr<Work> work);
  /// INVALID_ARGUMENT while the stream records a graph. `call`: for the message.
  Status check_not_capturing(const char* call, cuda::Stream stream) const;
  /// What is submitted between the two is launched as one; ends at once where it is broken.
  Status begin_group();
  Status end_group();
  /// Runs `task` on the device thread, where the carrier is, between operations; also when it is
  /// broken. TIMEOUT: it does not run, unless it had begun and hangs.
  Status call(std::function<Status()> task, Deadline deadline);
  void interrupt(Status status);
  /// Breaks it from here: the control plane is told.
  void fail(const Status& status) { break_with(status); }
  Status broken() const { return interrupt_.status(); }
  const Interrupt& interrupted() const { return interrupt_; }
  Pulse pulse() const;
  void excuse(int64_t until_ns) { excuse_.set(until_ns); }
  void peer_left(int32_t peer);
  /// Fails what the device thread should have failed: it hangs in a call.
  void look_after();
  /// Takes no more operations. Those there are end under their deadlines, then the communicator
  /// ends, in peace when all ranks let go of it, and then what they `used`; where the GPU does not
  /// come to an end with it, that is left behind. Does not wait.
  void retire(std::vector<std::shared_ptr<void>> used);
  /// Returns when the eventfd counts every operation that is done by now: between the two lie a few
  /// instructions of another thread.
  void await_count() const;
  /// < 0: none any more.
  void set_completion_fd(int fd) {
    completion_fd_.with([fd](int& mine) { mine = fd; });
  }

  // The device thread:
  struct Launched {
    size_t begun = 0;  ///< places in the order that were used up
    bool under_way = false;
    bool progressed = false;
  };
  /// Its turn: enqueues what has the next `places` places.
  Launched launch(size_t places);
  enum class Turn {
    kIdle,        ///< nothing to do until woken
    kEnding,      ///< an ending thread is at work, and calls look_again()
    kBusy,        ///< something is under way
    kProgressed,  ///< and went on
  };
  Turn advance();
  bool wants_abort() const { return interrupt_.fired() && !aborted_ && !closed_; }
  /// True: its end is left to do, on a thread for which ends_on() and end_now() are called.
  bool abort();
  void ends_on(std::shared_ptr<EndingThread> thread) { ending_ = std::move(thread); }
  /// Whether operations are launched and have not ended, or it is being opened.
  bool is_under_way() const;
  using Question = std::function<bool()>;
  /// Adds for each launched operation whether its inputs are not ready yet. Also to be asked when
  /// the operation has failed.
  void add_awaited(std::vector<Question>* awaited) const;

  // The thread that ends it, or several that were aborted:
  void group_aborts(bool begin) { options_.carrier->group_aborts(begin); }
  void end_now() { options_.carrier->end(Wait{closes_, &interrupt_}); }
  void ending_is_over();

 private:
  struct Operation {
    Collective collective;
    std::shared_ptr<Work> work;
    std::shared_ptr<Launch> launch;
    int64_t sequence = 0;
    int64_t group = 0;             ///< 0: none
    int64_t batch = 0;             ///< what was launched as one has one number
    std::weak_ptr<Launch> before;  ///< what the GPU has to pass first; of sends and receives
    Ledger::Entry entry;           ///< of a collective that is compared
  };
  using OperationPtr = std::shared_ptr<Operation>;
  struct Call {
    std::function<Status()> task;
    Status status;  ///< before done
    Event done;
  };
  struct Lists {
    std::vector<std::shared_ptr<Call>> calls;
    std::vector<OperationPtr> grouped;  ///< their group has not ended
    Fifo<OperationPtr> queued;
    std::vector<OperationPtr> enqueuing;
    Fifo<OperationPtr> under_way;
    Deadline earliest = Deadline::never();  ///< no deadline is before this one
    std::shared_ptr<Event> opening;         ///< set when open() is answered
    Deadline opening_deadline = Deadline::never();
    Status opened;
    int64_t sequence = 0;
    Kind last_kind = Kind::kBarrier;  ///< of the operation with that number
    int64_t groups = 0;
    bool grouping = false;
    bool retiring = false;
    std::vector<std::shared_ptr<void>> used;
    Deadline told_by = Deadline::never();  ///< broken: all are completed by then
    std::vector<int32_t> departed;         ///< peers that have left the job
  };

  Status refused(const Lists& lists) const;
  bool advance_opening();
  bool run_calls();
  Result<bool> passes_gate(size_t places);
  Status begin_some(size_t places, Launched* out);
  bool joins(const Operation& next, const std::vector<OperationPtr>& begun) const;
  Status prepare_inputs(const Operation& operation);
  Status mark_done(const Operation& operation);
  Status end_some(Launched* out);
  bool complete_some();
  void keep_deadlines(int64_t now_ns);
  std::vector<OperationPtr> waiting_for_departed() const;
  void look_at_departed();
  Turn end();
  void start_ending(std::function<void()> body);
  bool await_ending();
  void mark_last();
  bool passed_last() const;
  bool left();
  bool has_waited();
  void leave_behind();
  void give_back();
  void suspect(const Status& status);
  void break_with(const Status& status);
  void fail_unlaunched();
  void fail_all();
  Status failure(const Operation& operation, Code code, const std::string& message) const;
  /// The same with the rank that `status` blames.
  Status failure(const Operation& operation, const Status& status) const;
  Status timed_out(const Operation& operation, bool queued) const;
  bool inputs_ready(const Operation& operation) const;
  void complete(const Operation& operation, const Status& status);

  const std::shared_ptr<DeviceThread> device_;
  const Options options_;
  Interrupt interrupt_;  ///< fired: broken, for good
  Excuse excuse_;
  const Pool<Operation> operations_;
  Guarded<Lists> lists_;
  Guarded<int> completion_fd_{-1};
  std::atomic<bool> told_{false};
  std::atomic<bool> any_departed_{false};
  std::mutex breaking_;  ///< held while a failure is reported and set
  // One moves before an operation is done, the other after it is counted.
  std::atomic<uint64_t> completing_{0};
  std::atomic<uint64_t> completed_{0};

  // The device thread's:
  bool opening_begun_ = false;
  std::vector<OperationPtr> batch_;  ///< begun, not wholly enqueued
  int64_t batches_ = 0;
  int64_t departed_batch_ = 0;  ///< it waits for peers that have left; 0: none does
  Deadline departed_deadline_ = Deadline::never();
  int64_t departed_looked_ns_ = 0;
  std::vector<const Collective*> ended_;
  bool aborted_ = false;
  Status suspicion_;  ///< not ok: a failure whose culprit may become known
  Deadline suspicion_ends_ = Deadline::never();
  bool all_failed_ = false;
  Deadline told_ended_ = Deadline::never();
  bool closed_ = false;                   ///< has ended in peace, or an ending thread is at it
  Deadline closes_ = Deadline::never();   ///< a peaceful end takes no longer
  std::shared_ptr<EndingThread> ending_;  ///< null: no ending thread
  std::atomic<bool> left_behind_{false};  ///< the job has ended
  std::atomic<bool> ending_over_{false};  ///< it has done its work
  bool carrier_released_ = false;
  std::vector<std::shared_ptr<void>> used_;
  std::shared_ptr<Launch> last_;  ///< behind all that it enqueued
  Deadline leaves_behind_ = Deadline::never();
};

}  // namespace dt::backend
