// SPDX-License-Identifier: Apache-2.0
#include "collective/mailbox.h"

#include <algorithm>
#include <new>
#include <utility>

#include "collective/descriptor.h"
#include "kernels/host/reduce.h"

namespace dt::collective {
namespace {

char* ring_slot(Mailbox* box, const Shape& shape, int64_t segment) {
  return reinterpret_cast<char*>(box + 1) + segment % Mailbox::kSlots * shape.slot_bytes;
}

}  // namespace

Mailboxes::Mailboxes(Group& group)
    : group_(group), outgoing_(group.size()), incoming_(group.size()) {}

Step Mailboxes::advance(const Collective& operation, Transfer& transfer, Status* out_result) {
  return operation.kind == Kind::kSend ? advance_send(operation, transfer, out_result)
                                       : advance_recv(operation, transfer, out_result);
}

Status Mailboxes::open_outgoing(int32_t peer) {
  Pair& pair = outgoing_[peer];
  if (pair.box != nullptr) return {};
  const int64_t bytes =
      static_cast<int64_t>(sizeof(Mailbox)) + Mailbox::kSlots * group_.shape().slot_bytes;
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
  const int64_t bytes =
      static_cast<int64_t>(sizeof(Mailbox)) + Mailbox::kSlots * group_.shape().slot_bytes;
  DT_TRY_VALUE(pair.view, group_.arena().view(group_.options().members[peer].local_rank, offset,
                                              (bytes + page - 1) / page * page));
  pair.box = reinterpret_cast<Mailbox*>(pair.view->data());
  return true;
}

int64_t Mailboxes::segments_of(const Collective& operation) const {
  const int64_t bytes = operation.count * dtype_bytes(operation.dtype);
  return (bytes + group_.shape().slot_bytes - 1) / group_.shape().slot_bytes;
}

void Mailboxes::ring(int32_t peer) const {
  // A message to oneself: both sides are advanced by the same thread.
  if (peer != group_.rank()) group_.peer(peer).doorbell->ring();
}

Step Mailboxes::advance_send(const Collective& operation, Transfer& transfer, Status* out_result) {
  const int32_t peer = operation.root;
  const int64_t bytes = operation.count * dtype_bytes(operation.dtype);
  const int64_t slot = group_.shape().slot_bytes;
  Pair& pair = outgoing_[peer];
  bool progressed = false;
  if (transfer.number == 0) {
    *out_result = open_outgoing(peer);
    if (!out_result->ok()) return Step::kDone;
    transfer.number = ++pair.messages;
    transfer.base = pair.segments;
    Mailbox& box = *pair.box;
    box.signature = static_cast<uint64_t>(operation.dtype) << 8;
    box.count = operation.count;
    shm::Location at;
    if (group_.shape().thresholds.maps(bytes) &&
        group_.arena().locate(operation.send, bytes, &at)) {
      box.place = {at.offset, at.allocation_offset, at.allocation_bytes};
      box.signature |= flag::kSendShared;
      transfer.segment = segments_of(operation);
    }
    pair.segments += static_cast<uint64_t>(segments_of(operation));
    box.posted.store(transfer.number, std::memory_order_seq_cst);
    ring(peer);
    progressed = true;
  }
  Mailbox& box = *pair.box;
  if (box.refused.load(std::memory_order_seq_cst) == transfer.number) {
    *out_result = differs(operation, transfer, box);
    return Step::kDone;
  }
  if (transfer.segment < segments_of(operation)) {
    const auto taken =
        static_cast<int64_t>(box.consumed.load(std::memory_order_seq_cst) - transfer.base);
    if (transfer.segment < taken + Mailbox::kSlots) {
      const int64_t begin = transfer.segment * slot;
      kernels::copy(ring_slot(&box, group_.shape(), transfer.segment),
                    static_cast<const char*>(operation.send) + begin,
                    std::min(slot, bytes - begin));
      ++transfer.segment;
      box.filled.store(transfer.base + static_cast<uint64_t>(transfer.segment),
                       std::memory_order_seq_cst);
      ring(peer);
      return Step::kProgressed;
    }
  }
  if (box.taken.load(std::memory_order_seq_cst) >= transfer.number) {
    *out_result = Status();
    return Step::kDone;
  }
  return progressed ? Step::kProgressed : Step::kBlocked;
}

Step Mailboxes::advance_recv(const Collective& operation, Transfer& transfer, Status* out_result) {
  const int32_t peer = operation.root;
  const int64_t bytes = operation.count * dtype_bytes(operation.dtype);
  const int64_t slot = group_.shape().slot_bytes;
  Pair& pair = incoming_[peer];
  const Result<bool> opened = open_incoming(peer);
  if (!opened.ok()) {
    *out_result = opened.status();
    return Step::kDone;
  }
  if (transfer.number == 0) {
    transfer.number = ++pair.messages;
    transfer.base = pair.segments;
    pair.segments += static_cast<uint64_t>(segments_of(operation));
  }
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
  }
  auto* recv = static_cast<char*>(operation.recv);
  const int64_t segments = segments_of(operation);
  if ((box.signature & flag::kSendShared) != 0 && transfer.segment < segments) {
    const Result<char*> from = group_.resolve(peer, box.place);
    if (!from.ok()) {
      *out_result = from.status();
      return Step::kDone;
    }
    const int64_t begin = transfer.segment * slot;
    kernels::copy(recv + begin, from.value() + begin, std::min(slot, bytes - begin));
    box.consumed.store(transfer.base + static_cast<uint64_t>(++transfer.segment),
                       std::memory_order_relaxed);
    return Step::kProgressed;
  }
  if (transfer.segment < segments) {
    const auto filled =
        static_cast<int64_t>(box.filled.load(std::memory_order_seq_cst) - transfer.base);
    if (filled <= transfer.segment) return Step::kBlocked;
    const int64_t begin = transfer.segment * slot;
    kernels::copy(recv + begin, ring_slot(&box, group_.shape(), transfer.segment),
                  std::min(slot, bytes - begin));
    box.consumed.store(transfer.base + static_cast<uint64_t>(++transfer.segment),
                       std::memory_order_seq_cst);
    ring(peer);
    return Step::kProgressed;
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
      group_, Code::kMismatch, operation.kind, static_cast<int64_t>(transfer.number),
      operation.root,
      format("the two sides disagree: %s %s, %s %s; make both sides name the same count and type, "
             "then re-create the communicator",
             member_text(group_, sender).c_str(), side("sends", box.signature, box.count).c_str(),
             member_text(group_, receiver).c_str(),
             side("receives", box.expected_signature, box.expected_count).c_str()));
}

Status Mailboxes::timed_out(const Collective& operation, const Transfer& transfer) const {
  return collective::timed_out(group_, operation.kind, static_cast<int64_t>(transfer.number),
                               {operation.root},
                               operation.kind == Kind::kSend ? "has not received" : "has not sent");
}

}  // namespace dt::collective
