// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/guarded.h"
#include "base/thread.h"

namespace dt::job {

/// Threads of objects that the caller made on a job: they end with it at the latest.
class BackgroundThreads {
 public:
  /// `end` is called once the job ends, and makes the thread end once it can.
  void add(std::shared_ptr<EndingThread> thread, std::function<void()> end) {
    members_.with([&](auto& all) {
      all.erase(std::remove_if(all.begin(), all.end(),
                               [](const Member& each) {
                                 return each.thread->ended() && each.thread->join(Wait());
                               }),
                all.end());
      all.push_back({std::move(thread), std::move(end)});
    });
  }
  void end_all() {
    const auto all = members_.with([](const auto& members) { return members; });
    for (const Member& each : all) each.end();
  }
  /// Those that have not ended at the deadline go on by themselves.
  void join_all(const Wait& wait) {
    const auto all = members_.with([](auto& members) { return std::exchange(members, {}); });
    for (const Member& each : all) (void)each.thread->join(wait);
  }

 private:
  struct Member {
    std::shared_ptr<EndingThread> thread;
    std::function<void()> end;
  };
  Guarded<std::vector<Member>> members_;
};

}  // namespace dt::job
