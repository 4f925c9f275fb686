// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
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

  /// Runs `next` behind the completion, on the thread that completes the work; on this thread if
  /// it is done already. `next` may submit to other communicators, and may not block. Called once.
  void then(std::function<void(const Status&)> next) {
    const bool runs_now = state_.with([&](State& state) {
      if (done()) return true;
      state.next = std::move(next);
      return false;
    });
    if (runs_now) next(status());
  }

  /// The operations of the group that this work stands for; empty if it stands for none.
  const std::vector<std::shared_ptr<Work>>& parts() const { return parts_; }
  /// Makes `whole` the work of a group: it completes when all `parts` have completed, with the
  /// first error in their order. The parts are submitted, and have no then() of their own.
  /// Allocates nothing, because nothing may fail once operations are submitted.
  static void stand_for(const std::shared_ptr<Work>& whole,
                        std::vector<std::shared_ptr<Work>> parts) {
    Work* const group = whole.get();
    group->parts_ = std::move(parts);
    group->incomplete_.store(group->parts_.size() + 1, std::memory_order_relaxed);
    group->self_ = whole;
    for (const auto& part : group->parts_) {
      part->then([group](const Status&) { group->part_completed(); });
    }
    group->part_completed();  // this call, which goes through the list
  }

  /// Backend only, or who could not submit it. Rings every watcher.
  void complete(Status status) {
    if (recorder_ != nullptr) recorder_->complete(slot_, status.code());
    completed_ns_ = monotonic_ns();  // published by done_
    std::function<void(const Status&)> next;
    Status of_next;
    state_.with([&](State& state) {
      next = std::move(state.next);
      if (next) of_next = status;
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
    std::function<void(const Status&)> next;
  };

  /// Of a group: one of its parts has completed, or stand_for() has gone through them.
  void part_completed() {
    if (incomplete_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const auto self = std::move(self_);
    for (const auto& part : parts_) {
      Status status = part->status();
      if (!status.ok()) return complete(std::move(status));
    }
    complete(Status());
  }
  std::atomic<bool> done_{false};
  int64_t completed_ns_ = 0;
  Guarded<State> state_;
  std::shared_ptr<Launch> launch_;
  // For the work of a group: `self_` keeps it alive until it completes, also if its handle is gone.
  std::vector<std::shared_ptr<Work>> parts_;
  std::atomic<size_t> incomplete_{0};
  std::shared_ptr<Work> self_;
  std::shared_ptr<const record::Recorder> recorder_;  // null: not recorded
  record::Slot* slot_ = nullptr;
};

}  // namespace dt::backend
