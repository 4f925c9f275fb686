// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "backend/host/contention.h"
#include "backend/host/host.h"
#include "backend/host/spin_policy.h"
#include "base/guarded.h"
#include "base/wait.h"

namespace dt::backend {

class HostBackend;

/// The progress thread of an engine: advances the queued operations of its communicators while no
/// waiter does. Starts at the first begin(), with all signals blocked. Idle, it sleeps on a
/// doorbell of its own, so that peers who ring the rank's doorbell pay no system call for it.
///
/// Without a thread (`by_caller`) whoever waits for an operation, polls or submits one advances
/// those of all communicators: ranks that use two of them in another order would else wait for
/// ever.
///
/// The thread shares ownership of this object and of the arena, not of the engine, so the engine
/// may go away on any thread, even this one.
class HostEngine::Progress : public std::enable_shared_from_this<HostEngine::Progress> {
 public:
  Progress(std::shared_ptr<shm::HostArena> arena, const Options& options)
      : arena_(std::move(arena)),
        spin_ns_(options.spin_us * 1000),
        spin_adapts_(options.spin_adapts),
        by_caller_(options.by_caller),
        processors_(options.processors) {
    if (options.spread) spread_.emplace(arena_);
  }

  /// Of a caller's thread.
  SpinPolicy spin_policy() { return spin_policy(contention_, spread_ ? &*spread_ : nullptr); }
  /// A caller's thread goes to sleep.
  void rest() {
    if (spread_.has_value()) spread_->sleep();
  }
  void add(std::weak_ptr<HostBackend> backend);
  /// Where a thread makes progress, it runs from now on.
  Status begin();
  /// There is work in some queue, and maybe nobody who waits for it. After begin().
  void notify();
  void stop();

  bool by_caller() const { return by_caller_; }
  /// By caller: so many more operations are queued in all.
  void count(int32_t change) { queued_.fetch_add(change, std::memory_order_seq_cst); }
  struct Round {
    bool progressed = false;
    bool pending = false;  ///< some queue without a helper is blocked
    Deadline deadline = Deadline::never();
  };
  /// By caller: advances the queued operations of the communicators, but of `except`.
  /// `before_sleep`: the rank's doorbell rings when somebody else is through with one.
  Round help(const HostBackend* except, bool before_sleep);

 private:
  using Backends = std::vector<std::weak_ptr<HostBackend>>;
  struct State {
    /// Never changed, so that it is looked through without the lock, and nothing allocated.
    std::shared_ptr<const Backends> backends = std::make_shared<Backends>();
    pthread_t thread{};
    bool joinable = false;
  };

  SpinPolicy spin_policy(Contention& contention, Spread* spread) {
    return {arena_->oversubscribed(), spin_ns_, spin_adapts_ ? &contention : nullptr, spread};
  }
  static void* enter(void* self);
  Status start(State& state);
  void loop();
  Round advance_all(const HostBackend* except, bool before_sleep);

  const std::shared_ptr<shm::HostArena> arena_;
  const int64_t spin_ns_;
  const bool spin_adapts_;
  const bool by_caller_;
  const std::vector<int32_t> processors_;
  std::optional<Spread> spread_;
  Contention contention_;           ///< seen by callers' threads
  Contention thread_contention_;    ///< by the progress thread, which may have other processors
  std::atomic<int32_t> queued_{0};  ///< by caller only
  std::atomic<bool> started_{false};
  std::atomic<bool> stopping_{false};
  Doorbell bell_;
  Guarded<State> state_;
};

}  // namespace dt::backend
