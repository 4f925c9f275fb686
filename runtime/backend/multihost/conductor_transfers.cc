// SPDX-License-Identifier: Apache-2.0
// Sends and receives of a Conductor: those that are adjacent in the queue progress together.
#include <utility>

#include "backend/multihost/conductor.h"
#include "collective/descriptor.h"

namespace dt::backend {

void Conductor::start_transfer(const OperationPtr& operation) {
  const auto at = transfers_.insert(operation);
  Collective collective = operation->collective;
  std::exchange(collective.mark, {}).started();
  const int32_t peer = collective.root;
  const int64_t number = ++messages_[{peer, collective.kind == Kind::kSend}];
  note_begin(*operation, number);
  if (roster_.topology.host[peer] == roster_.host()) {
    collective.root = roster_.topology.local[peer];
    auto work = std::make_shared<Work>();
    if (const Status status = local_.submit(collective, work); !status.ok()) {
      return break_with(status);
    }
    const auto local = static_cast<size_t>(collective.root);
    put_local(2 * local + (collective.kind == Kind::kSend ? 0 : 1), {std::move(work), at});
    return;
  }
  const int64_t bytes = collective.count * dtype_bytes(collective.dtype);
  if (collective.kind == Kind::kSend) {
    tcp::Header header;
    header.what = kMessage;
    header.signature = collective::signature_of(collective);
    header.count = collective.count;
    header.bytes = bytes;
    link(peer).send(header, collective.send, [this, at] { finish_transfer(at); });
    return;
  }
  link(peer).receive(
      [this, operation, peer](const tcp::Header& found) -> void* {
        const Collective& mine = operation->collective;
        const auto dtype = static_cast<Dtype>(found.signature >> 8 & 0xff);
        if (found.what == kMessage && dtype == mine.dtype && found.count == mine.count &&
            found.bytes == mine.count * dtype_bytes(mine.dtype)) {
          return mine.recv;
        }
        break_with(roster_.failure(
            Code::kMismatch, Kind::kRecv, -1, peer, mesh_.peer(roster_.world_ranks[peer]).pid,
            format("the two sides disagree: %s: %s, %s: %s; make both issue matching operations "
                   "in the same order, then go on with dt_comm_shrink",
                   peer_text(peer).c_str(),
                   collective::describe(found.signature & ~collective::flag::kAll, found.count, "")
                       .c_str(),
                   roster_.member_text(roster_.rank, 0).c_str(),
                   collective::describe(collective::signature_of(mine), mine.count, mine.name)
                       .c_str())));
        return nullptr;
      },
      [this, at] { finish_transfer(at); });
}

void Conductor::finish_transfer(Transfers::iterator transfer) {
  if (broken_) return;  // drain() completes it
  end_transfer(transfer);
  drive();
}

void Conductor::end_transfer(Transfers::iterator transfer) {
  const auto ended = transfers_.extract(transfer);  // keeps it until it is completed
  complete(*ended.value(), Status());
}

}  // namespace dt::backend
