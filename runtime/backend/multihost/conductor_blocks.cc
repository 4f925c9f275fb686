// SPDX-License-Identifier: Apache-2.0
// What a Conductor does where ranks of an irregular collective expect what others do not send: it
// lets all ranks know all counts, so that each can say which pairs differ.
#include "backend/multihost/conductor.h"
#include "collective/blocks.h"

namespace dt::backend {

/// All ranks of this host call the same: from now on this one speaks for all of them.
void Conductor::add_balances() {
  uint64_t sum = 0;
  for (const Said& one : said_) sum += static_cast<uint64_t>(one.count);
  own_statement_.said.count = static_cast<int64_t>(sum);
}

/// Each rank's table: its process, what it sends to each rank, what it expects from each.
void Conductor::exchange_tables() {
  const Collective& collective = active_->collective;
  const int32_t size = roster_.topology.size();
  table_.assign(1, pid_);
  for (int32_t peer = 0; peer < size; ++peer) {
    table_.push_back(collective::outgoing(collective, roster_.rank, size, peer).count);
  }
  for (int32_t peer = 0; peer < size; ++peer) {
    table_.push_back(collective::incoming(collective, roster_.rank, size, peer).count);
  }
  tables_.assign(table_.size() * static_cast<size_t>(size), 0);
  tables_call_ = {};
  tables_call_.kind = Kind::kAllgather;
  tables_call_.dtype = Dtype::kI64;
  tables_call_.send = table_.data();
  tables_call_.recv = tables_.data();
  tables_call_.count = static_cast<int64_t>(table_.size());
  begin_move(tables_call_);
}

Status Conductor::unbalanced() const {
  const int64_t size = roster_.topology.size();
  const auto entry = [&](int64_t rank, int64_t index) {
    return tables_[static_cast<size_t>(rank * (2 * size + 1) + index)];
  };
  const auto found = collective::difference(
      active_->collective.dtype, roster_.topology.size(),
      [&](int32_t rank, int32_t peer) { return entry(rank, 1 + peer); },
      [&](int32_t rank, int32_t peer) { return entry(rank, 1 + size + peer); },
      [&](int32_t rank) { return roster_.member_text(rank, entry(rank, 0)); });
  return failure(Code::kMismatch, found.first, found.text);
}

}  // namespace dt::backend
