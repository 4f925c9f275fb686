// SPDX-License-Identifier: Apache-2.0
#include "training/replicas.h"

namespace dt::training {
namespace {

// A replica that waits for one of its own ranks knows whom it waits for: it is to fail first.
constexpr int64_t kReplicaGraceMs = 2'000;

}  // namespace

/// An operation before others need it, so that those need not find their peers.
Result<std::unique_ptr<Replicas>> Replicas::create(
    std::shared_ptr<comm::Communicator> comm,
    const std::shared_ptr<const comm::Communicator>& whole, const char* failed_text) {
  comm->follow(whole, kReplicaGraceMs);
  backend::Collective meet;
  meet.kind = backend::Kind::kBarrier;
  meet.name = "replicas";
  DT_TRY(comm->run_on_host(meet));
  return std::unique_ptr<Replicas>(new Replicas(std::move(comm), failed_text));
}

void Replicas::shut() {
  std::lock_guard lock(door_->mutex);
  door_->behind = nullptr;
}

Replicas::Sum Replicas::sum(backend::Collective collective, std::function<void()> prepare) {
  const auto pending = std::make_shared<Pending>();
  pending->collective = std::move(collective);
  pending->prepare = std::move(prepare);
  pending->work = comm_->new_work();
  state_.with([&](State& state) { state.pending.push_back(pending); });
  return {pending->work, [door = door_, pending](const Status& input) {
            std::lock_guard lock(door->mutex);
            if (door->behind != nullptr) door->behind->begin(*pending, input);
          }};
}

void Replicas::begin(Pending& ended, const Status& input) {
  if (input.ok() && ended.prepare) ended.prepare();
  const bool submits = state_.with([&](State& state) {
    if (!input.ok() && comm_->backend().device() != nullptr) {
      ended.failed = input;  // nobody can withhold there; the caller breaks the communicator
    } else if (!input.ok()) {
      const bool missing = input.code() == Code::kInvalidState;  // and the next step may do better
      ended.collective.withheld =
          std::make_shared<const std::string>((missing ? "" : failed_text_) + input.message());
    }
    ended.may_begin = true;
    return !std::exchange(state.submitting, true);
  });
  if (!submits) return;
  for (;;) {
    const auto next = state_.with([](State& state) -> std::shared_ptr<Pending> {
      if (state.pending.empty() || !state.pending.front()->may_begin) {
        state.submitting = false;
        return nullptr;
      }
      auto front = std::move(state.pending.front());
      state.pending.pop_front();
      return front;
    });
    if (next == nullptr) return;
    const Status submitted =
        next->failed.ok() ? comm_->submit(next->collective, next->work) : next->failed;
    if (submitted.ok()) continue;
    next->work->record(nullptr, nullptr);  // the recorder knows
    next->work->complete(submitted);
  }
}

}  // namespace dt::training
