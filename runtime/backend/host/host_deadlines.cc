// SPDX-License-Identifier: Apache-2.0
// Deadlines of a HostBackend's operations that have not begun.
#include <string>
#include <vector>

#include "backend/host/host_backend.h"
#include "collective/descriptor.h"

namespace dt::backend {

/// Of the operations that have not begun, the one whose deadline comes first, and the lane that it
/// is in; none: it is in `active_`. Cost: linear.
HostBackend::Queued HostBackend::most_urgent() const {
  Queued urgent;
  const auto look = [&](const Fifo<OperationPtr>& operations, const Fifo<OperationPtr>* lane) {
    for (const OperationPtr& each : operations) {
      if (each->started) continue;
      const bool first = urgent.operation == nullptr ||
                         each->collective.deadline.before(urgent.operation->collective.deadline);
      if (first) urgent = {each.get(), lane};
    }
  };
  for (const size_t lane : busy_lanes_) look(lanes_[lane], &lanes_[lane]);
  look(active_, nullptr);
  return urgent;
}

void HostBackend::look_at_queued(const Collective* running, Deadline* deadline) {
  // The usual case, and without a look at the clock: what came first has the first deadline.
  if (!excuse_.apply(soonest_).before(*deadline)) return;
  if (excuse_.apply(soonest_).passed()) {
    const Queued urgent = most_urgent();
    soonest_ =
        urgent.operation != nullptr ? urgent.operation->collective.deadline : Deadline::never();
    if (urgent.operation != nullptr && excuse_.apply(soonest_).passed()) {
      (void)break_with(timed_out_in_queue(urgent, running));
      return;
    }
  }
  *deadline = deadline->earlier(excuse_.apply(soonest_));
}

Status HostBackend::timed_out_in_queue(const Queued& queued, const Collective* running) {
  std::vector<std::string> obstacles;
  std::vector<int32_t> late;
  if (running != nullptr) {
    obstacles.push_back(collective::obstacle_text(*running, channel_.sequence(), ""));
    late = channel_.awaited();
  }
  for (const size_t lane : busy_lanes_) {
    if (queued.lane != nullptr && queued.lane != &lanes_[lane]) continue;
    const Collective& first = lanes_[lane].front()->collective;
    obstacles.push_back(
        collective::obstacle_text(first, -1, collective::member_text(*group_, first.root)));
    late.push_back(first.root);
  }
  return collective::failure(*group_, Code::kTimeout, queued.operation->collective, -1,
                             late.empty() ? -1 : late.front(),
                             collective::timed_out_behind(obstacles));
}

}  // namespace dt::backend
