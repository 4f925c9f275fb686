// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace dt {

/// Operations of a communicator. Values equal dt_kind (asserted in runtime/capi).
enum class Kind : int32_t {
  kAllreduce = 0,
  kReduce = 1,
  kBroadcast = 2,
  kAllgather = 3,
  kReduceScatter = 4,
  kBarrier = 5,
  kSend = 6,
  kRecv = 7,
  kAlltoall = 8,
  kAlltoallv = 9,
  kGather = 10,
  kGatherv = 11,
  kScatter = 12,
  kScatterv = 13,
  kAllgatherv = 14,
  kReduceScatterv = 15,
};

/// How many elements a buffer of an operation holds.
enum class Holds : uint8_t {
  kNothing,
  kCount,         ///< `count`
  kCountPerRank,  ///< `count` for each rank of the communicator
  kTable,         ///< for each rank its entry in a table of counts
  kOwnEntry,      ///< the calling rank's entry in the table of the other buffer
};

struct KindBuffer {
  Holds holds = Holds::kNothing;
  bool root_only = false;  ///< other ranks have none
};

/// What the number of another rank means.
enum class PeerRole : uint8_t { kNone, kRoot, kOther };

/// How `send` and `recv` may share memory.
enum class InPlace : uint8_t {
  kNever,
  kSame,      ///< they begin at the same address
  kOwnBlock,  ///< the smaller one lies in the larger one, where this rank's block belongs
};

/// What the slowest link carries at least, per byte of the larger buffer:
/// nccl-tests/PERFORMANCE.md.
enum class BusFactor : uint8_t {
  kOne,
  kOthers,       ///< (N-1)/N
  kTwiceOthers,  ///< 2(N-1)/N
};

/// Everything about a kind that is not an algorithm.
struct KindTraits {
  Kind kind;
  const char* name;
  KindBuffer send;
  KindBuffer recv;
  PeerRole peer;
  bool reduces;
  InPlace in_place;
  BusFactor bus;
  /// Each element arrives as it was sent: what rank i sends to rank j is a block.
  bool moves_blocks;
};

// clang-format off
inline constexpr KindTraits kKindTraits[] = {
    {Kind::kAllreduce, "allreduce", {Holds::kCount}, {Holds::kCount},
     PeerRole::kNone, true, InPlace::kSame, BusFactor::kTwiceOthers, false},
    {Kind::kReduce, "reduce", {Holds::kCount}, {Holds::kCount, true},
     PeerRole::kRoot, true, InPlace::kSame, BusFactor::kOne, false},
    {Kind::kBroadcast, "broadcast", {Holds::kCount, true}, {Holds::kCount},
     PeerRole::kRoot, false, InPlace::kSame, BusFactor::kOne, false},
    {Kind::kAllgather, "allgather", {Holds::kCount}, {Holds::kCountPerRank},
     PeerRole::kNone, false, InPlace::kOwnBlock, BusFactor::kOthers, false},
    {Kind::kReduceScatter, "reduce_scatter", {Holds::kCountPerRank}, {Holds::kCount},
     PeerRole::kNone, true, InPlace::kOwnBlock, BusFactor::kOthers, false},
    {Kind::kBarrier, "barrier", {}, {},
     PeerRole::kNone, false, InPlace::kNever, BusFactor::kOne, false},
    {Kind::kSend, "send", {Holds::kCount}, {},
     PeerRole::kOther, false, InPlace::kNever, BusFactor::kOne, false},
    {Kind::kRecv, "recv", {}, {Holds::kCount},
     PeerRole::kOther, false, InPlace::kNever, BusFactor::kOne, false},
    {Kind::kAlltoall, "alltoall", {Holds::kCountPerRank}, {Holds::kCountPerRank},
     PeerRole::kNone, false, InPlace::kNever, BusFactor::kOthers, true},
    {Kind::kAlltoallv, "alltoallv", {Holds::kTable}, {Holds::kTable},
     PeerRole::kNone, false, InPlace::kNever, BusFactor::kOthers, true},
    {Kind::kGather, "gather", {Holds::kCount}, {Holds::kCountPerRank, true},
     PeerRole::kRoot, false, InPlace::kOwnBlock, BusFactor::kOthers, true},
    {Kind::kGatherv, "gatherv", {Holds::kCount}, {Holds::kTable, true},
     PeerRole::kRoot, false, InPlace::kOwnBlock, BusFactor::kOthers, true},
    {Kind::kScatter, "scatter", {Holds::kCountPerRank, true}, {Holds::kCount},
     PeerRole::kRoot, false, InPlace::kOwnBlock, BusFactor::kOthers, true},
    {Kind::kScatterv, "scatterv", {Holds::kTable, true}, {Holds::kCount},
     PeerRole::kRoot, false, InPlace::kOwnBlock, BusFactor::kOthers, true},
    {Kind::kAllgatherv, "allgatherv", {Holds::kOwnEntry}, {Holds::kTable},
     PeerRole::kNone, false, InPlace::kOwnBlock, BusFactor::kOthers, true},
    // No backend knows it: runtime/capi makes it of one reduce for each rank.
    {Kind::kReduceScatterv, "reduce_scatterv", {Holds::kTable}, {Holds::kOwnEntry},
     PeerRole::kNone, true, InPlace::kOwnBlock, BusFactor::kOthers, false},
};
// clang-format on
inline constexpr int kKindCount = static_cast<int>(std::size(kKindTraits));

constexpr bool kinds_are_in_order() {
  for (int i = 0; i < kKindCount; ++i) {
    if (kKindTraits[i].kind != static_cast<Kind>(i)) return false;
  }
  return true;
}
static_assert(kinds_are_in_order());

constexpr bool is_valid(Kind kind) {
  return static_cast<int32_t>(kind) >= 0 && static_cast<int32_t>(kind) < kKindCount;
}
/// `kind` must be valid.
constexpr const KindTraits& traits(Kind kind) { return kKindTraits[static_cast<size_t>(kind)]; }
/// "?" for an invalid one, which a peer or a file may have named.
constexpr const char* kind_name(Kind kind) { return is_valid(kind) ? traits(kind).name : "?"; }
constexpr bool reduces(Kind kind) { return is_valid(kind) && traits(kind).reduces; }
constexpr bool has_root(Kind kind) {
  return is_valid(kind) && traits(kind).peer == PeerRole::kRoot;
}
constexpr bool is_transfer(Kind kind) {
  return is_valid(kind) && traits(kind).peer == PeerRole::kOther;
}
/// alltoall, gather, scatter, and all kinds with tables.
constexpr bool moves_blocks(Kind kind) { return is_valid(kind) && traits(kind).moves_blocks; }
/// Kinds with a table of counts (Collective::blocks). Their Collective::count is what the larger of
/// the caller's two buffers holds, and differs between ranks.
constexpr bool is_irregular(Kind kind) {
  return is_valid(kind) &&
         (traits(kind).send.holds == Holds::kTable || traits(kind).recv.holds == Holds::kTable);
}
/// Every rank gets the same block of a rank.
constexpr bool is_multicast(Kind kind) {
  return is_valid(kind) && traits(kind).send.holds == Holds::kOwnEntry;
}

}  // namespace dt
