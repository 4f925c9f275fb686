// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "base/guarded.h"
#include "base/kinds.h"
#include "base/status.h"
#include "record/clock.h"

namespace dt::record {

/// What a rank did so far. Nothing in it ever becomes less.
struct Totals {
  static constexpr size_t kKinds = kKindCount;

  struct Kind {
    int64_t operations = 0;  ///< that have ended, failures among them
    int64_t failures = 0;
    int64_t bytes = 0;      ///< as nccl-tests count them: of the larger of send and receive buffer
    int64_t bus_bytes = 0;  ///< bytes times the factor of nccl-tests for a bus bandwidth
    int64_t busy_ns = 0;    ///< from the start of each to its end
  };
  struct Peer {
    int64_t waits = 0;
    int64_t waited_ns = 0;
  };
  struct Steps {
    int64_t steps = 0;
    int64_t bytes = 0;
    int64_t communication_ns = 0;
    int64_t exposed_ns = 0;
  };

  std::array<Kind, kKinds> kinds;
  std::vector<Peer> peers;  ///< by world rank
  Steps steps;              ///< of all reducers
  int64_t stalls = 0;       ///< operations that took watchdog.stall_warn_ms or longer
};

/// GB/s (1e9 bytes) while operations of that kind were under way; 0 while there were none.
double bus_bandwidth(const Totals::Kind& kind);
/// Of the time in which buckets were under way, the part that no caller waited; 1 without any.
double hidden_share(const Totals::Steps& steps);

/// The counters of a rank. Any thread may count and read, and none waits for another.
///
/// Operations are counted in cells. Who counts takes a cell by one exchange of its flag, adds to it
/// with plain loads and stores, and lets go; who finds it taken goes to the next, and who finds all
/// taken adds to the last one, which has no flag, by atomic additions. So a counter of a cell has
/// one writer at a time, ordered by the flag, and a reader sees each one whole. It may see the
/// counters of one operation apart: the number already, the bytes not yet.
class Meter {
 public:
  explicit Meter(int32_t world_size);

  /// Stands for communicators of that many ranks; given back in count(). Those of more than
  /// kClassesMax - 1 different sizes share class 0, where a bus byte is a byte.
  uint8_t size_class(int32_t size);

  struct Ended {
    uint8_t kind = 0;
    uint8_t size_class = 0;
    Dtype dtype = Dtype::kU8;
    Code status = Code::kOk;
    int64_t count = 0;  ///< elements, as in Collective
    int64_t ticks = 0;  ///< of Clock, from its start to its end
  };
  void count(const Ended& ended) {
    if (ended.kind >= Totals::kKinds) return;
    for (Cell& cell : cells_) {
      if (cell.taken.exchange(1, std::memory_order_acquire) != 0) continue;
      add(cell.kinds[ended.kind], ended, [](std::atomic<int64_t>& counter, int64_t amount) {
        // Unsigned, so that a sum beyond all bounds has a value, as fetch_add() gives it below.
        counter.store(
            static_cast<int64_t>(static_cast<uint64_t>(counter.load(std::memory_order_relaxed)) +
                                 static_cast<uint64_t>(amount)),
            std::memory_order_relaxed);
      });
      cell.taken.store(0, std::memory_order_release);
      return;
    }
    add(crowd_.kinds[ended.kind], ended, [](std::atomic<int64_t>& counter, int64_t amount) {
      counter.fetch_add(amount, std::memory_order_relaxed);
    });
  }

  /// A call was held up by that rank for so long.
  void waited(int32_t world_rank, int64_t ns) {
    if (world_rank < 0 || static_cast<size_t>(world_rank) >= world_size_) return;
    Peer& peer = peers_[static_cast<size_t>(world_rank)];
    peer.waits.fetch_add(1, std::memory_order_relaxed);
    peer.waited_ns.fetch_add(ns, std::memory_order_relaxed);
  }
  /// A reducer has ended a step.
  void stepped(int64_t bytes, int64_t communication_ns, int64_t exposed_ns) {
    steps_.fetch_add(1, std::memory_order_relaxed);
    step_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    communication_ns_.fetch_add(communication_ns, std::memory_order_relaxed);
    exposed_ns_.fetch_add(exposed_ns, std::memory_order_relaxed);
  }
  void stalled() { stalls_.fetch_add(1, std::memory_order_relaxed); }

  /// Cost: microseconds; allocates.
  Totals read() const;
  /// The same of one rank; none of these ranks: zeroes.
  Totals::Peer peer(int32_t world_rank) const;

 private:
  static constexpr size_t kCells = 4;
  static constexpr size_t kClassesMax = 128;  // as Recorder packs them

  struct alignas(64) Kind {
    std::atomic<int64_t> operations{0};
    std::atomic<int64_t> failures{0};
    std::atomic<int64_t> bytes{0};
    std::atomic<int64_t> bus_bytes{0};
    std::atomic<int64_t> ticks{0};
  };
  struct alignas(64) Cell {
    std::atomic<uint32_t> taken{0};
    Kind kinds[Totals::kKinds];
  };
  struct Peer {
    std::atomic<int64_t> waits{0};
    std::atomic<int64_t> waited_ns{0};
  };
  /// By kind; written before the class is given to anybody.
  struct Factors {
    int64_t parts[Totals::kKinds];  ///< bytes are that many times the bytes of `count` elements
    double bus[Totals::kKinds];     ///< and bus bytes are that many times bytes
  };
  /// Ticks become nanoseconds as they come, by the clocks of that moment: a sum that is converted
  /// anew each time would sometimes become less.
  struct Converted {
    std::array<int64_t, Totals::kKinds> ticks{};
    std::array<int64_t, Totals::kKinds> ns{};
  };

  template <class Add>
  void add(Kind& kind, const Ended& ended, const Add& add_to) {
    add_to(kind.operations, 1);
    if (ended.ticks > 0) add_to(kind.ticks, ended.ticks);
    if (ended.status != Code::kOk) {
      add_to(kind.failures, 1);
      return;
    }
    const Factors& factors = factors_[ended.size_class];
    const int64_t bytes = ended.count * dtype_bytes(ended.dtype) * factors.parts[ended.kind];
    if (bytes == 0) return;
    add_to(kind.bytes, bytes);
    add_to(kind.bus_bytes,
           static_cast<int64_t>(static_cast<double>(bytes) * factors.bus[ended.kind] + 0.5));
  }
  static Factors factors_of(int32_t size);

  const Clock clock_;
  const Clock::Point began_;
  const size_t world_size_;
  const std::unique_ptr<Peer[]> peers_;
  const std::unique_ptr<Factors[]> factors_;  // [kClassesMax]
  Guarded<std::vector<int32_t>> sizes_;       // of classes 1 and up
  Cell cells_[kCells];
  Cell crowd_;
  std::atomic<int64_t> steps_{0};
  std::atomic<int64_t> step_bytes_{0};
  std::atomic<int64_t> communication_ns_{0};
  std::atomic<int64_t> exposed_ns_{0};
  std::atomic<int64_t> stalls_{0};
  mutable Guarded<Converted> converted_;
};

}  // namespace dt::record
