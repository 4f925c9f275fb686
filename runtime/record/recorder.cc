// SPDX-License-Identifier: Apache-2.0
#include "record/recorder.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <map>

#include "base/dtype.h"

namespace dt::record {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 58;  // a reader of traces takes up to 2^61 bytes
constexpr int kReadTries = 8;                        // of a slot that changes meanwhile

/// The uppermost byte: whether there is a label, then the size class.
uint64_t packed(const Track& track, const Call& call, bool labelled) {
  return uint64_t{track.id()} | uint64_t{call.kind} << 32 | uint64_t{call.dtype} << 40 |
         uint64_t{call.op} << 48 | uint64_t{labelled} << 56 | uint64_t{track.size_class()} << 57;
}

}  // namespace

Track::Track(uint32_t id, CommunicatorRecord record, uint8_t size_class)
    : id_(id),
      record_(std::move(record)),
      size_class_(size_class),
      transfers_(new std::atomic<int64_t>[2 * record_.world_ranks.size()]()) {}

CommunicatorRecord Track::record() const {
  CommunicatorRecord now = record_;
  now.issued = issued_.load(std::memory_order_relaxed);
  now.ended = ended();
  return now;
}

std::shared_ptr<Recorder> Recorder::create(int64_t entries, std::shared_ptr<Meter> meter) {
  if (entries <= 0) return nullptr;
  const size_t wanted = std::min(static_cast<size_t>(entries), kMaxEntries);
  return std::shared_ptr<Recorder>(new Recorder(std::bit_ceil(wanted), std::move(meter)));
}

Recorder::Recorder(size_t entries, std::shared_ptr<Meter> meter)
    : began_(clock_.now()),
      mask_(entries - 1),
      slots_(new Slot[entries]()),
      meter_(std::move(meter)),
      patience_(2 * entries) {}

std::shared_ptr<Track> Recorder::open(CommunicatorRecord record) {
  const uint8_t size_class =
      meter_ == nullptr ? 0 : meter_->size_class(static_cast<int32_t>(record.world_ranks.size()));
  return tracks_.with([&](Tracks& tracks) {
    const auto ended = [](const auto& each) { return each->ended(); };
    if (std::count_if(tracks.known.begin(), tracks.known.end(), ended) >=
        static_cast<ptrdiff_t>(kEndedKept)) {
      tracks.known.erase(std::find_if(tracks.known.begin(), tracks.known.end(), ended));
    }
    tracks.known.push_back(
        std::make_shared<Track>(++tracks.last_id, std::move(record), size_class));
    return tracks.known.back();
  });
}

Slot* Recorder::begin(Track& track, const Call& call) {
  constexpr auto kRelease = std::memory_order_release;
  const int64_t position = track.next_position(call.kind, call.root);
  uint64_t ticket = next_.load(std::memory_order_relaxed);
  Slot* slot = nullptr;
  const size_t most = 2 * capacity();
  const size_t patience = patience_.load(std::memory_order_relaxed);
  for (size_t tries = 0;; ++tries, ++ticket) {
    if (tries == patience) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      patience_.store(std::min(kLeastPatience, most), std::memory_order_relaxed);
      next_.store(ticket, std::memory_order_relaxed);  // the next one looks further on
      return nullptr;
    }
    slot = &slots_[ticket & mask_];
    uint64_t seen = slot->version.load(std::memory_order_relaxed);
    if (seen >> 2 >= ticket) ticket = seen >> 2;  // the hint was old, by a round or more perhaps
    if (seen >> 2 >= ticket || (seen & kStateMask) != kClosed) continue;
    // Acquires what the slot's last operation wrote.
    if (slot->version.compare_exchange_strong(
            seen, ticket << 2 | kWriting, std::memory_order_acquire, std::memory_order_relaxed)) {
      break;
    }
  }
  next_.store(ticket + 1, std::memory_order_relaxed);
  if (patience < most) patience_.store(std::min(2 * patience, most), std::memory_order_relaxed);
  const bool labelled = call.label != nullptr && !call.label->empty();
  const int64_t now = clock_.ticks();
  slot->what.store(packed(track, call, labelled), kRelease);
  slot->position.store(position, kRelease);
  slot->count.store(call.count, kRelease);
  slot->root.store(call.root, kRelease);
  slot->enqueued.store(now, kRelease);
  slot->started.store(call.queued ? 0 : now, kRelease);
  if (labelled) {
    char text[Slot::kLabelBytes] = {};
    memcpy(text, call.label->data(), std::min(call.label->size(), sizeof text));
    for (size_t i = 0; i < std::size(slot->label); ++i) {
      uint64_t word;
      memcpy(&word, text + i * sizeof word, sizeof word);
      slot->label[i].store(word, kRelease);
    }
  }
  slot->version.store(ticket << 2 | kOpen, kRelease);
  return slot;
}

