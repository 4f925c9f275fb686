// SPDX-License-Identifier: Apache-2.0
// What a member of one NUMA node brings from other nodes to the others of its own: see Levels.
#include <algorithm>

#include "collective/levels.h"
#include "collective/mover.h"

namespace dt::collective {

bool Mover::crosses_nodes() const {
  if (!group_.levels().two()) return false;
  const Kind kind = collective_->kind;
  return kind == Kind::kBroadcast || kind == Kind::kAllgather ||
         (kind == Kind::kAllreduce && way_ == Way::kTwoPhase);
}

void Mover::plan_relay() {
  duties_.clear();
  relays_.clear();
  relayed_ = segments_;
  if (!relays_data_) return;
  awaited_sources_ = way_ == Way::kTwoPhase ? others_ : fillers_;
  const Levels& levels = group_.levels();
  const bool rooted = collective_->kind == Kind::kBroadcast;
  for (int32_t source = 0; source < group_.size(); ++source) {
    const int32_t via = levels.via(source);
    if (via == source || (rooted && source != collective_->root)) continue;
    std::erase(awaited_sources_, source);
    if (via == group_.rank()) {
      duties_.push_back(source);
    } else if (std::find(relays_.begin(), relays_.end(), via) == relays_.end()) {
      relays_.push_back(via);
    }
  }
  if (duties_.empty()) return;
  relayed_ = 0;
  if (rooted) readers_ = levels.neighbours();
}

/// Is what `source` has for all where a relay can read it?
bool Mover::offers(int32_t source, int64_t segments) const {
  if (way_ == Way::kTwoPhase) return reached(source, &Block::reduced, segments);
  return sources_[source].shared != nullptr || reached(source, &Block::filled, segments);
}

bool Mover::can_relay() const {
  const int64_t slots = group_.shape().slots;
  if (relayed_ >= segments_) return false;
  // Two-phase: over what this member had put there for the source, which has summed it.
  const bool has_slot =
      way_ == Way::kTwoPhase
          ? filled_ > relayed_
          : relayed_ - slots < consumed_ &&
                (relayed_ < slots || reached(readers_, &Block::consumed, relayed_ - slots + 1));
  return has_slot && std::all_of(duties_.begin(), duties_.end(),
                                 [&](int32_t source) { return offers(source, relayed_ + 1); });
}

void Mover::relay(int64_t segment) {
  const int64_t count = span(segment).count;
  char* const own = slot(group_.rank(), segment);
  for (const int32_t source : duties_) {
    if (way_ == Way::kTwoPhase) {
      const Span piece = part(source, count);
      const int64_t offset = piece.begin * element_bytes_;
      kernels::copy(own + offset, slot(source, segment) + offset, piece.count * element_bytes_);
    } else {
      kernels::copy(own + lane_offset(source), this->source(source, segment, 0),
                    count * element_bytes_);
    }
  }
}

int64_t Mover::lane_offset(int32_t source) const {
  // Of an allgather the own contribution comes first.
  return collective_->kind == Kind::kAllgather ? (1 + group_.levels().lane(source)) * piece_bytes_
                                               : 0;
}

const char* Mover::held(int32_t source, int64_t segment) const {
  const int32_t via = relays_data_ ? group_.levels().via(source) : source;
  if (via == source) return this->source(source, segment, 0);
  return slot(via, segment) + lane_offset(source);
}

void Mover::collect_relays(std::vector<int32_t>* late) const {
  const bool rooted = collective_->kind == Kind::kBroadcast;
  for (const int32_t relay : relays_) {
    if (reached(relay, &Block::relayed, consumed_ + 1)) continue;
    // Those it waits for are late, not it.
    const std::vector<int32_t>& duties = group_.levels().duties(relay);
    const bool waits = std::any_of(duties.begin(), duties.end(), [&](int32_t source) {
      return (!rooted || source == collective_->root) && !offers(source, consumed_ + 1);
    });
    if (!waits && !collect_slow(consumed_, late) &&
        std::find(late->begin(), late->end(), relay) == late->end()) {
      late->push_back(relay);
    }
  }
}

/// Who reads so slowly that no member has a slot for this segment. False: nobody.
bool Mover::collect_slow(int64_t segment, std::vector<int32_t>* late) const {
  const int64_t slots = group_.shape().slots;
  if (segment < slots) return false;
  bool any = false;
  for (const int32_t rank : others_) {
    if (reached(rank, &Block::consumed, segment - slots + 1)) continue;
    any = true;
    if (std::find(late->begin(), late->end(), rank) == late->end()) late->push_back(rank);
  }
  return any;
}

}  // namespace dt::collective
