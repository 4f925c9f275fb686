// SPDX-License-Identifier: Apache-2.0
#include "collective/mover.h"

#include <algorithm>
#include <utility>

#include "collective/descriptor.h"

namespace dt::collective {
namespace {

kernels::Reduction reduction_of(const Collective& collective, int32_t members) {
  return {collective.dtype, collective.op, collective.divisor > 0 ? collective.divisor : members,
          collective.custom};
}

}  // namespace

Mover::Mover(Group& group)
    : group_(group),
      stager_(group.options().staging),
      sources_(group.size()),
      scratch_(group.size()) {
  for (int32_t rank = 0; rank < group.size(); ++rank) {
    if (rank != group.rank()) others_.push_back(rank);
  }
}

void Mover::begin(const Collective& collective, uint64_t signature) {
  if ((signature & flag::kSendShared) != 0) return;
  collective_ = &collective;
  element_bytes_ = collective.element_bytes();
  last_segments_ = segments_;
  cut();
  begun_ = is_read();
  fill_ahead();
}

bool Mover::fill_ahead() {
  if (!begun_ || ahead_ == std::min(segments_, group_.shape().slots)) return false;
  // All have completed the operation before the last one, so they read nothing that is older. Where
  // that says enough, nobody's counter is looked at.
  const int64_t before = ahead_ - group_.shape().slots;
  if (before >= -last_segments_ && !reached(others_, &Block::consumed, before + 1)) return false;
  fill(ahead_);
  publish(&Block::filled, ++ahead_);
  return true;
}

void Mover::drop() {
  begun_ = false;
  segments_ = 0;  // all have announced it, so nobody reads any slot
  if (std::exchange(ahead_, 0) != 0) group_.own().block->filled.store(base_);
}

/// What follows from the operation alone.
void Mover::cut() {
  const Kind kind = collective_->kind;
  const bool sums_whole = kind == Kind::kAllreduce || kind == Kind::kReduce;
  const Thresholds& thresholds = group_.shape().thresholds;
  way_ = sums_whole && !thresholds.exchanges(group_.size()) ? Way::kTwoPhase : Way::kExchange;
  relays_data_ = crosses_nodes();
  const int64_t pieces = kind == Kind::kReduceScatter ? group_.size()
                         : relays_data_ && kind == Kind::kAllgather
                             ? 1 + group_.levels().most_duties()
                             : 1;
  const int64_t piece_max = group_.shape().slot_bytes / pieces / kLineBytes * kLineBytes;
  piece_bytes_ = thresholds.segment(collective_->count * element_bytes_, piece_max);
  // A caller's element may be larger than that, but not than a slot.
  if (piece_bytes_ < element_bytes_) piece_bytes_ = piece_max;
  segment_elements_ = piece_bytes_ / element_bytes_;
  segments_ = (collective_->count + segment_elements_ - 1) / segment_elements_;
  stager_.begin(collective_->count * element_bytes_);
}

Status Mover::plan(const Collective& collective, const std::vector<uint64_t>& signatures,
                   const std::vector<const Detail*>& details) {
  collective_ = &collective;
  element_bytes_ = collective.element_bytes();
  begun_ = false;
  filled_ = ahead_;
  reduced_ = consumed_ = relayed_ = 0;
  fillers_.clear();
  readers_.clear();
  uint64_t all = ~uint64_t{0};
  for (const uint64_t signature : signatures) all &= signature;
  const bool sends_shared = (all & flag::kSendShared) != 0;
  const bool push =
      sends_shared && ((collective.kind == Kind::kAllreduce && (all & flag::kRecvShared) != 0) ||
                       (collective.kind == Kind::kReduce &&
                        (signatures[collective.root] & flag::kRecvShared) != 0));
  return push ? plan_push(signatures, details) : plan_pull(signatures, details);
}

Status Mover::plan_push(const std::vector<uint64_t>& signatures,
                        const std::vector<const Detail*>& details) {
  way_ = Way::kPush;
  segments_ = 1;
  const bool everywhere = collective_->kind == Kind::kAllreduce;
  const int32_t me = group_.rank();
  const bool in_place = std::any_of(signatures.begin(), signatures.end(), [](uint64_t signature) {
    return (signature & flag::kInPlace) != 0;
  });
  targets_.clear();
  if (everywhere || me == collective_->root)
    targets_.push_back(static_cast<char*>(collective_->recv));
  for (int32_t rank = 0; rank < group_.size(); ++rank) {
    if (rank == me) {
      sources_[rank].shared = static_cast<const char*>(collective_->send);
      continue;
    }
    DT_TRY_VALUE(sources_[rank].shared, group_.resolve(rank, details[rank]->send));
    if (!everywhere && rank != collective_->root) continue;
    DT_TRY_VALUE(char* target, group_.resolve(rank, details[rank]->recv));
    targets_.push_back(target);
  }
  // What is summed in place is in the cache already.
  const auto members = static_cast<int64_t>(targets_.size()) + group_.size();
  const bool large =
      group_.shape().thresholds.streams(collective_->count * element_bytes_, members);
  stores_ = large && !in_place ? kernels::Stores::kStreaming : kernels::Stores::kTemporal;
  push_targets_.resize(targets_.size());
  const Span mine = part(me, collective_->count);
  next_ = mine.begin;
  end_ = mine.begin + mine.count;
  return {};
}

Status Mover::plan_pull(const std::vector<uint64_t>& signatures,
                        const std::vector<const Detail*>& details) {
  const Kind kind = collective_->kind;
  const int32_t me = group_.rank();
  const int32_t root = collective_->root;
  const bool rooted = kind == Kind::kBroadcast;
  const Thresholds& thresholds = group_.shape().thresholds;
  cut();
  // As in a push. Who sends and receives in one buffer has its lines in the cache.
  const int64_t results = kind == Kind::kAllgather ? group_.size() : 1;
  const bool large =
      thresholds.streams(collective_->count * element_bytes_ * results, 2 * group_.size());
  stores_ = large && (signatures[me] & flag::kInPlace) == 0 ? kernels::Stores::kStreaming
                                                            : kernels::Stores::kTemporal;

  shares_ = false;
  for (int32_t rank = 0; rank < group_.size(); ++rank) {
    sources_[rank].shared = nullptr;
    if (rooted && rank != root) continue;
    // In an exchange, a member that works in place overwrites what slower members still read.
    const bool safe = !(kind == Kind::kAllreduce && way_ == Way::kExchange &&
                        (signatures[rank] & flag::kInPlace) != 0);
    const bool shared = (signatures[rank] & flag::kSendShared) != 0 && safe;
    if (rank == me) {
      sources_[me].shared = static_cast<const char*>(collective_->send);
      shares_ = shared;
    } else if (shared) {
      DT_TRY_VALUE(sources_[rank].shared, group_.resolve(rank, details[rank]->send));
    } else {
      fillers_.push_back(rank);
    }
  }
  const bool only_root_reads = kind == Kind::kReduce && way_ == Way::kExchange;
  for (const int32_t rank : others_) {
    if (rooted ? me == root : !only_root_reads || rank == root) readers_.push_back(rank);
  }
  const bool reads = rooted || !only_root_reads || me == root;
  if ((shares_ || !is_read()) && way_ == Way::kExchange) filled_ = segments_;
  if (!reads) consumed_ = segments_;
  plan_relay();
  // Nobody waits for these; they keep awaited() from blaming this member.
  Block& own = *group_.own().block;
  if (filled_ != ahead_) own.filled.store(base_ + static_cast<uint64_t>(filled_));
  if (consumed_ != 0) own.consumed.store(base_ + static_cast<uint64_t>(consumed_));
  if (relayed_ != 0 && group_.levels().two())
    own.relayed.store(base_ + static_cast<uint64_t>(relayed_));
  return {};
}

Step Mover::advance() { return way_ == Way::kPush ? advance_push() : advance_pull(); }

Step Mover::advance_push() {
  if (consumed_ == 0) {
    const int64_t at_once =
        std::max<int64_t>(1, group_.shape().thresholds.push_bytes / element_bytes_);
    const int64_t count = std::min(at_once, end_ - next_);
    const int64_t offset = next_ * element_bytes_;
    for (int32_t rank = 0; rank < group_.size(); ++rank) {
      scratch_[rank] = sources_[rank].shared + offset;
    }
    for (size_t target = 0; target < targets_.size(); ++target) {
      push_targets_[target] = targets_[target] + offset;
    }
    kernels::reduce_to_all(
        reduction_of(*collective_, group_.size()),
        {push_targets_.data(), static_cast<int32_t>(push_targets_.size()), stores_},
        scratch_.data(), group_.size(), count);
    next_ += count;
    if (next_ < end_) return Step::kProgressed;
    publish(&Block::consumed, consumed_ = 1);
  }
  return reached(others_, &Block::consumed, 1) ? finish() : Step::kBlocked;
}

Step Mover::advance_pull() {
  const bool two_phase = way_ == Way::kTwoPhase;
  const int64_t slots = group_.shape().slots;
  const std::vector<int32_t>& sources =
      relays_data_ ? awaited_sources_ : (two_phase ? others_ : fillers_);
  // Latest stage first: what is in the cache is used, and slots come free soonest.
  // The own fill comes before the own result, which may overwrite the send buffer.
  if (consumed_ < segments_ && (two_phase ? reduced_ : filled_) > consumed_ &&
      relayed_ > consumed_ &&
      reached(sources, two_phase ? &Block::reduced : &Block::filled, consumed_ + 1) &&
      reached(relays_, &Block::relayed, consumed_ + 1)) {
    consume(consumed_);
    publish(&Block::consumed, ++consumed_);
    return Step::kProgressed;
  }
  if (can_relay()) {
    relay(relayed_);
    publish(&Block::relayed, ++relayed_);
    return Step::kProgressed;
  }
  if (two_phase && reduced_ < segments_ && filled_ > reduced_ &&
      reached(fillers_, &Block::filled, reduced_ + 1)) {
    reduce_part(reduced_);
    publish(&Block::reduced, ++reduced_);
    return Step::kProgressed;
  }
  // This member reads its own slots too.
  if (filled_ < segments_ && filled_ - slots < consumed_ &&
      (filled_ < slots || reached(readers_, &Block::consumed, filled_ - slots + 1))) {
    if (!shares_) fill(filled_);
    publish(&Block::filled, ++filled_);
    return Step::kProgressed;
  }
  if (consumed_ < segments_ || filled_ < segments_) return Step::kBlocked;
  if (shares_ && !reached(readers_, &Block::consumed, segments_)) return Step::kBlocked;
  return finish();
}

void Mover::fill(int64_t segment) {
  const Span range = span(segment);
  const auto* send = static_cast<const char*>(collective_->send);
  char* target = group_.slot_to_fill(static_cast<int64_t>(base_) + segment);
  if (collective_->kind == Kind::kReduceScatter) {
    for (const int32_t rank : others_) {
      stager_.copy(target + rank * piece_bytes_,
                   send + (rank * collective_->count + range.begin) * element_bytes_,
                   range.count * element_bytes_);
    }
    return;
  }
  if (way_ != Way::kTwoPhase) {
    stager_.copy(target, send + range.begin * element_bytes_, range.count * element_bytes_);
    return;
  }
  // The own part is summed straight from the send buffer.
  const Span own = part(group_.rank(), range.count);
  const int64_t after = own.begin + own.count;
  const char* begin = send + range.begin * element_bytes_;
  stager_.copy(target, begin, own.begin * element_bytes_);
  stager_.copy(target + after * element_bytes_, begin + after * element_bytes_,
               (range.count - after) * element_bytes_);
}

void Mover::reduce_part(int64_t segment) {
  const Span own = part(group_.rank(), span(segment).count);
  const int64_t offset = own.begin * element_bytes_;
  for (int32_t rank = 0; rank < group_.size(); ++rank) {
    scratch_[rank] = source(rank, segment, 0) + offset;
  }
  char* sum = slot(group_.rank(), segment) + offset;
  kernels::reduce(reduction_of(*collective_, group_.size()), sum, scratch_.data(), group_.size(),
                  own.count);
  if (!gets_result()) return;
  // While it is in the nearest cache. Of its send buffer nobody else reads this part.
  kernels::copy(
      static_cast<char*>(collective_->recv) + span(segment).begin * element_bytes_ + offset, sum,
      own.count * element_bytes_, stores_);
}

void Mover::consume(int64_t segment) {
  const Span range = span(segment);
  auto* recv = static_cast<char*>(collective_->recv);
  const int32_t root = collective_->root;
  switch (collective_->kind) {
    case Kind::kBroadcast: {
      char* target = recv + range.begin * element_bytes_;
      const char* from = held(root, segment);
      if (target != from) kernels::copy(target, from, range.count * element_bytes_, stores_);
      return;
    }
    case Kind::kAllgather:
      for (int32_t rank = 0; rank < group_.size(); ++rank) {
        char* target = recv + (rank * collective_->count + range.begin) * element_bytes_;
        const char* from = held(rank, segment);
        if (target != from) kernels::copy(target, from, range.count * element_bytes_, stores_);
      }
      return;
    case Kind::kReduceScatter: reduce_all(segment); return;
    default: break;
  }
  if (way_ == Way::kExchange) {
    reduce_all(segment);
    return;
  }
  if (!gets_result()) return;
  for (const int32_t rank : others_) {
    const Span piece = part(rank, range.count);
    const int32_t holder = relays_data_ ? group_.levels().via(rank) : rank;
    kernels::copy(recv + (range.begin + piece.begin) * element_bytes_,
                  slot(holder, segment) + piece.begin * element_bytes_,
                  piece.count * element_bytes_, stores_);
  }
}

bool Mover::is_read() const {
  if (others_.empty()) return false;
  const bool is_root = group_.rank() == collective_->root;
  if (collective_->kind == Kind::kBroadcast) return is_root;
  return collective_->kind != Kind::kReduce || way_ == Way::kTwoPhase || !is_root;
}

bool Mover::gets_result() const {
  return collective_->kind != Kind::kReduce || group_.rank() == collective_->root;
}

void Mover::reduce_all(int64_t segment) {
  const Span range = span(segment);
  for (int32_t rank = 0; rank < group_.size(); ++rank) {
    scratch_[rank] = source(rank, segment, group_.rank());
  }
  void* target = static_cast<char*>(collective_->recv) + range.begin * element_bytes_;
  kernels::reduce_to_all(reduction_of(*collective_, group_.size()), {&target, 1, stores_},
                         scratch_.data(), group_.size(), range.count);
}

Mover::Span Mover::span(int64_t segment) const {
  const int64_t begin = segment * segment_elements_;
  return {begin, std::min(segment_elements_, collective_->count - begin)};
}

Mover::Span Mover::part(int32_t rank, int64_t count) const {
  const int64_t line = std::max<int64_t>(1, kLineBytes / element_bytes_);
  const int64_t lines = (count + line - 1) / line;
  const int64_t each = (lines + group_.size() - 1) / group_.size() * line;
  const int64_t begin = std::min(rank * each, count);
  return {begin, std::min(each, count - begin)};
}

const char* Mover::source(int32_t rank, int64_t segment, int32_t piece) const {
  const bool scatter = collective_->kind == Kind::kReduceScatter;
  if (sources_[rank].shared == nullptr) {
    return slot(rank, segment) + (scatter ? piece * piece_bytes_ : 0);
  }
  const int64_t first = (scatter ? piece * collective_->count : 0) + segment * segment_elements_;
  return sources_[rank].shared + first * element_bytes_;
}

char* Mover::slot(int32_t rank, int64_t segment) const {
  // Going on where the operation before ended: the peer no longer has these lines in its cache, so
  // that writing them does not wait for it (measured at 64 KiB: 5.4 us against 9.4).
  return group_.slot(rank, static_cast<int64_t>(base_) + segment);
}

bool Mover::reached(int32_t rank, Counter counter, int64_t segments) const {
  const uint64_t wanted = base_ + static_cast<uint64_t>(segments);
  return (group_.peer(rank).block->*counter).load(std::memory_order_seq_cst) >= wanted;
}

bool Mover::reached(const std::vector<int32_t>& ranks, Counter counter, int64_t segments) const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](int32_t rank) { return reached(rank, counter, segments); });
}

