// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "collective/group.h"
#include "collective/mover.h"
#include "collective/operation.h"

namespace dt::collective {

/// Memory of the messages from one member to another; in the sender's section, made at the first.
///
/// The sender announces message n, the receiver compares it with what it expects, takes the data
/// and says so; the sender then is done, so at most one message per pair is under way and the ring
/// is empty when the next is announced.
struct Mailbox {
  static constexpr int64_t kSlots = 4;

  // Written by the sender.
  alignas(2 * kLineBytes) std::atomic<uint64_t> posted;  ///< messages announced
  uint64_t signature;
  int64_t count;
  Place place;                                           ///< valid with flag::kSendShared
  alignas(2 * kLineBytes) std::atomic<uint64_t> filled;  ///< segments in the ring, of all messages
  // Written by the receiver.
  alignas(2 * kLineBytes) std::atomic<uint64_t> taken;  ///< messages taken
  std::atomic<uint64_t> refused;                        ///< number of the message that differs
  uint64_t expected_signature;
  int64_t expected_count;
  alignas(2 * kLineBytes) std::atomic<uint64_t> consumed;  ///< segments copied out, of all messages
  // Behind it: kSlots * slot_bytes.
};

/// The state of one send or receive.
struct Transfer {
  uint64_t number = 0;  ///< of the message on its pair; 0: not begun
  int64_t segment = 0;  ///< segments done by this side
  uint64_t base = 0;    ///< segments of all messages before, on the mailbox
  bool matched = false;
};

/// Sends and receives of one communicator. Under its progress lock. Transfers of one pair and
/// direction are to be advanced in order, the next only when the one before is done.
class Mailboxes {
 public:
  explicit Mailboxes(Group& group);

  /// kDone: see `out_result`.
  Step advance(const Collective& operation, Transfer& transfer, Status* out_result);
  Status timed_out(const Collective& operation, const Transfer& transfer) const;

 private:
  struct Pair {
    std::shared_ptr<const shm::View> view;  ///< null for the own mailboxes
    Mailbox* box = nullptr;
    uint64_t messages = 0;
    uint64_t segments = 0;
  };

  Status open_outgoing(int32_t peer);
  Result<bool> open_incoming(int32_t peer);
  Step advance_send(const Collective& operation, Transfer& transfer, Status* out_result);
  Step advance_recv(const Collective& operation, Transfer& transfer, Status* out_result);
  Status differs(const Collective& operation, const Transfer& transfer, const Mailbox& box) const;
  int64_t segments_of(const Collective& operation) const;
  void ring(int32_t peer) const;

  Group& group_;
  std::vector<Pair> outgoing_;  ///< by peer
  std::vector<Pair> incoming_;
};

}  // namespace dt::collective
