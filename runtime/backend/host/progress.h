// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>
#include <vector>

#include "backend/host/host.h"
#include "backend/host/patience.h"
#include "base/guarded.h"
#include "base/wait.h"

namespace dt::backend {

class HostBackend;

/// The progress thread of an engine: advances the queued operations of its communicators while no
/// waiter does. Starts at the first notify(), with all signals blocked. Idle, it sleeps on a
/// doorbell of its own, so that peers who ring the rank's doorbell pay no system call for it.
///
/// The thread shares ownership of this object and of the arena, not of the engine, so the engine
/// may go away on any thread, even this one.
class HostEngine::Progress : public std::enable_shared_from_this<HostEngine::Progress> {
 public:
  Progress(std::shared_ptr<shm::HostArena> arena, int64_t spin_us)
      : arena_(std::move(arena)), spin_ns_(spin_us * 1000) {}

  Patience patience() const { return Patience(arena_->oversubscribed(), spin_ns_); }
  void add(std::weak_ptr<HostBackend> backend);
  /// There is work in some queue, and maybe nobody who waits for it.
  Status notify();
  void stop();

 private:
  struct Round {
    bool progressed = false;
    bool pending = false;  ///< some queue without a helper is blocked
    Deadline deadline = Deadline::never();
  };
  struct State {
    std::vector<std::weak_ptr<HostBackend>> backends;
    pthread_t thread{};
    bool joinable = false;
  };

  static void* enter(void* self);
  Status start(State& state);
  void loop();
  Round advance_all();

  const std::shared_ptr<shm::HostArena> arena_;
  const int64_t spin_ns_;
  std::atomic<bool> started_{false};
  std::atomic<bool> stopping_{false};
  Doorbell bell_;
  Guarded<State> state_;
  std::vector<std::shared_ptr<HostBackend>> present_;  ///< of the thread
};

}  // namespace dt::backend
