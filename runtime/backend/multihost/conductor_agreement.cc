// SPDX-License-Identifier: Apache-2.0
// How the ranks of a Conductor's communicator agree on what they are about to do, and the sums that
// are so small that they are exchanged with that.
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "backend/multihost/conductor.h"
#include "collective/blocks.h"
#include "kernels/host/reduce.h"

namespace dt::backend {
namespace {

// Of one message between leaders: a statement for each distinct call of a host, and a contribution.
constexpr int64_t kAgreementMaxBytes = int64_t{2} << 20;
// Sums of two hosts up to this cost one exchange instead of two or three. With more hosts a rank
// that heard of all others would be done while those at a gap still wait, and could not name it.
constexpr int64_t kRideBytes = 64 << 10;

}  // namespace

/// Within the host: what everybody is about to do.
void Conductor::say() {
  Collective gather;
  gather.kind = Kind::kAllgather;
  gather.send = &own_statement_.said;
  gather.recv = said_.data();
  gather.count = sizeof(Said);
  gather.deadline = active_->collective.deadline;
  run_locally(std::move(gather));
}

/// Only where that differs, or somebody withholds: the names and the reasons too.
void Conductor::state() {
  phase_ = Phase::kState;
  const bool alike = std::all_of(said_.begin(), said_.end(), [&](const Said& one) {
    return same_call(one, own_statement_.said) && !active_->collective.withheld;
  });
  rides_ = alike && rides(active_->collective);
  if (alike) {
    if (is_irregular(active_->collective.kind)) add_balances();
    statements_.assign(1, own_statement_);
    statements_[0].rank = roster_.leader(roster_.host());
    statements_[0].more = roster_.local_size() - 1;
    if (rides_) contribute();
    return;
  }
  statements_.resize(said_.size());
  Collective gather;
  gather.kind = Kind::kAllgather;
  gather.send = &own_statement_;
  gather.recv = statements_.data();
  gather.count = sizeof(Statement);
  run_locally(std::move(gather));
}

/// The leaders of all hosts with each other. Statements follow where a leader of another host may
/// need them: where the ranks here differ or withhold, or have a name for the operation.
void Conductor::exchange() {
  phase_ = Phase::kExchange;
  if (roster_.local() != 0) return;
  statements_ = collapse(statements_);
  statements_.reserve(statements_.size() + 1);  // never empty, never moves while it is sent
  const bool plain =
      statements_.size() == 1 && own_statement_.name[0] == '\0' && !active_->collective.withheld;
  const auto bytes = static_cast<int64_t>(plain ? 0 : statements_.size() * sizeof(Statement));
  heard_[roster_.host()] = statements_;
  tcp::Header agreement = header(kAgreement, bytes);
  const void* message = statements_.data();
  if (rides_) {
    agreement = header(kContribution, bytes + payload_bytes());
    message = contribution_;
    if (bytes > 0) {
      message_.resize(static_cast<size_t>(agreement.bytes));
      memcpy(message_.data(), statements_.data(), static_cast<size_t>(bytes));
      memcpy(message_.data() + bytes, contribution_, static_cast<size_t>(payload_bytes()));
      message = message_.data();
    }
  }
  for (int32_t host = 0; host < roster_.topology.host_count(); ++host) {
    if (host == roster_.host()) continue;
    const int32_t peer = roster_.leader(host);
    pending_ += 2;
    auto found = std::make_shared<tcp::Header>();
    link(peer).trade(
        agreement, message, [this] { step_done(); },
        [this, host, peer, found](const tcp::Header& header) -> void* {
          if (!expect(peer, header, kAgreement, -1)) return nullptr;
          *found = header;
          incoming_[host].resize(static_cast<size_t>(header.bytes));
          return incoming_[host].data();
        },
        [this, host, peer, found] {
          // A refused message without bytes ends here, too, when drive() has the links closed after
          // this only: nothing was taken down of it.
          if (broken_) return;
          take_agreement(host, peer, *found);
          step_done();
        });
  }
}

/// What the leader of another host has sent is complete: statements, if any, and behind them what
/// its host contributes.
void Conductor::take_agreement(int32_t host, int32_t peer, const tcp::Header& found) {
  const int64_t payload = payload_bytes(found);
  const int64_t told = found.bytes - payload;
  std::vector<Statement>& theirs = heard_[host];
  theirs.resize(static_cast<size_t>(told) / sizeof(Statement));
  if (told > 0) memcpy(theirs.data(), incoming_[host].data(), static_cast<size_t>(told));
  payload_at_[host] = payload == 0 ? -1 : told;
  if (told > 0) return;
  Statement same;  // without its pid, see judge()
  same.said = {found.signature, found.count};
  same.rank = peer;
  same.more = static_cast<int32_t>(roster_.topology.hosts[host].size()) - 1;
  theirs.assign(1, same);
}

void Conductor::judge() {
  if (roster_.local() == 0) {
    std::vector<Statement> all;
    bool good = true;
    for (const auto& theirs : heard_) {
      all.insert(all.end(), theirs.begin(), theirs.end());
      for (const Statement& statement : theirs) {
        good &= same_call(statement.said, own_statement_.said);
      }
    }
    for (int32_t host = 0; rides_ && host < roster_.topology.host_count(); ++host) {
      if (host == roster_.host()) continue;
      // A broken peer's header may differ from its statements.
      good &= payload_at_[host] >= 0 &&
              static_cast<int64_t>(incoming_[host].size()) - payload_at_[host] == payload_bytes();
    }
    good &= !active_->collective.withheld;
    const bool unbalanced = good && is_irregular(active_->collective.kind) && balance_of(all) != 0;
    for (Statement& statement : all) {
      if (good || statement.pid != 0) continue;
      for (int32_t host = 0; host < roster_.topology.host_count(); ++host) {
        const int32_t leader = roster_.leader(host);  // they alone speak without a statement
        if (statement.rank != leader) continue;
        statement.pid = mesh_.peer(roster_.world_ranks[leader]).pid;
      }
    }
    verdict_ = {unbalanced ? kUnbalanced
                : good     ? 1u
                           : 0u,
                static_cast<int64_t>(good ? 0 : all.size())};
    statements_ = std::move(all);
  }
  pass_on();
}

/// Within the host: what the leader has heard.
void Conductor::pass_on() {
  phase_ = Phase::kPassOn;
  Collective broadcast;
  broadcast.kind = Kind::kBroadcast;
  broadcast.send = &verdict_;
  broadcast.recv = &verdict_;
  broadcast.count = sizeof verdict_;
  run_locally(std::move(broadcast));
}

void Conductor::pass_on_more() {
  phase_ = Phase::kPassOnMore;
  if (verdict_.good != 0) return;
  statements_.resize(static_cast<size_t>(verdict_.statements));
  Collective broadcast;
  broadcast.kind = Kind::kBroadcast;
  broadcast.send = statements_.data();
  broadcast.recv = statements_.data();
  broadcast.count = static_cast<int64_t>(statements_.size() * sizeof(Statement));
  run_locally(std::move(broadcast));
}

void Conductor::heard() {
  const Collective& collective = active_->collective;
  if (verdict_.good == 0) {
    Status status = verdict_over(roster_, collective.kind, sequence_, statements_);
    // What a rank withholds, all ranks know of: the communicator stays in step.
    if (status.code() == Code::kInvalidState) return finish(std::move(status));
    if (status.ok()) status = failure(Code::kInternal, -1, "a verdict without a reason; report it");
    return break_with(status);
  }
  if (verdict_.good == kUnbalanced) return exchange_tables();
  if (rides_) return conclude();
  begin_move(collective);
}

/// `collective`: what the caller wants, or in its stead what tells why that cannot be.
void Conductor::begin_move(const Collective& collective) {
  moving_ = &collective;
  phase_ = Phase::kMove;
  skew_ms_ = (monotonic_ns() - active_->called_ns) / 1'000'000;
  schedule_.reset();
  round_ = 0;
  stages_.clear();
  stage_ = 0;
  sums_due_ = nullptr;
  if (moves_blocks(collective.kind)) {
    stages_ = collective::block_stages(collective, roster_.topology, roster_.rank);
    return;
  }
  schedule_.emplace(collective, roster_.topology, roster_.rank, options_->way);
  (void)reserve_scratch(schedule_->scratch_bytes());
}

/// False: there is no memory, and the communicator is broken.
bool Conductor::reserve_scratch(int64_t bytes) {
  if (bytes <= scratch_bytes_) return true;
  scratch_bytes_ = 0;
  scratch_.reset(new (std::nothrow) char[static_cast<size_t>(bytes)]);
  if (scratch_ != nullptr) {
    scratch_bytes_ = bytes;
    return true;
  }
  break_with(failure(Code::kOutOfMemory, -1,
                     format("no memory for %lld bytes to sum in; look at the memory limit",
                            static_cast<long long>(bytes))));
  return false;
}

// ---- small sums, which ride with the agreement ----

/// Equal on all ranks that make this call: it depends on what they compare only.
bool Conductor::rides(const Collective& collective) const {
  return roster_.topology.host_count() == 2 && collective.kind == Kind::kAllreduce &&
         collective.op != ReduceOp::kCustom && collective.count > 0 &&
         collective.count <= kRideBytes &&
         collective.count * collective.element_bytes() <= kRideBytes;
}

int64_t Conductor::payload_bytes() const {
  return active_->collective.count * active_->collective.element_bytes();
}

/// Behind the statements of a message that may come from a broken peer; -1: that cannot be.
int64_t Conductor::payload_bytes(const tcp::Header& found) {
  if (found.what == kAgreement) return 0;
  const auto dtype = static_cast<Dtype>(found.signature >> 8 & 0xff);
  if (found.what != kContribution || !is_valid(dtype)) return -1;
  if (found.count <= 0 || found.count > kRideBytes) return -1;
  return found.count * dtype_bytes(dtype);
}

bool Conductor::fits_agreement(const tcp::Header& found) {
  const int64_t payload = payload_bytes(found);
  const int64_t told = found.bytes - payload;
  return payload >= 0 && told >= 0 && told % static_cast<int64_t>(sizeof(Statement)) == 0 &&
         found.bytes <= kAgreementMaxBytes;
}

/// Within the host, before other hosts are asked: into memory of our own, since the caller's stays
/// as it is should they disagree.
void Conductor::contribute() {
  const Collective& call = active_->collective;
  const bool scaled = call.op == ReduceOp::kAvg && !is_integer(call.dtype);
  contribution_ = static_cast<const char*>(call.send);
  if (roster_.local_size() == 1 && !scaled) return;
  if (!reserve_scratch(payload_bytes())) return;
  contribution_ = scratch_.get();
  Collective reduce;
  reduce.kind = Kind::kReduce;
  reduce.dtype = call.dtype;
  reduce.op = call.op;
  if (scaled) {
    reduce.divisor = call.divisor;
  } else if (call.op == ReduceOp::kAvg) {
    reduce.op = ReduceOp::kSum;
  }
  reduce.send = call.send;
  reduce.recv = scratch_.get();
  reduce.count = call.count;
  run_locally(std::move(reduce));
}

/// All hosts agree, so each leader has what all of them contribute: in the order of the hosts.
void Conductor::conclude() {
  const Collective& call = active_->collective;
  moving_ = &call;
  phase_ = Phase::kMove;
  skew_ms_ = (monotonic_ns() - active_->called_ns) / 1'000'000;
  schedule_.reset();
  stages_.clear();
  stage_ = 0;
  sums_due_ = nullptr;
  if (roster_.local() == 0) {
    std::vector<const void*> sources;
    for (int32_t host = 0; host < roster_.topology.host_count(); ++host) {
      sources.push_back(host == roster_.host() ? contribution_
                                               : incoming_[host].data() + payload_at_[host]);
    }
    kernels::Reduction reduction{call.dtype, call.op, 1};
    if (call.op == ReduceOp::kAvg && !is_integer(call.dtype)) {
      reduction.op = ReduceOp::kSum;
    } else if (call.op == ReduceOp::kAvg) {
      reduction.divisor = call.divisor;
    }
    kernels::reduce(reduction, call.recv, sources.data(), static_cast<int32_t>(sources.size()),
                    call.count);
  }
  if (roster_.local_size() == 1) return;
  Collective broadcast;
  broadcast.kind = Kind::kBroadcast;
  broadcast.dtype = call.dtype;
  broadcast.send = call.recv;
  broadcast.recv = call.recv;
  broadcast.count = call.count;
  run_locally(std::move(broadcast));
}

}  // namespace dt::backend
