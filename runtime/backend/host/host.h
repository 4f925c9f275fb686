// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/log.h"
#include "base/numa.h"
#include "collective/stager.h"
#include "collective/thresholds.h"
#include "transport/shm/arena.h"

namespace dt::backend {

/// What every host communicator of a job shares: the arena and, unless callers do its work, one
/// progress thread, started at the first operation that needs it, asleep while nothing is queued.
class HostEngine {
 public:
  struct Options {
    std::string leader_name;  ///< local rank 0's listener
    uint64_t session = 0;     ///< equal on all local ranks, different between jobs and attempts
    int32_t local_rank = 0;   ///< place among world_ranks; a launcher may number it otherwise
    int32_t local_size = 1;
    std::vector<int32_t> world_ranks;  ///< [local_size], ascending
    std::vector<int64_t> pids;         ///< [local_size]; empty: read from the arena
    std::string host;                  ///< name of this host, for messages
    /// How long a waiter polls before it sleeps. May differ between ranks.
    int64_t spin_us = 50;
    /// Waiters do not poll while other busy threads take the processors. May differ between ranks.
    bool spin_adapts = true;
    /// No progress thread: operations advance inside calls of dt only. May differ between ranks.
    bool by_caller = false;
    NumaHome home;                    ///< of this rank
    std::vector<int32_t> processors;  ///< of the progress thread; empty: as who starts it
    // Equal on all ranks; checked when the world communicator is made.
    int64_t inline_bytes = 8 << 10;  ///< largest contribution that travels with its descriptor
    /// What is staged at once; twice that where more than thresholds.exchange_ranks share sums.
    int64_t slot_bytes = 64 << 10;
    /// Staging memory of a rank in a communicator, half of it where they do; with the rest of its
    /// block just below a huge page.
    int64_t ring_bytes = 31 * (64 << 10);
    collective::Thresholds thresholds;
    /// How this rank writes there. May differ between ranks.
    collective::Staging staging = collective::Staging::kAuto;
    /// Its waiting threads go to processors with fewer ranks. May differ between ranks.
    bool spread = true;
    LoggerPtr logger;  ///< null: silent
    /// Hears how long calls slept, and because of whom; null: nobody does.
    std::shared_ptr<record::Meter> meter;
  };

  /// Collective over the local ranks: hands the memory over.
  static Result<std::shared_ptr<HostEngine>> create(shm::ArenaListener listener,
                                                    const Options& options, const Wait& wait);
  ~HostEngine();
  HostEngine(const HostEngine&) = delete;
  HostEngine& operator=(const HostEngine&) = delete;

  const Options& options() const { return options_; }
  const std::shared_ptr<shm::HostArena>& arena() const { return arena_; }
  /// Tells the peers that this rank leaves on purpose. Unless something has failed here before,
  /// what they still need of it fails at once.
  void say_goodbye();
  /// These have left, as the store says: what still needs them fails. Any thread; never blocks.
  void peers_left(const std::vector<int32_t>& world_ranks);

  class Progress;  ///< the progress thread's own state
  Progress& progress() const { return *progress_; }

 private:
  HostEngine(const Options& options, std::shared_ptr<shm::HostArena> arena);

  const Options options_;
  const std::shared_ptr<shm::HostArena> arena_;
  const std::shared_ptr<Progress> progress_;
};

/// Options of a communicator of local ranks.
struct HostWorldOptions {
  std::string name = "world";
  /// The local ranks of a communicator that spans hosts: its backend names the operations and tells
  /// of failures, this one does neither.
  bool part = false;
  /// With `part`: each member's rank in the larger communicator. Empty: the world ranks.
  std::vector<int32_t> whole_ranks;
  /// Called once, by the thread that noticed that the communicator broke (never for interrupt()):
  /// hands the failure to the control plane, for the others. Must not block: the communicator
  /// stands still, and nobody hears of the failure here before it returns. Inherited by split
  /// communicators.
  std::function<void(const std::string& communicator, const Status&)> on_broken;
};

/// This rank's memory in a communicator of its host, until that is opened.
class HostBlock {
 public:
  static Result<HostBlock> make(std::shared_ptr<HostEngine> engine, int32_t members);
  HostBlock(HostBlock&& other) noexcept
      : engine_(std::move(other.engine_)),
        memory_(std::exchange(other.memory_, nullptr)),
        offset_(other.offset_) {}
  HostBlock& operator=(HostBlock&&) = delete;
  ~HostBlock();

  /// It is not given back: other members may know of it, and open it.
  void leave_reserved() { memory_ = nullptr; }

  /// In this rank's section of the arena: what the other members have to know.
  int64_t offset() const { return offset_; }
  /// `places`: of the members among HostEngine::Options::world_ranks; `offsets`: of their blocks.
  Result<std::shared_ptr<Backend>> open(const HostWorldOptions& options,
                                        const std::vector<int32_t>& places,
                                        const std::vector<int64_t>& offsets) &&;

 private:
  HostBlock(std::shared_ptr<HostEngine> engine, void* memory, int64_t offset)
      : engine_(std::move(engine)), memory_(memory), offset_(offset) {}

  std::shared_ptr<HostEngine> engine_;
  void* memory_;
  int64_t offset_;
};

/// Collective over the ranks of the host; once per engine. The communicator numbers them as
/// HostEngine::Options::world_ranks does.
Result<std::shared_ptr<Backend>> create_host_world(std::shared_ptr<HostEngine> engine,
                                                   const HostWorldOptions& options,
                                                   const Wait& wait);

}  // namespace dt::backend
