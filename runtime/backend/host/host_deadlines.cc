// SPDX-License-Identifier: Apache-2.0
// Deadlines of a HostBackend's operations that have not begun.
#include <string>
#include <vector>

#include "backend/host/host_backend.h"
#include "collective/descriptor.h"

namespace dt::backend {

/// The operation with the earliest deadline among those that have not begun. Makes `soonest_`
/// exact. Cost: linear.
HostBackend::Queued HostBackend::most_urgent() {
  Queued urgent;
  soonest_ = Deadline::never();
  const auto look = [&](const Fifo<OperationPtr>& operations, const Fifo<OperationPtr>* lane) {
    for (const OperationPtr& each : operations) {
      if (each->started) continue;
      soonest_ = soonest_.bound(each->collective.deadline);
      const Deadline deadline = excuse_.apply(each->collective.deadline);
      if (deadline.before(urgent.deadline)) urgent = {each.get(), lane, deadline};
    }
  };
  for (const size_t lane : busy_lanes_) look(lanes_[lane], &lanes_[lane]);
  look(active_, nullptr);
  return urgent;
}

void HostBackend::look_at_queued(const Collective* running, Deadline* deadline) {
  // The usual case, and without a look at the clock: what came first has the first deadline.
  const Deadline soonest = excuse_.apply(soonest_);
  if (!soonest.before(*deadline)) return;
  if (!soonest.passed()) {
    *deadline = soonest;
    return;
  }
  const Queued urgent = most_urgent();
  if (urgent.deadline.passed()) {
    (void)break_with(timed_out_in_queue(urgent, running));
    return;
  }
  *deadline = deadline->earlier(urgent.deadline);
}

Status HostBackend::timed_out_in_queue(const Queued& queued, const Collective* running) {
  std::vector<std::string> obstacles;
  std::vector<int32_t> late;
  const auto texts_of = [&](const std::vector<int32_t>& ranks) {
    std::vector<std::string> texts;
    for (const int32_t rank : ranks) texts.push_back(collective::member_text(*group_, rank));
    return texts;
  };
  if (running != nullptr) {
    late = channel_.awaited();
    obstacles.push_back(collective::obstacle_text(*running, channel_.sequence(), texts_of(late)));
  }
  for (const size_t lane : busy_lanes_) {
    if (queued.lane != nullptr && queued.lane != &lanes_[lane]) continue;
    const Collective& first = lanes_[lane].front()->collective;
    obstacles.push_back(collective::obstacle_text(first, -1, texts_of({first.root})));
    late.push_back(first.root);
  }
  return collective::failure(*group_, Code::kTimeout, queued.operation->collective, -1,
                             late.empty() ? -1 : late.front(),
                             collective::timed_out_behind(obstacles));
}

}  // namespace dt::backend
