// SPDX-License-Identifier: Apache-2.0
// Sends and receives of a HostBackend: those that are adjacent in the queue progress together.
#include <memory>
#include <utility>

#include "backend/host/host_backend.h"
#include "backend/host/progress.h"

namespace dt::backend {

using collective::Step;

/// A send or receive that is alone in the queue. Where it has to wait for long, or to progress
/// beside others that came meanwhile, it goes on from `out_work` in the queue, which is empty
/// still: only who has the turn takes from the inbox.
Status HostBackend::transfer_here(const Collective& collective, std::shared_ptr<Work>* out_work) {
  collective::Transfer transfer;
  SpinPolicy spin_policy = engine_->progress().spin_policy();
  for (bool noted = false;;) {
    Status status;
    const Step step = advance_transfer(collective, transfer, &status);
    if (!std::exchange(noted, true)) note_last(collective, static_cast<int64_t>(transfer.number));
    if (step == Step::kDone) return status.ok() ? status : break_with(std::move(status));
    if (interrupt_.fired()) return interrupt_.status();
    Deadline others = Deadline::never();
    const bool moved = step == Step::kProgressed || help_others(false, &others);
    if (moved) spin_policy.renew();
    if (pending() || (!moved && !spin_policy.spin())) break;
  }
  helpers_.fetch_add(1, std::memory_order_seq_cst);
  *out_work = std::make_shared<Work>();
  OperationPtr operation =
      inbox_.with([&](Inbox& inbox) { return make_operation(inbox, collective, *out_work); });
  operation->started = true;
  operation->transfer = transfer;
  put_in_lane(std::move(operation));
  return {};
}

void HostBackend::open_lanes() {
  while (!active_.empty() && active_.front()->collective.is_transfer()) {
    OperationPtr operation = std::move(active_.front());
    active_.pop_front();
    put_in_lane(std::move(operation));
  }
}

void HostBackend::put_in_lane(OperationPtr operation) {
  const Collective& collective = operation->collective;
  const size_t lane =
      2 * static_cast<size_t>(collective.root) + (collective.kind == Kind::kSend ? 0 : 1);
  if (lanes_[lane].empty()) busy_lanes_.push_back(lane);
  lanes_[lane].push_back(std::move(operation));
}

Step HostBackend::advance_lanes(Deadline* out_deadline) {
  bool progressed = false;
  for (const size_t lane : busy_lanes_) {
    progressed |= advance_lane(lanes_[lane], out_deadline) != Step::kBlocked;
    if (interrupt_.fired()) return Step::kProgressed;
  }
  const auto is_empty = [&](size_t lane) { return lanes_[lane].empty(); };
  busy_lanes_.erase(std::remove_if(busy_lanes_.begin(), busy_lanes_.end(), is_empty),
                    busy_lanes_.end());
  return progressed ? Step::kProgressed : Step::kBlocked;
}

Step HostBackend::advance_lane(Fifo<OperationPtr>& lane, Deadline* out_deadline) {
  bool progressed = false;
  while (!lane.empty()) {
    Operation& operation = *lane.front();
    const Collective& collective = operation.collective;
    Status status;
    const Step step = advance_transfer(collective, operation.transfer, &status);
    if (!std::exchange(operation.started, true)) {
      collective.mark.started();
      note_last(collective, static_cast<int64_t>(operation.transfer.number));
    }
    if (step == Step::kBlocked && interrupt_.fired()) break;
    progressed |= step != Step::kBlocked;
    if (step == Step::kDone) {
      if (!status.ok()) {
        (void)break_with(std::move(status));
        break;
      }
      OperationPtr finished = std::move(lane.front());
      lane.pop_front();
      complete(std::move(finished), Status());
      continue;
    }
    const Deadline deadline = excuse_.apply(collective.deadline);
    *out_deadline = out_deadline->earlier(deadline);
    if (step == Step::kBlocked && deadline.passed()) {
      (void)break_with(mailboxes_.timed_out(collective, operation.transfer));
    }
    break;
  }
  return progressed ? Step::kProgressed : Step::kBlocked;
}

Step HostBackend::advance_transfer(const Collective& collective, collective::Transfer& transfer,
                                   Status* out_result) {
  Step step = mailboxes_.advance(collective, transfer, out_result);
  if (step != Step::kBlocked || !engine_->arena()->anyone_left()) return step;
  if (!has_left(collective.root)) return step;
  step = mailboxes_.advance(collective, transfer, out_result);
  if (step == Step::kBlocked) (void)break_with(mailboxes_.left_behind(collective, transfer));
  return step;
}

}  // namespace dt::backend
