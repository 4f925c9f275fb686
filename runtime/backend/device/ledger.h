// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/guarded.h"
#include "collective/operation.h"

namespace dt::backend {

/// When what ranks ask of a communicator over devices is compared between them.
enum class Check {
  kOff,
  kLazy,    ///< now and then, by the control plane
  kStrict,  ///< before each operation is launched
};

/// The collectives of one communicator in the order of the calls: each has a fingerprint, and a
/// hash of it and all before it, so that ranks with equal hashes have called the same all the time.
/// Sends and receives, which differ between ranks, do not count. Any thread.
class Ledger {
 public:
  static constexpr size_t kNameBytes = 32;

  struct Entry {
    int64_t position = 0;  ///< among the collectives of the communicator, from 1; 0: none
    uint64_t chain = 0;    ///< of this one and all before it
    int64_t sequence = 0;  ///< as messages number operations
    uint64_t signature = 0;
    int64_t count = 0;
    char name[kNameBytes] = {};  ///< cut

    /// "allreduce f32 sum x 1000 "bucket 3"".
    std::string call() const;
  };

  Ledger(std::string communicator, int32_t size)
      : communicator_(std::move(communicator)), size_(size) {}

  const std::string& communicator() const { return communicator_; }
  int32_t size() const { return size_; }
  /// The next collective. Allocates nothing.
  Entry add(const collective::Collective& collective, int64_t sequence);
  /// What was added since the last call, in order: the last ones whole, of those before only some,
  /// as position and chain, at positions that are the same on all ranks. `last`: if nothing was
  /// added, the last collective once more, so that it is plain how far this rank came.
  std::vector<Entry> take(bool last = false);

 private:
  static constexpr int64_t kRecent = 64;
  static constexpr int64_t kMarkEvery = 64;
  static constexpr int64_t kMarks = 256;
  struct Mark {
    int64_t position = 0;
    uint64_t chain = 0;
  };
  struct State {
    int64_t last = 0;  ///< position
    uint64_t chain = 0;
    int64_t told = 0;  ///< position
    std::array<Entry, kRecent> recent;
    std::array<Mark, kMarks> marks;
  };

  const std::string communicator_;
  const int32_t size_;
  Guarded<State> state_;
};

/// The ledgers of a job's communicators. Any thread.
class OrderBook {
 public:
  void enlist(std::shared_ptr<Ledger> ledger);
  /// Those of communicators that have ended are given away for the last time.
  std::vector<std::shared_ptr<Ledger>> ledgers();

 private:
  static constexpr size_t kEndedMax = 1024;  // where nobody takes what they have
  Guarded<std::vector<std::shared_ptr<Ledger>>> ledgers_;
};

}  // namespace dt::backend
