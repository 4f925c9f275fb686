// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/device/carrier.h"
#include "backend/device/engine.h"
#include "base/guarded.h"

namespace dt::backend {

/// One communicator on the device thread: operations are `queued`, then enqueued one after the
/// other, then `under way` until the stream has passed their done events.
///
/// Threads: callers push to the queue; the device thread moves operations on; whoever breaks the
/// communicator takes all operations out of the lists and completes them. The lists have one lock,
/// which nobody holds during a call to CUDA, NCCL or a callback. What is being enqueued at that
/// moment is in `enqueuing`, where it can be completed too: the device thread finds it gone.
class DeviceChannel : public std::enable_shared_from_this<DeviceChannel> {
 public:
  struct Options {
    std::string name;  ///< of the communicator
    std::string self;  ///< "rank 3 (node7)"
    std::shared_ptr<Carrier> carrier;
    /// The first to break it tells the control plane; must not block.
    std::function<void(const std::string& communicator, const Status&)> on_broken;
  };
  DeviceChannel(std::shared_ptr<DeviceThread> device, Options options)
      : device_(std::move(device)), options_(std::move(options)) {}

  // Any thread:
  /// Meets the other ranks.
  Status open(const Wait& wait);
  Status submit(const Collective& collective, std::shared_ptr<Work> work);
  void interrupt(Status status);
  /// Breaks it from here: the control plane is told.
  void fail(const Status& status) { break_with(status); }
  Status broken() const { return interrupt_.status(); }
  const Interrupt& interrupted() const { return interrupt_; }
  /// The device thread did not fail `work` at its deadline, so it hangs in a call: does that here.
  void give_up_on(const Work& work);
  /// Lets go of the communicator: what is under way is aborted, else it ends peacefully when all
  /// ranks let go of it. Does not wait.
  void retire();
  /// Waits until the device thread is not enqueuing an operation; after retire() it begins none.
  bool quiet(Deadline deadline) const;
  /// Returns when the eventfd counts every operation that is done by now: between the two lie a few
  /// instructions of another thread.
  void await_count() const;
  void set_completion_fd(int fd) { completion_fd_.store(fd, std::memory_order_release); }

  // The device thread:
  enum class Turn {
    kIdle,        ///< nothing to do until woken
    kBusy,        ///< something is under way
    kProgressed,  ///< and went on
    kGone,        ///< retired, at its end
  };
  Turn advance();

 private:
  struct Operation {
    Collective collective;
    std::shared_ptr<Work> work;
    std::shared_ptr<Launch> launch;
    int64_t sequence = 0;
  };
  struct Lists {
    std::deque<Operation> queued;
    std::vector<Operation> enqueuing;
    std::deque<Operation> under_way;
    std::shared_ptr<Event> opening;  ///< set when open() is answered
    Wait opening_wait;
    Status opened;
    int64_t sequence = 0;
    bool retiring = false;
  };

  bool open_if_asked();
  bool enqueue_some();
  Status prepare_inputs(const Operation& operation);
  Status mark_done(const Operation& operation);
  bool complete_some();
  Turn close_if_retiring();
  void break_with(const Status& status);
  void fail_all();
  Status failure(const Operation& operation, Code code, const std::string& message) const;
  Status timed_out(const Operation& operation) const;
  void complete(const Operation& operation, const Status& status);

  const std::shared_ptr<DeviceThread> device_;
  const Options options_;
  Interrupt interrupt_;  ///< fired: broken, for good
  Guarded<Lists> lists_;
  std::atomic<int> completion_fd_{-1};
  std::atomic<bool> told_{false};
  std::atomic<bool> is_enqueuing_{false};
  // One moves before an operation is done, the other after it is counted.
  std::atomic<uint64_t> completing_{0};
  std::atomic<uint64_t> completed_{0};
  bool aborted_ = false;                 ///< the device thread's
  Deadline closes_ = Deadline::never();  ///< the device thread's: a peaceful end takes no longer
};

}  // namespace dt::backend
