// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "collective/exchange.h"
#include "collective/operation.h"
#include "collective/topology.h"

namespace dt::collective {

/// Where bytes lie: in the caller's buffers, or in memory of the schedule's own.
enum class Space : uint8_t { kSend, kRecv, kScratch };

struct Piece {
  Space space = Space::kScratch;
  int64_t offset_bytes = 0;
};

/// One operation of the ranks of this host, on the communicator that they form. All of them have
/// the same operations in the same order.
struct LocalStep {
  Kind kind = Kind::kBroadcast;  ///< or reduce; alltoallv or allgatherv, with `blocks`
  ReduceOp op = ReduceOp::kSum;
  int32_t divisor = 0;  ///< as in Collective
  int32_t root = 0;     ///< index on this host
  Piece send;
  Piece recv;
  int64_t count = 0;
  std::shared_ptr<const Blocks> blocks;
};

/// Bytes to or from a rank of another host. Between two ranks they arrive in the order of sending.
struct NetworkStep {
  int32_t peer = 0;  ///< rank of the communicator
  Piece at;
  int64_t bytes = 0;
};

/// target = sources[0] op sources[1] op ..., by host.
struct SumStep {
  Piece target;
  std::vector<Piece> sources;
  ReduceOp op = ReduceOp::kSum;
  int32_t divisor = 1;
  int64_t count = 0;
};

/// The steps of a stage run side by side, the sums when all others are done. Then comes the next.
struct Stage {
  std::vector<LocalStep> local;
  std::vector<NetworkStep> sends;
  std::vector<NetworkStep> receives;
  std::vector<SumStep> sums;

  bool empty() const { return local.empty() && sends.empty() && receives.empty() && sums.empty(); }
};

/// What pays for so many hosts and bytes, of a buffer or, of an allgather or reduce-scatter, of a
/// block; measured in docs/measured/host.md. Sums of f16 and bf16 are rounded where they are passed
/// on, so these take no ring, which does that H - 1 times.
Way choose_way(Kind kind, Dtype dtype, int32_t hosts, int64_t bytes);

/// What one rank does in a collective over several hosts: a pure function of the call, of where the
/// ranks are and of who asks.
///
/// A large buffer is worked off in rounds, each of which needs a bounded scratch memory. The
/// *mover* of a slice is the rank on each host that exchanges it with its counterparts on the other
/// hosts; inside a host data moves through shared memory only. Where hosts have several ranks, the
/// rounds of an allreduce overlap: while a segment is on the wire, the host reduces the one after
/// it and hands out the one before.
///
/// Every element is first combined over the ranks of each host, in rank order, then over the hosts:
/// in the order of their lowest ranks where they exchange directly, else in an order that follows
/// from the way and the element's place. So results depend on where the ranks are and on the count,
/// never on timing, and all ranks end with equal bits. For the average of floats the first step
/// scales by 1/ranks, or the only one, where each rank has a host to itself and gets what all
/// others have at once; integers are divided at the end.
///
/// A rank that has its host to itself has nothing to combine there: it sends and adds what lies in
/// the caller's buffer.
class Schedule {
 public:
  /// `collective` is read now, `topology` is borrowed; at least two hosts. Not for send and recv,
  /// nor for what block_stages() is for. `way`: instead of the one that choose_way() gives, as far
  /// as it is possible; equal on all ranks.
  Schedule(const Collective& collective, const Topology& topology, int32_t rank,
           std::optional<Way> way = {});

  int64_t rounds() const { return rounds_; }
  /// Memory of the schedule's own that every round may use.
  int64_t scratch_bytes() const { return scratch_bytes_; }
  /// Stages of this rank; none of them is empty.
  std::vector<Stage> round(int64_t index) const;

