// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "backend/device/launch.h"
#include "base/fifo.h"
#include "base/guarded.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/status.h"
#include "base/thread.h"
#include "base/wait.h"
#include "cuda/runtime.h"

namespace dt::backend {

class DeviceChannel;

/// All communication of one job on one device: the thread "dt-device", which makes every call that
/// enqueues communication, its stream, and the events.
///
/// One thread, one stream and one queue for all communicators: what a rank's calls ask for is
/// launched in the order of the calls, whatever their communicators. Without one order on all ranks
/// communicators of one device deadlock each other.
///
/// The thread polls: it never waits inside CUDA, nor for peers, so that a dead one cannot hold it.
/// Calls that end a communicator do wait; threads of their own make them, see DeviceChannel.
/// What it calls may hang all the same (NCCL in a faulty network). Whoever waits, and whoever calls
/// look_after() now and then, sees that by the operations' deadlines and fails them; the thread is
/// then left behind, with all that it may still touch: channels and carriers hold this, the thread
/// holds the channels.
class DeviceThread : public std::enable_shared_from_this<DeviceThread> {
 public:
  ~DeviceThread();
  DeviceThread(const DeviceThread&) = delete;
  DeviceThread& operator=(const DeviceThread&) = delete;

  cuda::Runtime& runtime() const { return *runtime_; }
  const std::shared_ptr<cuda::Runtime>& runtime_ptr() const { return runtime_; }
  /// Of the operations.
  cuda::Stream stream() const { return stream_; }
  /// Of what is no operation and must not wait for one: fills, and the making of communicators.
  cuda::Stream side_stream() const { return side_stream_; }

  /// Events for one operation; they come back when the last reference goes. Any thread.
  Result<std::shared_ptr<Launch>> take_launch();
  /// Waits, by queries, until `event`, which was recorded, has passed. False: the deadline or the
  /// interrupt came first. Any thread but this one.
  Result<bool> await(cuda::Event event, const Wait& wait);

  // Any thread, never block:
  /// `count` operations of the channel take their places in the order of launches, side by side.
  void enlist(std::shared_ptr<DeviceChannel> channel, size_t count);
  /// The channel has something else to do.
  void wake(std::shared_ptr<DeviceChannel> channel);
  /// For a channel that the thread looks at already.
  void look_again();
  /// For drain().
  void operation_began() { unended_.fetch_add(1, std::memory_order_relaxed); }
  void operation_ended();
  /// To be looked after from now on.
  void watch(std::weak_ptr<DeviceChannel> channel);
  /// Fails operations long past their deadlines, and those of broken communicators that this thread
  /// has not ended: it hangs in a call.
  void look_after();
  /// Not ok: a communicator is broken, and a call that this thread made, or the abort of a
  /// communicator, has not returned for so long; the reason why it is broken. An abort waits for
  /// what the GPU has in front of it, so the time does not count while operations of whole
  /// communicators are launched, or inputs of broken ones are not ready.
  Status hang(int64_t limit_ms) const;

  // This thread:
  /// The last that was enqueued on the stream; none where that has ended.
  const std::weak_ptr<Launch>& last_enqueued() const { return last_enqueued_; }
  void note_enqueued(const std::shared_ptr<Launch>& launch) { last_enqueued_ = launch; }
  /// What broken communicators have enqueued may still stand in front on the stream.
  bool is_aborting() const { return !aborting_.empty() || !aborts_.is_never(); }
  /// Runs `body`, which may wait for peers and for all of the device, on a thread of its own.
  Result<std::shared_ptr<EndingThread>> start_ending(std::function<void()> body);
  /// The job is at its end, and a communicator's end still waits inside NCCL.
  void end_left_behind() { ends_left_behind_ = true; }
  /// The engine is gone: nothing may take long any more.
  bool is_ending() const { return ending_; }

  /// Waits until no operation is queued or under way. False: the deadline or the interrupt came
  /// first. Any thread but this one.
  bool drain(const Wait& wait);

 private:
  friend class DeviceEngine;
  using Channels = std::vector<std::shared_ptr<DeviceChannel>>;
  struct Mail {
    Channels order;  ///< one entry per operation
    Channels woken;
    bool stopping = false;
  };

  /// A launch that comes back to `spare_`.
  struct Loan {
    std::shared_ptr<DeviceThread> from;
    std::unique_ptr<Launch> launch;
    ~Loan();
  };

  /// Communicators that are aborted together.
  struct Aborts {
    std::shared_ptr<EndingThread> thread;
    std::vector<std::function<bool()>> awaited;  ///< inputs in front that are not ready
    int64_t since_ns = 0;  ///< it waits for nothing else since then; 0: it may
  };

  explicit DeviceThread(std::shared_ptr<cuda::Runtime> runtime) : runtime_(std::move(runtime)) {}
  Status prepare(cuda::StreamPriority priority);
  Result<std::unique_ptr<Launch>> make_launch();
  void run();
  void take_mail(Channels* live, Deadline* farewell);
  bool launch_in_order();
  void abort_broken(const Channels& live);
  void watch_aborts(const Channels& live);
  void nap(int64_t idle_since_ns, bool under_way);
  void stop();

  const std::shared_ptr<cuda::Runtime> runtime_;
  cuda::Stream stream_ = nullptr;
  cuda::Stream side_stream_ = nullptr;
  Guarded<std::vector<std::unique_ptr<Launch>>> spare_;
  const Pool<Loan> loans_;
  Guarded<std::vector<std::weak_ptr<DeviceChannel>>> watched_;
  std::atomic<int64_t> unended_{0};  ///< operations begun and not ended
  Doorbell drained_;
  Guarded<Mail> mail_;
  std::atomic<bool> has_mail_{false};
  std::atomic<int64_t> turn_since_ns_{0};  ///< when the turn under way began; 0: it sleeps
  /// Since when the oldest abort waits for nothing else; 0: none does.
  std::atomic<int64_t> abort_since_ns_{0};
  Doorbell bell_;
  Event ended_;
  Status selected_;  ///< of the device, for this thread; before started_
  Event started_;
  // The thread's own:
  Channels received_;  ///< scratch: swaps memory with the mail, so that callers need none
  Fifo<std::shared_ptr<DeviceChannel>> order_;
  std::shared_ptr<DeviceChannel> launching_;  ///< whose operations are being enqueued
  std::weak_ptr<Launch> last_enqueued_;
  bool ending_ = false;
  bool ends_left_behind_ = false;        ///< read by others once the thread has ended
  Deadline aborts_ = Deadline::never();  ///< others that break with the first are aborted together
  std::vector<Aborts> aborting_;
};

/// Owns that thread. Its destructor ends it; communicators that still end have a second or two.
class DeviceEngine {
 public:
  struct Options {
    std::shared_ptr<cuda::Runtime> runtime;
    cuda::StreamPriority priority = cuda::StreamPriority::kHigh;
    LoggerPtr logger;  ///< may be null
  };
  static Result<std::shared_ptr<DeviceEngine>> start(const Options& options);
  ~DeviceEngine();
  DeviceEngine(const DeviceEngine&) = delete;
  DeviceEngine& operator=(const DeviceEngine&) = delete;

  const std::shared_ptr<DeviceThread>& device_thread() const { return device_thread_; }

 private:
  DeviceEngine(std::shared_ptr<DeviceThread> device_thread, LoggerPtr logger)
      : device_thread_(std::move(device_thread)), logger_(std::move(logger)) {}

  const std::shared_ptr<DeviceThread> device_thread_;
  const LoggerPtr logger_;
  std::thread thread_;
};

}  // namespace dt::backend
