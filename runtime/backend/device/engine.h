// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "backend/device/launch.h"
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
/// still touch.
class DeviceEngine {
 public:
  struct Options {
    std::shared_ptr<cuda::Runtime> runtime;
    cuda::StreamPriority priority = cuda::StreamPriority::kHigh;
    LoggerPtr logger;
  };
  static Result<std::shared_ptr<DeviceEngine>> start(Options options);
  ~DeviceEngine();
  DeviceEngine(const DeviceEngine&) = delete;
  DeviceEngine& operator=(const DeviceEngine&) = delete;

  cuda::Runtime& runtime() const;
  std::shared_ptr<cuda::Runtime> runtime_ptr() const;
  cuda::Stream stream() const;

  /// Events for one operation; they come back when the last reference goes. Any thread.
  Result<std::shared_ptr<Launch>> take_launch();
  /// The channel has something to do. Any thread, never blocks.
  void wake(std::shared_ptr<DeviceChannel> channel);

 private:
  struct State;
  explicit DeviceEngine(std::shared_ptr<State> state) : state_(std::move(state)) {}

  const std::shared_ptr<State> state_;
};

}  // namespace dt::backend
