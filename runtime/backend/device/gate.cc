// SPDX-License-Identifier: Apache-2.0
#include "backend/device/gate.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/disagreement.h"

namespace dt::backend {

Gate::Gate(Options options)
    : options_(std::move(options)), mine_(), all_(static_cast<size_t>(options_.size)) {
  mine_.pid = getpid();
  mine_.world_rank = options_.world_rank;
  memcpy(mine_.host, options_.host.data(), std::min(options_.host.size(), sizeof mine_.host - 1));
}

Result<bool> Gate::passes(const Ledger::Entry& first, const Ledger::Entry& last,
                          Deadline deadline) {
  if (last.position <= passed_) return true;
  if (work_ == nullptr) {
    mine_.first = first;
    mine_.last_position = last.position;
    mine_.chain = last.chain;
    Collective gather;
    gather.kind = Kind::kAllgather;
    gather.send = &mine_;
    gather.recv = all_.data();
    gather.count = sizeof mine_;
    gather.deadline = deadline;
    gather.name = "check";
    const auto work = std::make_shared<Work>();
    DT_TRY(options_.on_host->submit(gather, work));
    work_ = work;
  }
  if (!work_->done()) return false;
  const Status met = std::exchange(work_, nullptr)->status();
  if (!met.ok()) return met.within("not all ranks have come to it (watchdog.check = strict)");
  DT_TRY(judge());
  passed_ = last.position;
  return true;
}

Status Gate::judge() const {
  std::vector<CallOfRank> calls;
  for (size_t rank = 0; rank < all_.size(); ++rank) {
    const Print& each = all_[rank];
    CallOfRank call;
    call.who = format("rank %zu (", rank);
    if (each.world_rank != static_cast<int32_t>(rank)) {
      call.who += format("world rank %d, ", each.world_rank);
    }
    call.who += format("%.*s, pid %lld)", static_cast<int>(strnlen(each.host, sizeof each.host)),
                       each.host, static_cast<long long>(each.pid));
    call.key = each.chain;
    call.call = each.first.call();
    const auto others = static_cast<long long>(each.last_position - each.first.position);
    if (others > 0) call.call += format(" and %lld more in one group", others);
    calls.push_back(std::move(call));
  }
  const bool same = std::all_of(calls.begin(), calls.end(),
                                [&](const CallOfRank& each) { return each.key == calls[0].key; });
  if (same) return {};
  const Disagreement found = disagreement(calls);
  const Print& culprit = all_[found.culprit];
  ErrorInfo info;
  info.code = Code::kMismatch;
  info.message = found.text;
  info.rank = culprit.world_rank;
  info.host.assign(culprit.host, strnlen(culprit.host, sizeof culprit.host));
  info.pid = culprit.pid;
  return Status(std::move(info));
}

void Gate::close(const Status& status) {
  options_.on_host->interrupt(status);
  if (work_ == nullptr) return;
  (void)options_.on_host->wait(*work_, Wait());  // it fails at once; until then it uses the memory
  work_ = nullptr;
}

}  // namespace dt::backend
