// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "collective/thresholds.h"
#include "transport/shm/section.h"

namespace dt::collective {

using shm::kLineBytes;

/// A member's part in the memory of a communicator: lies in the member's own section, is written by
/// the member (but for `detached`) and read by all.
///
/// **Slots.** Operation s is announced in slot s mod 2. A member announces operation s + 2 only
/// after it completed s + 1, hence after it saw every member announce s + 1, hence after every
/// member completed s and stopped reading slot s mod 2: so a slot is never overwritten under a
/// reader. This needs that every operation waits for every member's announcement, which it does.

/// The announcement, in one cache line with a contribution that is very small, in two with one that
/// is small.
struct alignas(2 * kLineBytes) Head {         // two lines: processors prefetch lines in pairs
  static constexpr int64_t kFirstBytes = 40;  // of the data, in the first line
  static constexpr int64_t kDataBytes = kFirstBytes + kLineBytes;

  std::atomic<uint64_t> sequence;  ///< written last: announces the rest
  uint64_t signature;              ///< see descriptor.h
  int64_t count;
  alignas(8) char data[kDataBytes];
};
static_assert(sizeof(Head) == 2 * kLineBytes);

/// Where a buffer lies in the owner's section.
struct Place {
  int64_t offset;
  int64_t allocation_offset;
  int64_t allocation_bytes;
};

/// What a member says of its block for another one, and of what it expects from it. Tables of them,
/// one entry for each member, are written by operations whose blocks differ.
struct Lane {
  int64_t count;        ///< elements that go to the other member
  int64_t expected;     ///< elements that are to come from it
  int64_t at;           ///< bytes: see Distributor
  int64_t piece_bytes;  ///< likewise
};

/// The rest of an announcement, read only where the flags of the signature ask for it.
struct alignas(kLineBytes) Detail {
  static constexpr int64_t kNameBytes = 48;
  static constexpr int64_t kTextBytes = 416;

  Place send;
  Place recv;
  int64_t segments;  ///< of the own blocks, see Distributor
  char name[kNameBytes];
  char withheld[kTextBytes];
};

/// What all members must have set alike.
struct Shape {
  int64_t inline_bytes = 0;  ///< of each of the two inline areas
  int64_t slot_bytes = 0;    ///< multiple of a cache line
  int64_t slots = 0;         ///< of the staging ring
  Thresholds thresholds;

  bool operator==(const Shape&) const = default;
};

struct alignas(4096) Block {
  static constexpr uint64_t kMagic = 0x3130'6b63'6f6c'6274;

  Head heads[2];
  // Progress of the operations' data, counted in segments since the communicator was made.
  alignas(2 * kLineBytes) std::atomic<uint64_t> filled;    ///< put into the ring
  alignas(2 * kLineBytes) std::atomic<uint64_t> reduced;   ///< own part of the segment summed
  alignas(2 * kLineBytes) std::atomic<uint64_t> relayed;   ///< parts of other nodes put in its slot
  alignas(2 * kLineBytes) std::atomic<uint64_t> consumed;  ///< everything of it read
  // The same for the blocks of alltoall and its like.
  alignas(2 * kLineBytes) std::atomic<uint64_t> given;  ///< put into the ring
  alignas(2 * kLineBytes) std::atomic<uint64_t> taken;  ///< read, of every member
  Detail details[2];
  // Written once, before the block is published.
  alignas(kLineBytes) uint64_t magic;
  Shape shape;
  int32_t members;
  /// Members that have closed the communicator; at `members` nobody reads the block any more.
  alignas(kLineBytes) std::atomic<uint32_t> detached;
  // Behind it: int64 mailbox offsets [members] (0: none yet), lanes [2][members], inline areas [2],
  // ring slots.
};

/// Offsets behind a Block.
struct Layout {
  int64_t mailboxes;
  int64_t lanes;
  int64_t inline_area;
  int64_t ring;
  int64_t bytes;

  Layout(const Shape& shape, int32_t members) {
    const auto whole_lines = [](int64_t value) {
      return (value + kLineBytes - 1) / kLineBytes * kLineBytes;
    };
    mailboxes = sizeof(Block);
    lanes = mailboxes + whole_lines(members * static_cast<int64_t>(sizeof(int64_t)));
    inline_area = lanes + 2 * whole_lines(members * static_cast<int64_t>(sizeof(Lane)));
    ring = inline_area + 2 * whole_lines(shape.inline_bytes);
    bytes = ring + shape.slots * shape.slot_bytes;
  }
};

}  // namespace dt::collective
