// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/guarded.h"
#include "base/status.h"
#include "record/clock.h"
#include "record/meter.h"
#include "record/trace.h"

namespace dt::record {

/// One operation in the ring. The second cache line is touched only by those with a label.
struct alignas(64) Slot {
  static constexpr size_t kLabelBytes = 56;

  std::atomic<uint64_t> version{0};
  std::atomic<uint64_t> what{0};  ///< communicator u32, kind u8, dtype u8, op u8, label u8
  std::atomic<int64_t> position{0};
  std::atomic<int64_t> count{0};
  std::atomic<int32_t> root{0};
  std::atomic<int32_t> status{0};
  std::atomic<int64_t> enqueued{0};  // ticks, as the next two
  std::atomic<int64_t> started{0};
  std::atomic<int64_t> completed{0};
  std::atomic<uint64_t> label[kLabelBytes / sizeof(uint64_t)] = {};
};

/// A communicator as the recorder counts it. Made by Recorder::open(); any thread.
class Track {
 public:
  Track(uint32_t id, CommunicatorRecord record, uint8_t size_class);

  uint32_t id() const { return id_; }
  uint8_t size_class() const { return size_class_; }
  /// The position of the next operation. `root`: the peer of a send or receive.
  int64_t next_position(uint8_t kind, int32_t root) {
    std::atomic<int64_t>* counter = &issued_;
    if (is_transfer(kind)) {
      if (root < 0 || static_cast<size_t>(root) >= record_.world_ranks.size()) return 0;
      counter = &transfers_[2 * static_cast<size_t>(root) + (kind == kSendKind ? 0 : 1)];
    }
    return counter->fetch_add(1, std::memory_order_relaxed) + 1;
  }
  /// The rank has let go of the communicator.
  void end() { ended_.store(true, std::memory_order_relaxed); }
  bool ended() const { return ended_.load(std::memory_order_relaxed); }
  CommunicatorRecord record() const;

 private:
  const uint32_t id_;
  const CommunicatorRecord record_;
  const uint8_t size_class_;  ///< for the meter
  std::atomic<int64_t> issued_{0};
  std::atomic<bool> ended_{false};
  const std::unique_ptr<std::atomic<int64_t>[]> transfers_;  ///< by peer and direction
};

/// An operation as its caller describes it. `label` is read during begin() only.
struct Call {
  uint8_t kind = 0;
  uint8_t dtype = 0;
  uint8_t op = 0;
  int32_t root = -1;
  int64_t count = 0;
  const std::string* label = nullptr;
  /// It waits for its turn, and started() follows. Else it has started with the call.
  bool queued = false;
};

/// The flight recorder of a rank: a ring of its last operations, written by every thread that calls
/// or completes one, without locks, and read while it is written.
///
/// Each slot belongs to nobody (its operation is over: CLOSED), or to one operation (OPEN) from
/// begin() to complete(). The version is {ticket, state}. begin() takes the next slot that is
/// CLOSED by a compare-and-swap of its version, which one thread wins; slots of operations under
/// way are passed over, so these are never lost, however old. From then on only that operation
/// writes to the slot: begin() before the operation is submitted, started() by whoever carries it
/// out, complete() after that, each ordered by the hand-over of the operation itself. So no two
/// threads write to one slot at a time, and no write waits.
///
/// A reader reads the version, the fields, and the version again, and takes the entry if both are
/// equal and not WRITING. That is sound: fields are written by release stores behind the version
/// WRITING and read by acquire loads, so who sees a field of the next operation sees a newer
/// version afterwards; and fields of CLOSED were written before that version. While it is OPEN the
/// reader ignores what complete() writes, and `started` is one word.
///
/// `next_` is a hint where to look: threads may put it back a little, and then find those slots
/// taken. Tickets therefore need not be in the order of the calls; readers sort by time.
class Recorder : public std::enable_shared_from_this<Recorder> {
 public:
  static constexpr size_t kMaxEntries = 1 << 20;

  /// `entries` is rounded up to a power of two; null for 0. `meter` counts what ends; may be null.
  static std::shared_ptr<Recorder> create(int64_t entries, std::shared_ptr<Meter> meter = nullptr);

  /// From now on `record` is in the table of communicators. A rank may make and drop any number:
  /// of those it let go of, the last kEndedKept stay.
  std::shared_ptr<Track> open(CommunicatorRecord record);

  /// Null: no slot was found that does not hold an operation under way; this one is counted only.
  Slot* begin(Track& track, const Call& call);
  void started(Slot* slot) const {
    if (slot != nullptr) slot->started.store(clock_.ticks(), std::memory_order_release);
  }
  /// Ends what begin() gave; once.
  void complete(Slot* slot, Code status) const {
    if (slot == nullptr) return;
    const int64_t now = clock_.ticks();
    slot->status.store(static_cast<int32_t>(status), std::memory_order_release);
    slot->completed.store(now, std::memory_order_release);
    if (meter_ != nullptr) meter_->count(ended(*slot, now, status));
    const uint64_t open = slot->version.load(std::memory_order_relaxed);
    slot->version.store((open & ~kStateMask) | kClosed, std::memory_order_release);
  }

  size_t capacity() const { return mask_ + 1; }
  /// Null: nothing is counted.
  Meter* meter() const { return meter_.get(); }
  /// Operations that found no room.
  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  /// A copy; allocates. Cost: about a millisecond for 4096 entries.
  Recorded read() const;

 private:
  static constexpr uint64_t kStateMask = 3;
  static constexpr uint64_t kClosed = 0;
  static constexpr uint64_t kWriting = 1;
  static constexpr uint64_t kOpen = 2;
  static constexpr size_t kEndedKept = 256;
  static constexpr size_t kLeastPatience = 8;

  struct Tracks {
    std::vector<std::shared_ptr<Track>> known;
    uint32_t last_id = 0;
  };

  Recorder(size_t entries, std::shared_ptr<Meter> meter);
  /// The slot is still the operation's own. What never started took no time.
  static Meter::Ended ended(const Slot& slot, int64_t now, Code status) {
    constexpr auto kRelaxed = std::memory_order_relaxed;
    const uint64_t what = slot.what.load(kRelaxed);
    const int64_t started = slot.started.load(kRelaxed);
    Meter::Ended ended;
    ended.kind = static_cast<uint8_t>(what >> 32);
    ended.dtype = static_cast<Dtype>(static_cast<uint8_t>(what >> 40));
    ended.size_class = static_cast<uint8_t>(what >> 57);
    ended.status = status;
    ended.count = slot.count.load(kRelaxed);
    ended.ticks = started == 0 ? 0 : now - started;
    return ended;
  }
  bool read_slot(const Slot& slot, Entry* out, uint32_t* out_track) const;

  const Clock clock_;
  const Clock::Point began_;
  const size_t mask_;
  const std::unique_ptr<Slot[]> slots_;
  const std::shared_ptr<Meter> meter_;  // null: nothing is counted
  alignas(64) std::atomic<uint64_t> next_{1};
  /// How many slots begin() looks at. Where all hold operations under way the look at each would
  /// cost more than many an operation, so after it found none the next ones look at few, and at
  /// twice as many with each that they find. Any thread; a hint as well.
  std::atomic<size_t> patience_;
  std::atomic<int64_t> dropped_{0};
  Guarded<Tracks> tracks_;
};

/// For whoever carries an operation out: says that it starts. Its recorder lives as long as the
/// operation does.
struct Mark {
  const Recorder* recorder = nullptr;
  Slot* slot = nullptr;

  void started() const {
    if (recorder != nullptr) recorder->started(slot);
  }
};

}  // namespace dt::record
