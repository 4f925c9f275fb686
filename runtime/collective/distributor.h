// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "collective/blocks.h"
#include "collective/group.h"
#include "collective/mover.h"
#include "collective/operation.h"
#include "collective/stager.h"

namespace dt::collective {

/// Moves the blocks of alltoall, gather, scatter and their irregular forms between the members.
///
/// A member's blocks for the others, its *cargo*, go one of three ways, which it announces:
///   inlined  few bytes: the blocks, one behind the other, travel with the announcement
///   shared   `send` lies in the arena: receivers read there
///   ring     segment by segment through its staging ring. Each slot has a *piece* for each
///            receiver, in proportion to its block; of allgatherv one piece for all
/// `at` of a lane is where the block, in the send buffer, or its piece, in a slot, begins, in
/// bytes. Regular operations have equal lanes, which are computed; the others announce a table of
/// them.
///
/// Two counters in each member's block count segments, never reset: `given` put into the ring,
/// `taken` needed no more, of no member. An operation adds to both, on every member, the largest
/// number of segments that a member has announced, so all know the base of the next one.
///
/// It ends: take the member that has taken least, segment t, and a member whose segment t it waits
/// for. That one has given at most t segments, and its slot is free, because all have taken more
/// than t - slots. So it can give.
///
/// A slot is safe to reuse: within an operation as said, and between operations because all
/// announced the present one, so completed the one before, so read no slot any more.
///
/// Receivers begin with the member behind them, in rank order, so that at any time different
/// receivers read different members.
class Distributor {
 public:
  explicit Distributor(Group& group) : group_(group), stager_(group.options().staging) {}

  /// Puts into the own announcement of operation `sequence` what it says of its blocks; all but
  /// the signature, whose flags it returns, and the sequence number.
  uint64_t announce(const Collective& collective, uint64_t sequence, Head* head, Detail* detail);
  /// All have announced the same operation: does some member expect another count than is sent?
  bool unbalanced(const Collective& collective, uint64_t sequence) const;
  /// Of those pairs, which.
  Status mismatch(const Collective& collective, uint64_t sequence) const;
  /// All have announced it, and nothing speaks against it. `signatures` by rank. The collective
  /// stays there until it ends.
  Status plan(const Collective& collective, uint64_t sequence,
              const std::vector<uint64_t>& signatures);
  /// About a slot of work.
  Step advance();
  /// The members that the present step waits for and that wait for nobody themselves.
  std::vector<int32_t> awaited() const;

 private:
  using Counter = std::atomic<uint64_t> Block::*;

  struct Cargo {
    int64_t bytes = 0;
    int32_t receivers = 0;
    bool shared = false;
    bool inlined = false;
  };
  /// A member that has a block for this one.
  struct Source {
    int32_t rank;
    const char* shared;  ///< the block; null: in the ring
    int64_t at;          ///< of the ring: in a slot
    int64_t piece_bytes;
    int64_t bytes;
    char* target;
    int64_t done = 0;  ///< segments
  };
  struct Receiver {
    int32_t rank;
    const char* block;
    int64_t at;
    int64_t piece_bytes;
    int64_t bytes;
  };

  Cargo cargo_of(const Collective& collective, int32_t rank) const;
  int64_t slot_bytes_of(const Cargo& cargo) const;
  Lane regular_lane(const Collective& collective, const Cargo& cargo, int32_t from,
                    int32_t to) const;
  int64_t make_lanes(const Collective& collective, const Cargo& cargo);
  void put_inline(const Collective& collective, char* area) const;
  Lane lane_of(const Collective& collective, uint64_t sequence, uint64_t signature, int32_t from,
               int32_t to) const;
  Status add_source(const Collective& collective, uint64_t sequence, uint64_t signature,
                    int32_t rank);
  void add_receivers(const Collective& collective);
  bool take_round();
  bool give();
  void take_own();
  void publish_taken();
  bool given(int32_t rank, int64_t segments) const;
  bool taken(int64_t segments) const;
  int64_t progress(int32_t rank, Counter counter) const;
  bool owes(int32_t from, int32_t to, int64_t segments) const;
  bool collect_takers(int32_t giver, std::vector<int32_t>* takers) const;
  bool collect_givers(int32_t taker, std::vector<int32_t>* givers) const;

  Group& group_;
  Stager stager_;
  const Collective* collective_ = nullptr;
  uint64_t sequence_ = 0;
  uint64_t base_ = 0;         ///< segments of all operations before
  int64_t segments_ = 0;      ///< of this one
  int64_t own_segments_ = 0;  ///< of the own cargo
  int64_t given_ = 0;
  int64_t taken_ = 0;
  bool shares_ = false;      ///< receivers read the own send buffer: it ends with them
  std::vector<Lane> lanes_;  ///< of the own cargo, by rank; elements and bytes
  std::vector<Source> sources_;
  std::vector<Receiver> receivers_;
  bool multicast_ = false;
  // The own block for oneself, copied in as many parts as there are segments.
  const char* own_from_ = nullptr;
  char* own_to_ = nullptr;
  int64_t own_bytes_ = 0;  ///< that are left
  int64_t own_part_ = 0;   ///< bytes
};

}  // namespace dt::collective
