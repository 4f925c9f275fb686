// SPDX-License-Identifier: Apache-2.0
#include "collective/distributor.h"

#include <algorithm>
#include <cstring>

#include "collective/descriptor.h"
#include "kernels/host/reduce.h"

namespace dt::collective {
namespace {

int64_t whole_lines(int64_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; }

int64_t parts(int64_t bytes, int64_t piece) { return (bytes + piece - 1) / piece; }

void add_once(std::vector<int32_t>* ranks, int32_t rank) {
  if (std::find(ranks->begin(), ranks->end(), rank) == ranks->end()) ranks->push_back(rank);
}

}  // namespace

Distributor::Cargo Distributor::cargo_of(const Collective& collective, int32_t rank) const {
  Cargo cargo;
  const int64_t element = dtype_bytes(collective.dtype);
  const int32_t size = group_.size();
  if (!is_irregular(collective.kind)) {
    const bool gather = collective.kind == Kind::kGather;
    const bool gives = gather ? rank != collective.root
                              : collective.kind == Kind::kAlltoall || rank == collective.root;
    cargo.receivers = !gives || collective.count == 0 ? 0 : gather ? 1 : size - 1;
    cargo.bytes = cargo.receivers * collective.count * element;
  } else {
    for (int32_t to = 0; to < size; ++to) {
      const int64_t bytes = to == rank ? 0 : outgoing(collective, rank, size, to).count * element;
      if (bytes == 0) continue;
      ++cargo.receivers;
      cargo.bytes = is_multicast(collective.kind) ? bytes : cargo.bytes + bytes;
    }
  }
  cargo.inlined = cargo.bytes <= group_.shape().inline_bytes;
  return cargo;
}

/// At least two lines for each receiver where the slot has them, else one, which it has. A shared
/// cargo needs no slot.
int64_t Distributor::slot_bytes_of(const Cargo& cargo) const {
  const Shape& shape = group_.shape();
  const int64_t least = cargo.receivers * 2 * kLineBytes;
  if (cargo.shared) return std::max(shape.thresholds.push_bytes, least);
  const int64_t wanted = shape.thresholds.segment(cargo.bytes, shape.slot_bytes);
  return std::min(std::max(wanted, least), shape.slot_bytes);
}

Lane Distributor::regular_lane(const Collective& collective, const Cargo& cargo, int32_t from,
                               int32_t to) const {
  Lane lane{};
  const Extent block = outgoing(collective, from, group_.size(), to);
  const int64_t index = collective.kind == Kind::kGather ? 0 : to < from ? to : to - 1;
  const int64_t element = dtype_bytes(collective.dtype);
  lane.count = block.count;
  if (cargo.inlined) {
    lane.at = index * block.count * element;
    return lane;
  }
  lane.piece_bytes = slot_bytes_of(cargo) / cargo.receivers / kLineBytes * kLineBytes;
  lane.at = cargo.shared ? block.offset * element : index * lane.piece_bytes;
  return lane;
}

/// Returns the segments of the cargo.
int64_t Distributor::make_lanes(const Collective& collective, const Cargo& cargo) {
  const int32_t me = group_.rank();
  const int32_t size = group_.size();
  const int64_t element = dtype_bytes(collective.dtype);
  lanes_.assign(static_cast<size_t>(size), Lane{});
  const int64_t slot = slot_bytes_of(cargo);
  const bool multicast = is_multicast(collective.kind);
  // Each receiver has a line, and its share of the others.
  const int64_t spare = slot - cargo.receivers * kLineBytes;
  int64_t used = 0;
  int64_t segments = 0;
  for (int32_t to = 0; to < size; ++to) {
    Lane& lane = lanes_[static_cast<size_t>(to)];
    const Extent block = outgoing(collective, me, size, to);
    if (is_irregular(collective.kind)) {
      lane.count = block.count;
      lane.expected = incoming(collective, me, size, to).count;
    }
    if (to == me || block.count == 0) continue;
    const int64_t bytes = block.count * element;
    if (!is_irregular(collective.kind)) {
      lane = regular_lane(collective, cargo, me, to);
    } else if (cargo.inlined) {
      lane.at = multicast ? 0 : used;
      used += bytes;
    } else {
      const double share = static_cast<double>(bytes) / static_cast<double>(cargo.bytes);
      const auto extra = static_cast<int64_t>(static_cast<double>(spare) * share);
      lane.piece_bytes = multicast ? slot : kLineBytes + extra / kLineBytes * kLineBytes;
      lane.at = cargo.shared ? block.offset * element : multicast ? 0 : used;
      used += lane.piece_bytes;
    }
    if (!cargo.inlined) segments = std::max(segments, parts(bytes, lane.piece_bytes));
  }
  return segments;
}

void Distributor::put_inline(const Collective& collective, char* area) const {
  const int32_t me = group_.rank();
  const int64_t element = dtype_bytes(collective.dtype);
  const auto* send = static_cast<const char*>(collective.send);
  for (int32_t to = 0; to < group_.size(); ++to) {
    const Extent block = outgoing(collective, me, group_.size(), to);
    if (to == me || block.count == 0) continue;
    const auto bytes = static_cast<size_t>(block.count * element);
    memcpy(area, send + block.offset * element, bytes);
    area += bytes;
    if (is_multicast(collective.kind)) return;
  }
}

uint64_t Distributor::announce(const Collective& collective, uint64_t sequence, Head* head,
                               Detail* detail) {
  const int32_t me = group_.rank();
  const int32_t size = group_.size();
  const bool irregular = is_irregular(collective.kind);
  head->count = irregular ? static_cast<int64_t>(balance(collective, me, size)) : collective.count;
  Cargo cargo = cargo_of(collective, me);
  uint64_t flags = 0;
  if (!collective.withheld && !cargo.inlined) {
    int64_t end = 0;
    for (int32_t to = 0; to < size; ++to) {
      end = std::max(end, outgoing(collective, me, size, to).end());
    }
    shm::Location at;
    if (group_.arena().locate(collective.send, end * dtype_bytes(collective.dtype), &at)) {
      detail->send = {at.offset, at.allocation_offset, at.allocation_bytes};
      flags |= flag::kSendShared;
      cargo.shared = true;
    }
  }
  shares_ = cargo.shared;
  own_segments_ = 0;
  if (irregular || !cargo.inlined) own_segments_ = make_lanes(collective, cargo);
  if (irregular) {
    std::copy(lanes_.begin(), lanes_.end(), group_.lanes(me, sequence));
  }
  detail->segments = own_segments_;
  if (cargo.inlined) {
    const bool in_head = cargo.bytes <= Head::kDataBytes;
    flags |= flag::kInlined | (in_head ? flag::kInHead : 0);
    if (!collective.withheld && cargo.bytes > 0) {
      put_inline(collective, in_head ? head->data : group_.inline_area(me, sequence));
    }
  }
  return flags;
}

bool Distributor::unbalanced(const Collective& collective, uint64_t sequence) const {
  if (!is_irregular(collective.kind)) return false;
  uint64_t sum = 0;
  for (int32_t rank = 0; rank < group_.size(); ++rank) {
    sum += static_cast<uint64_t>(group_.peer(rank).block->heads[sequence & 1].count);
  }
  return sum != 0;
}

Status Distributor::mismatch(const Collective& collective, uint64_t sequence) const {
  const Difference found = difference(
      collective.dtype, group_.size(),
      [&](int32_t rank, int32_t peer) { return group_.lanes(rank, sequence)[peer].count; },
      [&](int32_t rank, int32_t peer) { return group_.lanes(rank, sequence)[peer].expected; },
      [&](int32_t rank) { return member_text(group_, rank); });
  return failure(group_, Code::kMismatch, collective, static_cast<int64_t>(sequence), found.first,
                 found.text);
}

/// As `from` announced it, with `signature`.
Lane Distributor::lane_of(const Collective& collective, uint64_t sequence, uint64_t signature,
                          int32_t from, int32_t to) const {
  if (is_irregular(collective.kind)) return group_.lanes(from, sequence)[to];
  Cargo cargo = cargo_of(collective, from);
  cargo.shared = (signature & flag::kSendShared) != 0;
  return regular_lane(collective, cargo, from, to);
}

Status Distributor::add_source(const Collective& collective, uint64_t sequence, uint64_t signature,
                               int32_t rank) {
  const int32_t me = group_.rank();
  const int64_t element = dtype_bytes(collective.dtype);
  const Extent place = incoming(collective, me, group_.size(), rank);
  if (place.count == 0) return {};
  const Block& block = *group_.peer(rank).block;
  const Lane lane = lane_of(collective, sequence, signature, rank, me);
  char* target = static_cast<char*>(collective.recv) + place.offset * element;
  const int64_t bytes = place.count * element;
  if ((signature & flag::kInlined) != 0) {
    const char* from = (signature & flag::kInHead) != 0 ? block.heads[sequence & 1].data
                                                        : group_.inline_area(rank, sequence);
    memcpy(target, from + lane.at, static_cast<size_t>(bytes));
    return {};
  }
  const char* shared = nullptr;
  if ((signature & flag::kSendShared) != 0) {
    DT_TRY_VALUE(const char* send, group_.resolve(rank, block.details[sequence & 1].send));
    shared = send + lane.at;
  }
  sources_.push_back({rank, shared, lane.at, lane.piece_bytes, bytes, target});
  return {};
}

void Distributor::add_receivers(const Collective& collective) {
  const int32_t me = group_.rank();
  const int32_t size = group_.size();
  const int64_t element = dtype_bytes(collective.dtype);
  for (int32_t i = 1; i < size; ++i) {
    const int32_t to = (me + i) % size;
    const Extent block = outgoing(collective, me, size, to);
    if (block.count == 0) continue;
    const Lane& lane = lanes_[static_cast<size_t>(to)];
    receivers_.push_back({to, static_cast<const char*>(collective.send) + block.offset * element,
                          lane.at, lane.piece_bytes, block.count * element});
  }
}

Status Distributor::plan(const Collective& collective, uint64_t sequence,
                         const std::vector<uint64_t>& signatures) {
  const int32_t me = group_.rank();
  const int32_t size = group_.size();
  const int64_t element = dtype_bytes(collective.dtype);
  collective_ = &collective;
  sequence_ = sequence;
  sources_.clear();
  receivers_.clear();
  segments_ = given_ = taken_ = 0;
  multicast_ = is_multicast(collective.kind);
  for (int32_t i = 1; i < size; ++i) {
    const int32_t rank = (me + i) % size;
    const uint64_t signature = signatures[static_cast<size_t>(rank)];
    DT_TRY(add_source(collective, sequence, signature, rank));
    if ((signature & flag::kInlined) != 0) continue;
    segments_ = std::max(segments_, group_.peer(rank).block->details[sequence & 1].segments);
  }
  segments_ = std::max(segments_, own_segments_);
  if (own_segments_ > 0) add_receivers(collective);
  int64_t cargo_bytes = 0;
  for (const Receiver& each : receivers_) {
    cargo_bytes = multicast_ ? each.bytes : cargo_bytes + each.bytes;
  }
  stager_.begin(cargo_bytes);
  const Extent own_out = outgoing(collective, me, size, me);
  const Extent own_in = incoming(collective, me, size, me);
  own_bytes_ = std::min(own_out.count, own_in.count) * element;
  if (own_bytes_ > 0) {
    own_from_ = static_cast<const char*>(collective.send) + own_out.offset * element;
    own_to_ = static_cast<char*>(collective.recv) + own_in.offset * element;
    if (own_from_ == own_to_) own_bytes_ = 0;
  }
  own_part_ = segments_ == 0 ? own_bytes_ : whole_lines(parts(own_bytes_, segments_));
  if (segments_ == 0) take_own();
  if (shares_ || own_segments_ == 0) given_ = segments_;
  if (sources_.empty() && segments_ > 0) publish_taken();
  return {};
}

/// The next part of the own block.
void Distributor::take_own() {
  const int64_t bytes = std::min(own_part_, own_bytes_);
  if (bytes == 0) return;
  kernels::copy(own_to_, own_from_, bytes);
  own_to_ += bytes;
  own_from_ += bytes;
  own_bytes_ -= bytes;
}

bool Distributor::given(int32_t rank, int64_t segments) const {
  return group_.peer(rank).block->given.load(std::memory_order_seq_cst) >=
         base_ + static_cast<uint64_t>(segments);
}

bool Distributor::taken(int64_t segments) const {
  return std::all_of(receivers_.begin(), receivers_.end(), [&](const Receiver& each) {
    return group_.peer(each.rank).block->taken.load(std::memory_order_seq_cst) >=
           base_ + static_cast<uint64_t>(segments);
  });
}

/// Says how far all sources are done with.
void Distributor::publish_taken() {
  int64_t least = segments_;
  for (const Source& source : sources_) {
    if (source.done < parts(source.bytes, source.piece_bytes)) least = std::min(least, source.done);
  }
  if (least == taken_) return;
  taken_ = least;
  group_.own().block->taken.store(base_ + static_cast<uint64_t>(taken_), std::memory_order_seq_cst);
  group_.ring_peers();
}

/// From each source one piece of the segment that is due, if it is there.
bool Distributor::take_round() {
  bool took = false;
  for (Source& source : sources_) {
    const int64_t begin = source.done * source.piece_bytes;
    if (begin >= source.bytes) continue;
    // Not ahead of the slowest by more than a segment, so that pieces are read from the cache.
    if (source.shared != nullptr && source.done > taken_) continue;
    if (source.shared == nullptr && !given(source.rank, source.done + 1)) continue;
    const char* from =
        source.shared != nullptr
            ? source.shared + begin
            : group_.slot(source.rank, static_cast<int64_t>(base_) + source.done) + source.at;
    kernels::copy(source.target + begin, from, std::min(source.piece_bytes, source.bytes - begin));
    ++source.done;
    took = true;
  }
  if (took) publish_taken();
  return took;
}

bool Distributor::give() {
  const int64_t slots = group_.shape().slots;
  if (given_ == segments_ || (given_ >= slots && !taken(given_ - slots + 1))) return false;
  char* slot = group_.slot_to_fill(static_cast<int64_t>(base_) + given_);
  for (const Receiver& each : receivers_) {
    const int64_t begin = given_ * each.piece_bytes;
    if (begin >= each.bytes) continue;
    stager_.copy(slot + each.at, each.block + begin,
                 std::min(each.piece_bytes, each.bytes - begin));
    if (multicast_) break;  // one for all
  }
  ++given_;
  if (given_ == own_segments_) given_ = segments_;
  group_.own().block->given.store(base_ + static_cast<uint64_t>(given_), std::memory_order_seq_cst);
  group_.ring_peers();
  return true;
}

Step Distributor::advance() {
  if (segments_ > 0) {
    // What is in the cache first: slots come free soonest. The own block beside the others.
    const bool took = take_round();
    const bool gave = !took && give();
    const bool own = own_bytes_ > 0;
    take_own();
    if (took || gave || own) return Step::kProgressed;
    if (taken_ < segments_ || given_ < segments_) return Step::kBlocked;
    if (shares_ && !taken(segments_)) return Step::kBlocked;
    base_ += static_cast<uint64_t>(segments_);
    // Peers that wait for less need no ring: what they wait for was published before. Relaxed: the
    // next announcement orders it.
    group_.own().block->given.store(base_, std::memory_order_relaxed);
    group_.own().block->taken.store(base_, std::memory_order_relaxed);
    segments_ = 0;
  }
  return Step::kDone;
}

int64_t Distributor::progress(int32_t rank, Counter counter) const {
  const uint64_t now = (group_.peer(rank).block->*counter).load(std::memory_order_seq_cst);
  return static_cast<int64_t>(now - base_);
}

/// Must `from` put another segment for `to` into its ring, when `to` has taken so many?
bool Distributor::owes(int32_t from, int32_t to, int64_t segments) const {
  const uint64_t signature = group_.peer(from).block->heads[sequence_ & 1].signature;
  if (from == to || (signature & (flag::kInlined | flag::kSendShared)) != 0) return false;
  const Lane lane = lane_of(*collective_, sequence_, signature, from, to);
  return segments * lane.piece_bytes < lane.count * dtype_bytes(collective_->dtype);
}

/// The members whose slowness keeps `giver` from filling its next slot. False: there are none.
bool Distributor::collect_takers(int32_t giver, std::vector<int32_t>* takers) const {
  const int64_t freed = progress(giver, &Block::given) - group_.shape().slots + 1;
  bool any = false;
  for (int32_t rank = 0; rank < group_.size(); ++rank) {
    if (progress(rank, &Block::taken) >= freed || !owes(giver, rank, 0)) continue;
    any = true;
    add_once(takers, rank);
  }
  return any;
}

/// The members that have not given what `taker` takes next. False: there are none.
bool Distributor::collect_givers(int32_t taker, std::vector<int32_t>* givers) const {
  const int64_t taken = progress(taker, &Block::taken);
  bool any = false;
  for (int32_t rank = 0; rank < group_.size(); ++rank) {
    if (progress(rank, &Block::given) > taken || !owes(rank, taker, taken)) continue;
    any = true;
    add_once(givers, rank);
  }
  return any;
}

/// A member that this one waits for may wait itself: for receivers that free no slot, or for
/// sources that give nothing. This follows these waits to the members that wait for nobody. Each
/// member is looked at once as a giver and once as a taker, so the search ends. It finds somebody
/// where nothing moves: a taker waits for givers that have given no more than it has taken, and a
/// giver for takers that have taken less than it has given, so no chain of waits is a circle.
///
/// Memory order: heads and lanes were complete when their members announced, which this one has
/// seen, and no member overwrites them before this one announces again. Counters are read while
/// their owners move. They only grow, so an old value can name a member that has moved on since,
/// but hides none that stands still.
std::vector<int32_t> Distributor::awaited() const {
  const int32_t me = group_.rank();
  std::vector<int32_t> givers;
  std::vector<int32_t> takers;
  for (const Source& source : sources_) {
    const bool all = source.done >= parts(source.bytes, source.piece_bytes);
    if (!all && source.shared == nullptr && !given(source.rank, source.done + 1)) {
      givers.push_back(source.rank);
    }
  }
  if (givers.empty()) {
    const int64_t wanted = given_ < segments_ ? given_ - group_.shape().slots + 1 : segments_;
    for (const Receiver& each : receivers_) {
      if (progress(each.rank, &Block::taken) < wanted) takers.push_back(each.rank);
    }
  }
  std::vector<int32_t> late;
  for (size_t g = 0, t = 0; g < givers.size() || t < takers.size();) {
    const bool gives = g < givers.size();
    const int32_t rank = gives ? givers[g++] : takers[t++];
    const bool waits = gives ? collect_takers(rank, &takers) : collect_givers(rank, &givers);
    if (!waits && rank != me) add_once(&late, rank);
  }
  std::sort(late.begin(), late.end());
  return late;
}

}  // namespace dt::collective
