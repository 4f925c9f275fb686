// SPDX-License-Identifier: Apache-2.0
#include "collective/channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/host/reduce.h"

namespace dt::collective {
namespace {

bool overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  const auto first = reinterpret_cast<uintptr_t>(a);
  const auto second = reinterpret_cast<uintptr_t>(b);
  return first < second + static_cast<uintptr_t>(b_bytes) &&
         second < first + static_cast<uintptr_t>(a_bytes);
}

/// Of more data, which is written one line after the other, the processor asks for lines by itself
/// (measured: up to here 20 ns less, at 1 KiB 30 ns more).
constexpr int64_t kClaimedBytes = 512;

/// Asks for a line of memory to be written soon: the processor takes it from the others meanwhile.
void prefetch_for_writing(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw (%0)" : : "r"(line));  // gcc's own would be one for reading
#else
  __builtin_prefetch(line, 1);
#endif
}

}  // namespace

Channel::Channel(Group& group)
    : group_(group),
      mover_(group),
      distributor_(group),
      signatures_(group.size()),
      details_(group.size()),
      sources_(group.size()) {}

void Channel::start(const Collective& collective) {
  collective_ = &collective;
  ++sequence_;
  arrived_ = 0;
  moving_ = false;
  Block& own = *group_.own().block;
  Head& head = own.heads[sequence_ & 1];
  Detail& rest = own.details[sequence_ & 1];
  signature_ = signature_of(collective);
  const bool distributed = std::exchange(distributes_, moves_blocks(collective.kind));
  const int64_t elements = contribution(collective, group_.size());
  const int64_t bytes = elements * collective.element_bytes();
  inline_bytes_ = bytes <= group_.shape().inline_bytes ? bytes : -1;
  if (!collective.name.empty()) {
    put_text(rest.name, collective.name);
    signature_ |= flag::kNamed;
  }
  if (collective.withheld) {
    put_text(rest.withheld, *collective.withheld);
    signature_ |= flag::kWithheld;
  }
  // The head is written last and in one go: a peer may be polling it, and takes it back between two
  // stores that are far apart.
  if (distributes_) {
    signature_ |= distributor_.announce(collective, sequence_, &head, &rest);
  } else if (collective.withheld) {
    // Nothing to say of its data.
  } else if (inline_bytes_ >= 0) {
    announce_inline(collective, head);
  } else {
    signature_ |= announce_places(collective, rest);
  }
  if (!distributes_) head.count = collective.count;
  head.signature = signature_;
  head.sequence.store(sequence_, std::memory_order_seq_cst);
  group_.ring_peers();
  // While the announcements are on their way. Of blocks others may still read the ring.
  if (!distributes_ && !distributed && !collective.withheld && inline_bytes_ < 0) {
    mover_.begin(collective, signature_);
  }
}

void Channel::announce_inline(const Collective& collective, Head& head) {
  if (inline_bytes_ == 0) return;
  // What nobody reads is not copied.
  if (collective.kind == Kind::kBroadcast && group_.rank() != collective.root) return;
  if (collective.kind == Kind::kReduce && group_.rank() == collective.root) return;
  if (inline_bytes_ <= Head::kDataBytes) {
    memcpy(head.data, collective.send, static_cast<size_t>(inline_bytes_));
  } else {
    memcpy(group_.inline_area(group_.rank(), sequence_), collective.send,
           static_cast<size_t>(inline_bytes_));
  }
}

uint64_t Channel::announce_places(const Collective& collective, Detail& rest) const {
  const int64_t element = collective.element_bytes();
  const int64_t in_bytes = contribution(collective, group_.size()) * element;
  const int64_t out_elements =
      collective.kind == Kind::kAllgather ? collective.count * group_.size() : collective.count;
  uint64_t flags = 0;
  shm::Location at;
  if (group_.arena().locate(collective.send, in_bytes, &at)) {
    rest.send = {at.offset, at.allocation_offset, at.allocation_bytes};
    flags |= flag::kSendShared;
  }
  if (group_.arena().locate(collective.recv, out_elements * element, &at)) {
    rest.recv = {at.offset, at.allocation_offset, at.allocation_bytes};
    flags |= flag::kRecvShared;
  }
  if (overlap(collective.send, in_bytes, collective.recv, out_elements * element)) {
    flags |= flag::kInPlace;
  }
  return flags;
}

Step Channel::advance() {
  const Step step = moving_ ? move() : meet();
  if (step == Step::kDone) {
    group_.drop_views();
    claim_next();
  }
  return step;
}

void Channel::claim_next() const {
  // The last operation that was announced there is over, so no peer looks at it before the next
  // one.
  const uint64_t next = sequence_ + 1;
  const auto* head = reinterpret_cast<const char*>(&group_.own().block->heads[next & 1]);
  prefetch_for_writing(head);
  if (inline_bytes_ <= Head::kFirstBytes) return;
  if (inline_bytes_ <= Head::kDataBytes) return prefetch_for_writing(head + kLineBytes);
  if (inline_bytes_ > kClaimedBytes) return;
  const char* data = group_.inline_area(group_.rank(), next);
  for (int64_t at = 0; at < inline_bytes_; at += kLineBytes) prefetch_for_writing(data + at);
}

