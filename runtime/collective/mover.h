// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "collective/group.h"
#include "collective/operation.h"
#include "collective/stager.h"
#include "kernels/host/reduce.h"

namespace dt::collective {

enum class Step { kDone, kProgressed, kBlocked };

/// Moves the data of one collective that is too large to travel with its announcement.
///
/// Words. A *segment* is what moves at once: at most a slot of elements. Each member has four
/// counters of segments in its block, never reset; an operation of T segments adds T to each of
/// them on every member, whatever the member did, so all members know the base of the next one.
/// (In communicators of one level `relayed` stays 0.)
///   filled    the member's contribution to the segment can be read (in its ring, or in its own
///             send buffer if that lies in the arena: then nothing is copied)
///   reduced   two-phase only: the member summed its part of the segment, in its own slot
///   relayed   the member put into its slot what it brings from other NUMA nodes (see Levels)
///   consumed  the member reads nothing of the segment any more, of nobody
///
/// Ways, chosen from facts that all members announced:
///   push      every buffer concerned lies in the arena: each member sums its part of the elements
///             from all send buffers straight into the recv buffers. One segment, one wait.
///   exchange  each member reads all contributions and computes its whole result.
///   two-phase each member sums its part of a segment from all slots into its own slot, then all
///             copy the parts out. Part r of member r's slot is read by member r only, so the sum
///             may overwrite it.
///
/// Ring reuse is safe: within an operation, segment t is filled only after every reader, and the
/// member itself, consumed segment t - slots. Between operations, all announced the present one, so
/// all completed the one before, so nobody reads any slot. Segments that surely go through the ring
/// are filled before that, one at once and more while this member waits anyway: others may then
/// still read slots of the last operation, as far as they have not consumed them, but not of older
/// ones.
///
/// Over two levels a member reads of other nodes only what it sums, and what it relays: for
/// broadcast, allgather, and the parts of a two-phase allreduce. A relay writes to its slot where a
/// member of its node may read until that one consumed the segment; in a two-phase allreduce over
/// what it had put there for the member whose part it is, which has summed it. Each stage of a
/// segment waits for earlier stages of that segment, or for `consumed` of an older one: so no wait
/// closes a circle.
///
/// Each element is summed in rank order on every way, so the bits do not depend on the way.
class Mover {
 public:
  explicit Mover(Group& group);

  /// Called when this member has announced an operation that does not travel with the announcement.
  /// `signature`: its own.
  void begin(const Collective& collective, uint64_t signature);
  /// While the others have not announced it: fills a segment more of what was begun. False: there
  /// is none, or no slot for it.
  bool fill_ahead();
  /// The operation that was begun will not be planned, on no member.
  void drop();
  /// Called when all members announced: `signatures` and `details` by rank.
  Status plan(const Collective& collective, const std::vector<uint64_t>& signatures,
              const std::vector<const Detail*>& details);
  /// At most one segment of work.
  Step advance();
  /// Whom the present step waits for.
  std::vector<int32_t> awaited() const;

 private:
  enum class Way { kPush, kExchange, kTwoPhase };
  using Counter = std::atomic<uint64_t> Block::*;

  struct Source {
    const char* shared = nullptr;  ///< the member's send buffer, null: use its ring
  };
  struct Span {
    int64_t begin;  ///< first element within the buffer of a member
    int64_t count;
  };

  void cut();
  Status plan_push(const std::vector<uint64_t>& signatures,
                   const std::vector<const Detail*>& details);
  Status plan_pull(const std::vector<uint64_t>& signatures,
                   const std::vector<const Detail*>& details);
  Step advance_push();
  Step advance_pull();
  void fill(int64_t segment);
  void reduce_part(int64_t segment);
  void consume(int64_t segment);
  void reduce_all(int64_t segment);
  /// Whether others read this member's contribution.
  bool is_read() const;
  bool gets_result() const;

  // mover_relay.cc
  bool crosses_nodes() const;
  void plan_relay();
  bool offers(int32_t source, int64_t segments) const;
  bool can_relay() const;
  void relay(int64_t segment);
  int64_t lane_offset(int32_t source) const;
  /// Where this member reads what `source` has for all.
  const char* held(int32_t source, int64_t segment) const;
  void collect_relays(std::vector<int32_t>* late) const;
  bool collect_slow(int64_t segment, std::vector<int32_t>* late) const;

  Span span(int64_t segment) const;
  Span part(int32_t rank, int64_t count) const;
  /// Member `rank`'s contribution to the segment; `piece` of reduce_scatter.
  const char* source(int32_t rank, int64_t segment, int32_t piece) const;
  char* slot(int32_t rank, int64_t segment) const;
  bool reached(int32_t rank, Counter counter, int64_t segments) const;
  bool reached(const std::vector<int32_t>& ranks, Counter counter, int64_t segments) const;
  void publish(Counter counter, int64_t segments);
  Step finish();

  Group& group_;
  Stager stager_;
  const Collective* collective_ = nullptr;
  Way way_ = Way::kExchange;
  uint64_t base_ = 0;  ///< segments of all operations before
  int64_t element_bytes_ = 1;
  int64_t segment_elements_ = 0;
  int64_t piece_bytes_ = 0;    ///< of a slot: a member's of reduce_scatter, a lane of allgather
  int64_t segments_ = 0;       ///< T
  bool begun_ = false;         ///< an operation that the others have not announced
  int64_t last_segments_ = 0;  ///< T of the operation before that
  int64_t ahead_ = 0;          ///< segments filled before the others announced the operation
  int64_t filled_ = 0;
  int64_t reduced_ = 0;
  int64_t consumed_ = 0;
  int64_t relayed_ = 0;
  bool relays_data_ = false;  ///< over two levels
  bool shares_ = false;       ///< peers read this member's send buffer: it ends with them
  std::vector<Source> sources_;
  std::vector<int32_t> fillers_;  ///< other members that fill their ring
  std::vector<int32_t> readers_;  ///< other members that read anything of this one
  std::vector<int32_t> others_;   ///< all other members
  std::vector<int32_t>
      awaited_sources_;          ///< over two levels: other members whose memory it consumes
  std::vector<int32_t> duties_;  ///< members that this one relays to its node
  std::vector<int32_t> relays_;  ///< other members that relay to this one
  std::vector<const void*> scratch_;
  kernels::Stores stores_ = kernels::Stores::kTemporal;  ///< into recv buffers
  // push
  std::vector<char*> targets_;       ///< the recv buffers to write, own first
  std::vector<void*> push_targets_;  ///< where in them
  int64_t next_ = 0;                 ///< element
  int64_t end_ = 0;
};

}  // namespace dt::collective
