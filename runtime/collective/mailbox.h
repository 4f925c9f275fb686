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
#include "collective/stager.h"

namespace dt::collective {

/// Memory of the messages from one member to another; in the sender's section, made at the first.
///
/// The sender announces message n, the receiver compares it with what it expects, takes the data
/// and says so; the sender then is done, so at most one message per pair is under way and the ring
/// is empty when the next is announced. A very small message rides in the announcement; of others
/// the first piece is in the ring before they are announced, so neither needs a second look.
struct Mailbox {
  static constexpr int64_t kDataBytes = 2 * kLineBytes - 24;

  // Written by the sender.
  alignas(2 * kLineBytes) std::atomic<uint64_t> posted;  ///< messages announced
  uint64_t signature;
  int64_t count;
  union {
    Place place;  ///< valid with flag::kSendShared
    char data[kDataBytes];
  };
  alignas(2 * kLineBytes) std::atomic<uint64_t> filled;  ///< pieces in the ring, of all messages
  // Written by the receiver.
  alignas(2 * kLineBytes) std::atomic<uint64_t> taken;  ///< messages taken
  std::atomic<uint64_t> refused;                        ///< number of the message that differs
  uint64_t expected_signature;
  int64_t expected_count;
  /// Pieces copied out, of all messages; said of messages that have more pieces than the ring.
  alignas(2 * kLineBytes) std::atomic<uint64_t> consumed;
  // Behind it: the ring.
};

/// The state of one send or receive. How the data are cut follows from their size and from the
/// messages before, so both sides know it.
struct Transfer {
  uint64_t number = 0;  ///< of the message on its pair; 0: not begun
  uint64_t base = 0;    ///< pieces of all messages before, on the mailbox
  int64_t piece_bytes = 0;
  int64_t pieces = 0;  ///< 0: the data ride in the announcement
  int64_t slots = 0;   ///< pieces that the ring holds
  int64_t first = 0;   ///< slot of the first one
  int64_t piece = 0;   ///< done by this side
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
  /// Why it cannot end: the peer has left the job.
  Status left_behind(const Collective& operation, const Transfer& transfer) const;

 private:
  struct Pair {
    std::shared_ptr<const shm::View> view;  ///< null for the own mailboxes
    Mailbox* box = nullptr;
    uint64_t messages = 0;
    uint64_t pieces = 0;
    int64_t end = 0;  ///< of the last piece in the ring
  };

  Status open_outgoing(int32_t peer);
  Result<bool> open_incoming(int32_t peer);
  Step advance_send(const Collective& operation, Transfer& transfer, Status* out_result);
  Step advance_recv(const Collective& operation, Transfer& transfer, Status* out_result);
  Status differs(const Collective& operation, const Transfer& transfer, const Mailbox& box) const;
  int64_t piece_max() const;
  int64_t ring_bytes() const;
  int64_t box_bytes() const;
  void begin(Pair& pair, int64_t bytes, Transfer* transfer) const;
  void fill(const Collective& operation, Transfer& transfer, Mailbox* box);
  void ring(int32_t peer) const;

  Group& group_;
  Stager stager_;
  std::vector<Pair> outgoing_;  ///< by peer
  std::vector<Pair> incoming_;
};

}  // namespace dt::collective
