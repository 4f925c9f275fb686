// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/device/launch.h"
#include "base/guarded.h"
#include "base/log.h"
#include "base/status.h"
#include "base/wait.h"
#include "cuda/runtime.h"

namespace dt::backend {

class DeviceChannel;

/// All communication of one job on one device: the thread "dt-device", which makes every call that
/// enqueues communication, its stream, and the events. One thread and one stream give all ranks one
/// order of launches, without which communicators of one device deadlock each other.
///
/// The thread polls: it never waits inside CUDA, so that a dead peer cannot hold it. What it calls
/// may hang all the same (NCCL in a faulty network). Waiting callers see that by the operation's
/// deadline, fail what is queued and go on; the thread is then left behind, with all that it may
/// still touch: channels and carriers hold this, the thread holds the channels.
class DeviceThread : public std::enable_shared_from_this<DeviceThread> {
 public:
  ~DeviceThread();
  DeviceThread(const DeviceThread&) = delete;
  DeviceThread& operator=(const DeviceThread&) = delete;

  cuda::Runtime& runtime() const { return *runtime_; }
  const std::shared_ptr<cuda::Runtime>& runtime_ptr() const { return runtime_; }
  cuda::Stream stream() const { return stream_; }

  /// Events for one operation; they come back when the last reference goes. Any thread.
  Result<std::shared_ptr<Launch>> take_launch();
  /// Waits, by queries, until `event`, which was recorded, has passed. False: the deadline or the
  /// interrupt came first. Any thread.
  Result<bool> await(cuda::Event event, const Wait& wait);
  /// The same for all that the stream holds now. True: memory that it used may be given back.
  bool drained(Deadline deadline);
  /// The channel has something to do. Any thread, never blocks.
  void wake(std::shared_ptr<DeviceChannel> channel);

 private:
  friend class DeviceEngine;
  struct Mail {
    std::vector<std::shared_ptr<DeviceChannel>> channels;
    bool stopping = false;
  };

  explicit DeviceThread(std::shared_ptr<cuda::Runtime> runtime) : runtime_(std::move(runtime)) {}
  Status prepare(cuda::StreamPriority priority);
  Result<std::unique_ptr<Launch>> make_launch();
  void run();
  void nap(int64_t idle_since_ns, bool under_way);
  void stop();

  const std::shared_ptr<cuda::Runtime> runtime_;
  cuda::Stream stream_ = nullptr;
  Guarded<std::vector<std::unique_ptr<Launch>>> spare_;
  Guarded<Mail> mail_;
  std::atomic<bool> has_mail_{false};
  Doorbell bell_;
  Event ended_;
};

/// Owns that thread. Its destructor ends it; channels that wait for their peers' end have a second.
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
