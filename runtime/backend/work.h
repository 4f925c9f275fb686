// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/guarded.h"
#include "base/status.h"
#include "base/wait.h"
#include "record/recorder.h"

namespace dt::backend {

/// A caller's interrupt rings no doorbell of a backend; a waiter that has one looks this often.
inline constexpr int64_t kInterruptPollMs = 20;

struct Launch;  // backend/device/launch.h

/// Completion of one asynchronous operation. Completed exactly once, by the backend; never changes
/// afterwards. Any thread may read, wait and watch.
class Work {
 public:
  bool done() const { return done_.load(std::memory_order_seq_cst); }
  /// Ok while not done.
  Status status() const {
    return done() ? state_.with([](const State& state) { return state.status; }) : Status();
  }

  /// When it was completed, on the monotonic clock; valid once done.
  int64_t completed_ns() const { return completed_ns_; }

  /// What a device backend keeps of it; null elsewhere. Set before submit() returns.
  const std::shared_ptr<Launch>& launch() const { return launch_; }
  void set_launch(std::shared_ptr<Launch> launch) { launch_ = std::move(launch); }

  /// Of the operation in the flight recorder, which hears of the completion. Set before submit().
  void record(std::shared_ptr<const record::Recorder> recorder, record::Slot* slot) {
    recorder_ = std::move(recorder);
    slot_ = slot;
  }

  /// Runs behind the completion, on the thread that completes: it may submit to other
  /// communicators, and may not block. Set before submit().
  void then(std::function<void(const Status&)> next) { next_ = std::move(next); }

  /// Backend only, or who could not submit it. Rings every watcher.
  void complete(Status status) {
    if (recorder_ != nullptr) recorder_->complete(slot_, status.code());
    completed_ns_ = monotonic_ns();  // published by done_
    const auto next = std::move(next_);
    const Status of_next = next ? status : Status();
    state_.with([&](State& state) {
      state.status = std::move(status);
      done_.store(true, std::memory_order_seq_cst);
      for (Doorbell* watcher : state.watchers) watcher->ring();
    });
    if (next) next(of_next);
  }

  /// Rings `bell` at completion. Borrowed until unwatch() returns.
  void watch(Doorbell* bell) {
    state_.with([&](State& state) { state.watchers.push_back(bell); });
  }
  void unwatch(Doorbell* bell) {
    state_.with([&](State& state) { std::erase(state.watchers, bell); });
  }

 private:
  struct State {
    Status status;
    std::vector<Doorbell*> watchers;
  };
  std::atomic<bool> done_{false};
  int64_t completed_ns_ = 0;
  Guarded<State> state_;
  std::shared_ptr<Launch> launch_;
  std::function<void(const Status&)> next_;
  std::shared_ptr<const record::Recorder> recorder_;  // null: not recorded
  record::Slot* slot_ = nullptr;
};

}  // namespace dt::backend