void Mover::publish(Counter counter, int64_t segments) {
  (group_.own().block->*counter)
      .store(base_ + static_cast<uint64_t>(segments), std::memory_order_seq_cst);
  group_.ring_peers();
}

Step Mover::finish() {
  base_ += static_cast<uint64_t>(segments_);
  ahead_ = 0;
  // Peers that wait for less than this in the operation that ends here need no ring for it: what
  // they wait for was published before. Relaxed: the next announcement orders it.
  // A counter that stands there already is left alone: the line would have to come back first.
  Block& own = *group_.own().block;
  if (filled_ != segments_) own.filled.store(base_, std::memory_order_relaxed);
  if (reduced_ != segments_) own.reduced.store(base_, std::memory_order_relaxed);
  if (consumed_ != segments_) own.consumed.store(base_, std::memory_order_relaxed);
  if (relayed_ != segments_ && group_.levels().two())
    own.relayed.store(base_, std::memory_order_relaxed);
  return Step::kDone;
}

std::vector<int32_t> Mover::awaited() const {
  std::vector<int32_t> late;
  const auto collect = [&](const std::vector<int32_t>& ranks, Counter counter, int64_t segments) {
    for (const int32_t rank : ranks) {
      if (!reached(rank, counter, segments) &&
          std::find(late.begin(), late.end(), rank) == late.end()) {
        late.push_back(rank);
      }
    }
  };
  if (way_ == Way::kPush) {
    collect(others_, &Block::consumed, 1);
  } else if (consumed_ < segments_) {
    if (way_ == Way::kTwoPhase && reduced_ > consumed_) {
      collect(others_, &Block::reduced, consumed_ + 1);
    }
    const int64_t segment = std::max(consumed_, reduced_);
    if (!collect_slow(segment, &late)) collect(fillers_, &Block::filled, segment + 1);
    collect_relays(&late);
  }
  if (late.empty()) collect(readers_, &Block::consumed, segments_);
  // Some of these may wait for others themselves: name those that are furthest behind.
  uint64_t least = UINT64_MAX;
  const auto sum = [&](int32_t rank) {
    const Block& block = *group_.peer(rank).block;
    return block.filled.load() + block.reduced.load() + block.relayed.load() +
           block.consumed.load();
  };
  for (const int32_t rank : late) least = std::min(least, sum(rank));
  std::erase_if(late, [&](int32_t rank) { return sum(rank) > least; });
  std::sort(late.begin(), late.end());
  return late;
}

}  // namespace dt::collective