  /// Bytes that a mover handles in a round.
  static constexpr int64_t kSegmentBytes = 4 << 20;
  /// The same where rounds overlap: what is on the wire covers what the host does meanwhile, and
  /// the first reduction and the last broadcast, which nothing covers, are short.
  static constexpr int64_t kOverlappedBytes = 1 << 20;
  /// Up to this the movers exchange whole buffers: one network delay instead of two. With more
  /// than kDirectHosts, up to so much less.
  static constexpr int64_t kWholeBytes = 32 << 10;
  /// So many hosts exchange so much directly: fewest delays, and the ports of a switch can hold
  /// what comes at once.
  static constexpr int32_t kDirectHosts = 8;
  static constexpr int64_t kDirectBytes = 512 << 10;
  /// From here on a ring pays, if its parts are long enough to cover a network delay each.
  static constexpr int64_t kRingFromBytes = 8 << 20;
  static constexpr int64_t kRingPartBytes = 256 << 10;
  /// From here on a broadcast or reduce goes along a chain of the hosts, in segments of so many
  /// bytes: no host sends or receives more than it once.
  static constexpr int64_t kChainFromBytes = 512 << 10;
  static constexpr int64_t kChainedBytes = 256 << 10;

 private:
  struct Span {
    int64_t begin;
    int64_t count;
  };

  void plan_allreduce();
  void plan_rounds(int64_t round_bytes, int64_t scratch_pieces);
  void allreduce_whole(Span span, std::vector<Stage>* out) const;
  void allreduce_parts(Span span, std::vector<Stage>* out) const;
  void allreduce_overlapped(int64_t index, std::vector<Stage>* out) const;
  void reduce_slices(Span span, Stage* stage) const;
  void scatter_parts(Span span, std::vector<Stage>* stages) const;
  void gather_parts(Span span, std::vector<Stage>* stages) const;
  std::vector<Span> pieces(const Move& move, Span slice) const;
  void add_moves(const std::vector<Move>& moves, Span slice, Space space,
                 std::vector<NetworkStep>* steps) const;
  void broadcast_slices(Span span, Stage* stage) const;
  void reduce(Span span, std::vector<Stage>* out) const;
  void reduce_chained(int64_t index, std::vector<Stage>* out) const;
  void broadcast(Span span, std::vector<Stage>* out) const;
  void broadcast_chained(int64_t index, std::vector<Stage>* out) const;
  void allgather(Span span, std::vector<Stage>* out) const;
  void allgather_stepwise(Span span, std::vector<Stage>* out) const;
  void reduce_scatter(Span span, std::vector<Stage>* out) const;
  void reduce_scatter_stepwise(Span span, std::vector<Stage>* out) const;

  Piece combine_host(int32_t root, Piece send, Piece recv, int64_t count, Stage* stage) const;
  LocalStep broadcast_locally(int32_t root, Piece send, Piece recv, int64_t count) const;
  SumStep sum_hosts(Piece target, int64_t count, bool complete = true) const;
  Piece at(Space space, int64_t element) const { return {space, element * element_bytes_}; }
  int64_t bytes(int64_t elements) const { return elements * element_bytes_; }
  Span segment(int64_t index) const;
  static Span part(int64_t index, int64_t parts, Span whole);
  static void append(std::vector<Stage>* out, Stage stage);
  static void add(std::vector<NetworkStep>* steps, NetworkStep step);

  const Topology& topology_;
  const int32_t rank_;
  const int32_t host_;   ///< of the caller
  const int32_t local_;  ///< index of the caller on it
  const int32_t hosts_;  ///< how many
  const Kind kind_;
  const Dtype dtype_;
  const ReduceOp op_;
  const int32_t divisor_;
  const int32_t root_;
  const int64_t count_;
  const int64_t element_bytes_;
  Way way_;
  int64_t slices_ = 1;
  int64_t round_elements_ = 0;
  int64_t rounds_ = 1;
  bool whole_ = false;            ///< see allreduce_whole()
  bool overlaps_ = false;         ///< see allreduce_overlapped()
  bool averages_last_ = false;    ///< in the last sum over hosts, not in the first over ranks
  bool takes_from_send_ = false;  ///< nothing is combined on this host, see combine_host()
  int64_t scratch_bytes_ = 0;
};

/// The same for alltoall, gather, scatter and their irregular forms: one round, in which each block
/// goes straight from its place to its place. Never empty.
std::vector<Stage> block_stages(const Collective& collective, const Topology& topology,
                                int32_t rank);

}  // namespace dt::collective