/// False: it was never used, or is being written.
bool Recorder::read_slot(const Slot& slot, Entry* out, uint32_t* out_track) const {
  constexpr auto kAcquire = std::memory_order_acquire;
  for (int i = 0; i < kReadTries; ++i) {
    const uint64_t version = slot.version.load(kAcquire);
    if (version == 0) return false;
    const uint64_t what = slot.what.load(kAcquire);
    *out_track = static_cast<uint32_t>(what);
    out->kind = static_cast<uint8_t>(what >> 32);
    out->dtype = static_cast<uint8_t>(what >> 40);
    out->op = static_cast<uint8_t>(what >> 48);
    out->position = slot.position.load(kAcquire);
    out->count = slot.count.load(kAcquire);
    out->root = slot.root.load(kAcquire);
    out->enqueued_ns = slot.enqueued.load(kAcquire);
    out->started_ns = slot.started.load(kAcquire);
    out->completed_ns = slot.completed.load(kAcquire);
    out->status = static_cast<Code>(slot.status.load(kAcquire));
    char text[Slot::kLabelBytes] = {};
    for (size_t word = 0; (what >> 56 & 1) != 0 && word < std::size(slot.label); ++word) {
      const uint64_t bytes = slot.label[word].load(kAcquire);
      memcpy(text + word * sizeof bytes, &bytes, sizeof bytes);
    }
    if (slot.version.load(std::memory_order_relaxed) != version) continue;
    if ((version & kStateMask) == kWriting) return false;
    out->label.assign(text, strnlen(text, sizeof text));
    if ((version & kStateMask) == kClosed) {
      out->state = State::kDone;
    } else {
      out->state = out->started_ns != 0 ? State::kStarted : State::kQueued;
      out->completed_ns = 0;
      out->status = Code::kOk;
    }
    return true;
  }
  return false;
}

Recorded Recorder::read() const {
  Recorded out;
  std::map<uint32_t, uint32_t> index;  // in the table, by the number of the track
  // Those that are made from now on have no entries here.
  const auto known = tracks_.with([](const Tracks& tracks) { return tracks.known; });
  struct Found {
    Entry entry;
    uint32_t track = 0;
  };
  std::vector<Found> found;
  for (size_t i = 0; i <= mask_; ++i) {
    Found one;
    if (read_slot(slots_[i], &one.entry, &one.track)) found.push_back(std::move(one));
  }
  // Counted after the entries were read, so no position is above its communicator's count.
  for (const auto& track : known) {
    index[track->id()] = static_cast<uint32_t>(out.communicators.size());
    out.communicators.push_back(track->record());
  }
  const Clock::Point now = clock_.now();
  out.monotonic_ns = now.monotonic_ns;
  // Both clocks one after the other: hosts agree on the time of day by far less.
  out.realtime_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                        std::chrono::system_clock::now().time_since_epoch())
                        .count() -
                    (dt::monotonic_ns() - now.monotonic_ns);
  const Scale scale(began_, now);
  out.dropped = dropped_.load(std::memory_order_relaxed);
  for (Found& one : found) {
    const auto at = index.find(one.track);
    if (at == index.end()) continue;
    Entry& entry = one.entry;
    entry.communicator = at->second;
    // A count may be anything: the one of a call that was refused, too.
    entry.count = std::min(entry.count, kMostElements);
    entry.bytes = entry.count * dtype_bytes(static_cast<Dtype>(entry.dtype));
    entry.enqueued_ns = scale.monotonic_ns(entry.enqueued_ns);
    entry.started_ns = scale.monotonic_ns(entry.started_ns);
    entry.completed_ns = scale.monotonic_ns(entry.completed_ns);
    out.entries.push_back(std::move(entry));
  }
  std::stable_sort(out.entries.begin(), out.entries.end(), [](const Entry& a, const Entry& b) {
    return a.enqueued_ns != b.enqueued_ns ? a.enqueued_ns < b.enqueued_ns : a.position < b.position;
  });
  return out;
}

}  // namespace dt::record
