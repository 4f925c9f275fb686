// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "base/thread.h"
#include "base/wait.h"
#include "comm/communicator.h"

namespace dt::training {

class NamedThread;

/// Operations that ranks submit by name, each in an order of its own, as Horovod has them. Rank 0
/// of the communicator, the coordinator, hears what each rank has and answers with the list of what
/// all have; every rank carries that out in the order of the list.
///
/// Threads: any may call anything. One thread of its own ("dt-named") talks with rank 0, carries
/// the operations out and completes their works; it sleeps while there is nothing to do, and
/// outlives this object until the other ranks know that it is gone.
class Named {
 public:
  struct Options {
    int64_t fuse_bytes = 64 << 20;  // as Horovod (HOROVOD_FUSION_THRESHOLD)
    int32_t cache = 1024;           // as Horovod (HOROVOD_CACHE_CAPACITY)
    int64_t stall_ms = 60'000;      // as Horovod (HOROVOD_STALL_CHECK_TIME_SECONDS); 0: no warning
    int64_t cycle_us = 1000;        // as Horovod (HOROVOD_CYCLE_TIME)
    LoggerPtr logger;               // of stalls; null: silent
  };
  struct Submission {
    std::string name;
    backend::Collective collective;  // checked, without a deadline
    std::shared_ptr<backend::Work> work;
  };
  struct Statistics {
    int64_t answers = 0;  ///< lists of operations that were carried out
    int64_t tensors = 0;
    int64_t operations = 0;
    int64_t fused_tensors = 0;
    int64_t fused_bytes = 0;
    int64_t cache_hits = 0;
    int64_t stalls = 0;  ///< on rank 0: warnings
  };

  /// Collective: checks that the options are the same on all ranks.
  static Result<std::shared_ptr<Named>> create(std::shared_ptr<comm::Communicator> comm,
                                               Options options);
  /// As close().
  ~Named();
  Named(const Named&) = delete;
  Named& operator=(const Named&) = delete;

  /// All of them, or none where it fails. `group`: they are released together.
  Status submit(std::vector<Submission> submissions, bool group);
  /// This rank submits nothing more until all have joined: then the rank that did so last; -1 where
  /// `wait` ends before. A second call goes on waiting.
  Result<int32_t> join(const Wait& wait);
  /// What waits for other ranks, a line each, as rank 0 knows it.
  Result<std::string> report(const Wait& wait);
  Statistics statistics() const;
  /// What waits ends with ABORTED, here and on the other ranks. Waits for nobody.
  void close();
  /// "dt-named", which ends some time after close().
  const std::shared_ptr<EndingThread>& background() const { return background_; }

 private:
  explicit Named(std::shared_ptr<NamedThread> thread) : thread_(std::move(thread)) {}

  const std::shared_ptr<NamedThread> thread_;
  std::shared_ptr<EndingThread> background_;
};

}  // namespace dt::training
