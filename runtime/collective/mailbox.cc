// SPDX-License-Identifier: Apache-2.0
#include "collective/mailbox.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "collective/descriptor.h"
#include "kernels/host/reduce.h"

namespace dt::collective {
namespace {

// The more pieces, the more both sides work at once; the less, the less they wait for each other.
constexpr int64_t kPieces = 4;
constexpr int64_t kPieceMin = 8 << 10;
constexpr int64_t kPieceMax = 64 << 10;
// A ring that fits into the reader's own cache is slow to write: each line has to be taken from
// there. Larger ones pay among few members only, since each pair has two. From 2 MiB on the arena
// brings all pages in beforehand.
constexpr int64_t kRingBytes = (2 << 20) - static_cast<int64_t>(sizeof(Mailbox));
constexpr int32_t kFewMembers = 4;
constexpr int64_t kSlotsMin = 4;
// Up to here a message lies where the one before lay, which is as fast and needs less memory.
constexpr int64_t kStillBytes = 4 << 10;

char* slot_of(Mailbox* box, const Transfer& transfer) {
  const int64_t slot = (transfer.first + transfer.piece) % transfer.slots;
  return reinterpret_cast<char*>(box + 1) + slot * transfer.piece_bytes;
}

int64_t bytes_of(const Collective& operation) {
  return operation.count * dtype_bytes(operation.dtype);
}

}  // namespace

Mailboxes::Mailboxes(Group& group)
    : group_(group),
      stager_(group.options().staging),
      outgoing_(group.size()),
      incoming_(group.size()) {}

Step Mailboxes::advance(const Collective& operation, Transfer& transfer, Status* out_result) {
  return operation.kind == Kind::kSend ? advance_send(operation, transfer, out_result)
                                       : advance_recv(operation, transfer, out_result);
}

Status Mailboxes::open_outgoing(int32_t peer) {
  Pair& pair = outgoing_[peer];
  if (pair.box != nullptr) return {};
  const int64_t bytes = box_bytes();
  DT_TRY_VALUE(void* memory, group_.arena().allocate(bytes, shm::HostArena::Use::kControl));
  group_.adopt(memory);  // a receiver may still look when this side closes
  pair.box = new (memory) Mailbox();
  shm::Location at;
  if (!group_.arena().locate(memory, bytes, &at)) {
    return Status(Code::kInternal, "a mailbox is not where it was allocated");
  }
  group_.own().mailboxes[peer].store(at.offset, std::memory_order_seq_cst);
  return {};
}

Result<bool> Mailboxes::open_incoming(int32_t peer) {
  Pair& pair = incoming_[peer];
  if (pair.box != nullptr) return true;
  const int64_t offset = group_.peer(peer).mailboxes[group_.rank()].load(std::memory_order_seq_cst);
  if (offset == 0) return false;
  const int64_t page = shm::kPageBytes;
  DT_TRY_VALUE(pair.view, group_.arena().view(group_.options().members[peer].local_rank, offset,
                                              (box_bytes() + page - 1) / page * page));
  pair.box = reinterpret_cast<Mailbox*>(pair.view->data());
  return true;
}

int64_t Mailboxes::piece_max() const { return std::min(group_.shape().slot_bytes, kPieceMax); }

int64_t Mailboxes::ring_bytes() const {
  const int64_t large = group_.size() <= kFewMembers ? kRingBytes : 0;
  return std::max(large, kSlotsMin * piece_max());
}

int64_t Mailboxes::box_bytes() const {
  return static_cast<int64_t>(sizeof(Mailbox)) + ring_bytes();
}

/// The next message of the pair, of so many bytes that pass through the ring or the announcement.
void Mailboxes::begin(Pair& pair, int64_t bytes, Transfer* transfer) const {
  transfer->number = ++pair.messages;
  transfer->base = pair.pieces;
  if (bytes <= Mailbox::kDataBytes) return;
  const int64_t lines = (bytes / kPieces + kLineBytes - 1) / kLineBytes;
  transfer->piece_bytes =
      std::clamp(lines * kLineBytes, std::min(kPieceMin, piece_max()), piece_max());
  const int64_t piece = transfer->piece_bytes;
  transfer->pieces = (bytes + piece - 1) / piece;
  transfer->slots = ring_bytes() / piece;
  pair.pieces += static_cast<uint64_t>(transfer->pieces);
  if (bytes <= kStillBytes) return;
  transfer->first = (pair.end + piece - 1) / piece % transfer->slots;
  pair.end = (transfer->first + transfer->pieces - 1) % transfer->slots * piece + piece;
}

/// The next piece into the ring.
void Mailboxes::fill(const Collective& operation, Transfer& transfer, Mailbox* box) {
  const int64_t begin = transfer.piece * transfer.piece_bytes;
  stager_.copy(slot_of(box, transfer), static_cast<const char*>(operation.send) + begin,
               std::min(transfer.piece_bytes, bytes_of(operation) - begin));
  ++transfer.piece;
}

void Mailboxes::ring(int32_t peer) const {
  // A message to oneself: both sides are advanced by the same thread.
  if (peer != group_.rank()) group_.peer(peer).doorbell->ring();
}

Step Mailboxes::advance_send(const Collective& operation, Transfer& transfer, Status* out_result) {
  const int32_t peer = operation.root;
  Pair& pair = outgoing_[peer];
  bool progressed = false;
  if (transfer.number == 0) {
    *out_result = open_outgoing(peer);
    if (!out_result->ok()) return Step::kDone;
    const int64_t bytes = bytes_of(operation);
    begin(pair, bytes, &transfer);
    Mailbox& box = *pair.box;
    uint64_t signature = static_cast<uint64_t>(operation.dtype) << 8;
    shm::Location at;
    if (transfer.pieces == 0) {
      if (bytes > 0) memcpy(box.data, operation.send, static_cast<size_t>(bytes));
    } else if (group_.shape().thresholds.maps(bytes) &&
               group_.arena().locate(operation.send, bytes, &at)) {
      box.place = {at.offset, at.allocation_offset, at.allocation_bytes};
      signature |= flag::kSendShared;
      transfer.piece = transfer.pieces;
    } else {
      stager_.begin(bytes);
      fill(operation, transfer, &box);
    }
    // Written in one go: the receiver may be polling this line.
    box.signature = signature;
    box.count = operation.count;
    box.posted.store(transfer.number, std::memory_order_seq_cst);
    ring(peer);
    progressed = true;
  }
  Mailbox& box = *pair.box;
  if (transfer.piece < transfer.pieces) {
    const bool room = transfer.piece < transfer.slots ||
                      static_cast<int64_t>(box.consumed.load(std::memory_order_seq_cst) -
                                           transfer.base) > transfer.piece - transfer.slots;
    if (room) {
      fill(operation, transfer, &box);
      box.filled.store(transfer.base + static_cast<uint64_t>(transfer.piece),
                       std::memory_order_seq_cst);
      ring(peer);
      return Step::kProgressed;
    }
  }
  if (box.taken.load(std::memory_order_seq_cst) >= transfer.number) {
    *out_result = Status();
    return Step::kDone;
  }
  if (box.refused.load(std::memory_order_seq_cst) == transfer.number) {
    *out_result = differs(operation, transfer, box);
    return Step::kDone;
  }
  return progressed ? Step::kProgressed : Step::kBlocked;
}

Step Mailboxes::advance_recv(const Collective& operation, Transfer& transfer, Status* out_result) {
  const int32_t peer = operation.root;
  const int64_t bytes = bytes_of(operation);
  Pair& pair = incoming_[peer];
  const Result<bool> opened = open_incoming(peer);
  if (!opened.ok()) {
    *out_result = opened.status();
    return Step::kDone;
  }
  if (transfer.number == 0) begin(pair, bytes, &transfer);
  if (!opened.value()) return Step::kBlocked;
  Mailbox& box = *pair.box;
  if (!transfer.matched) {
    if (box.posted.load(std::memory_order_seq_cst) < transfer.number) return Step::kBlocked;
    const uint64_t signature = static_cast<uint64_t>(operation.dtype) << 8;
    if ((box.signature & ~flag::kAll) != signature || box.count != operation.count) {
      box.expected_signature = signature;
      box.expected_count = operation.count;
      *out_result = differs(operation, transfer, box);
      box.refused.store(transfer.number, std::memory_order_seq_cst);
      ring(peer);
      return Step::kDone;
    }
    transfer.matched = true;
    if (transfer.pieces == 0 && bytes > 0) {
      memcpy(operation.recv, box.data, static_cast<size_t>(bytes));
    }
  }
  if (transfer.piece < transfer.pieces) {
    const int64_t begin = transfer.piece * transfer.piece_bytes;
    const char* from = slot_of(&box, transfer);
    if ((box.signature & flag::kSendShared) != 0) {
      const Result<char*> buffer = group_.resolve(peer, box.place);
      if (!buffer.ok()) {
        *out_result = buffer.status();
        return Step::kDone;
      }
      from = buffer.value() + begin;
    } else if (transfer.piece > 0 &&
               static_cast<int64_t>(box.filled.load(std::memory_order_seq_cst) - transfer.base) <=
                   transfer.piece) {
      return Step::kBlocked;
    }
    kernels::copy(static_cast<char*>(operation.recv) + begin, from,
                  std::min(transfer.piece_bytes, bytes - begin));
    ++transfer.piece;
    if (transfer.piece < transfer.pieces) {
      if (transfer.pieces > transfer.slots) {
        box.consumed.store(transfer.base + static_cast<uint64_t>(transfer.piece),
                           std::memory_order_seq_cst);
        ring(peer);
      }
      return Step::kProgressed;
    }
  }
  box.taken.store(transfer.number, std::memory_order_seq_cst);
  ring(peer);
  *out_result = Status();
  return Step::kDone;
}

Status Mailboxes::differs(const Collective& operation, const Transfer& transfer,
                          const Mailbox& box) const {
  const auto side = [](const char* verb, uint64_t signature, int64_t count) {
    return format("%s %s x %lld", verb, dtype_name(static_cast<Dtype>(signature >> 8 & 0xff)),
                  static_cast<long long>(count));
  };
  const bool sends = operation.kind == Kind::kSend;
  const int32_t sender = sends ? group_.rank() : operation.root;
  const int32_t receiver = sends ? operation.root : group_.rank();
  return failure(
      group_, Code::kMismatch, operation, static_cast<int64_t>(transfer.number), operation.root,
      format("the two sides disagree: %s %s, %s %s; make both sides name the same count and type, "
             "then go on with dt_comm_shrink",
             member_text(group_, sender).c_str(), side("sends", box.signature, box.count).c_str(),
             member_text(group_, receiver).c_str(),
             side("receives", box.expected_signature, box.expected_count).c_str()));
}

Status Mailboxes::left_behind(const Collective& operation, const Transfer& transfer) const {
  return collective::left_behind(group_, operation, static_cast<int64_t>(transfer.number),
                                 operation.root);
}

Status Mailboxes::timed_out(const Collective& operation, const Transfer& transfer) const {
  return collective::timed_out(group_, operation, static_cast<int64_t>(transfer.number),
                               {operation.root},
                               operation.kind == Kind::kSend ? "has not received" : "has not sent");
}

}  // namespace dt::collective