Step Channel::move() { return distributes_ ? distributor_.advance() : mover_.advance(); }

Step Channel::meet() {
  for (; arrived_ < group_.size(); ++arrived_) {
    // The own line may have gone to a peer together with the right to write it: not read again.
    if (arrived_ == group_.rank()) continue;
    if (head(arrived_).sequence.load(std::memory_order_seq_cst) != sequence_) {
      return mover_.fill_ahead() ? Step::kProgressed : Step::kBlocked;
    }
  }
  return match();
}

Step Channel::match() {
  uint64_t differing = 0;
  uint64_t flags = signature_;
  bool counts_differ = false;
  signatures_[group_.rank()] = signature_;
  for (int32_t rank = 0; rank < group_.size(); ++rank) {
    if (rank == group_.rank()) continue;
    const Head& announced = head(rank);
    signatures_[rank] = announced.signature;
    differing |= announced.signature ^ signature_;
    flags |= announced.signature;
    counts_differ |= announced.count != collective_->count;
  }
  if (is_irregular(collective_->kind)) {
    counts_differ = distributor_.unbalanced(*collective_, sequence_);
  }
  if ((differing & ~flag::kAll) != 0 || counts_differ || (flags & flag::kWithheld) != 0) {
    result_ = disagreement();
    mover_.drop();
    return Step::kDone;
  }
  result_ = Status();
  group_.hold_views();
  if (distributes_) {
    result_ = distributor_.plan(*collective_, sequence_, signatures_);
    if (!result_.ok()) return Step::kDone;
    moving_ = true;
    return move();
  }
  if (inline_bytes_ >= 0) {
    finish_inline();
    return Step::kDone;
  }
  for (int32_t rank = 0; rank < group_.size(); ++rank) details_[rank] = &detail(rank);
  result_ = mover_.plan(*collective_, signatures_, details_);
  if (!result_.ok()) return Step::kDone;
  moving_ = true;
  return move();
}

Status Channel::disagreement() const {
  std::vector<Announced> announced(group_.size());
  bool differ = false;
  const bool irregular = is_irregular(collective_->kind);
  for (int32_t rank = 0; rank < group_.size(); ++rank) {
    Announced& one = announced[rank];
    one.signature = head(rank).signature;
    // Of an irregular one that word is no count.
    one.count = is_irregular(static_cast<Kind>(one.signature & 0xff)) ? 0 : head(rank).count;
    if ((one.signature & flag::kNamed) != 0) one.name = get_text(detail(rank).name);
    if ((one.signature & flag::kWithheld) != 0) one.withheld = get_text(detail(rank).withheld);
    differ |= ((one.signature ^ signature_) & ~flag::kAll) != 0 ||
              (!irregular && one.count != collective_->count);
  }
  if (!differ && distributor_.unbalanced(*collective_, sequence_)) {
    return distributor_.mismatch(*collective_, sequence_);
  }
  return differ ? mismatch(group_, *collective_, sequence(), announced)
                : nothing_to_give(group_, *collective_, sequence(), announced);
}

const char* Channel::inline_data(int32_t rank) const {
  if (rank == group_.rank()) return static_cast<const char*>(collective_->send);
  return inline_bytes_ <= Head::kDataBytes ? head(rank).data : group_.inline_area(rank, sequence_);
}

void Channel::finish_inline() {
  if (inline_bytes_ == 0) return;
  auto* recv = static_cast<char*>(collective_->recv);
  const int64_t bytes = collective_->count * collective_->element_bytes();
  const auto copy_from = [&](int32_t rank, char* target) {
    const char* from = inline_data(rank);
    if (from != target) memmove(target, from, static_cast<size_t>(bytes));
  };
  int64_t piece = 0;
  switch (collective_->kind) {
    case Kind::kBroadcast: copy_from(collective_->root, recv); return;
    case Kind::kAllgather:
      for (int32_t rank = 0; rank < group_.size(); ++rank) copy_from(rank, recv + rank * bytes);
      return;
    case Kind::kReduce:
      if (group_.rank() != collective_->root) return;
      break;
    case Kind::kReduceScatter: piece = group_.rank() * bytes; break;
    default: break;
  }
  for (int32_t rank = 0; rank < group_.size(); ++rank) sources_[rank] = inline_data(rank) + piece;
  const kernels::Reduction reduction{
      collective_->dtype, collective_->op,
      collective_->divisor > 0 ? collective_->divisor : group_.size(), collective_->custom};
  kernels::reduce(reduction, recv, sources_.data(), group_.size(), collective_->count);
}

std::vector<int32_t> Channel::awaited() const {
  if (moving_) return distributes_ ? distributor_.awaited() : mover_.awaited();
  std::vector<int32_t> missing;
  for (int32_t rank = 0; rank < group_.size(); ++rank) {
    if (head(rank).sequence.load(std::memory_order_seq_cst) != sequence_) missing.push_back(rank);
  }
  return missing;
}

Status Channel::left_behind(int32_t rank) const {
  return collective::left_behind(group_, *collective_, sequence(), rank);
}

Status Channel::timed_out() const {
  return collective::timed_out(group_, *collective_, sequence(), awaited(),
                               moving_ ? "has not finished" : "has not arrived");
}

}  // namespace dt::collective
