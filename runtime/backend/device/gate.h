// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/device/ledger.h"

namespace dt::backend {

/// Lets an operation pass when all ranks are about to launch the same one: they tell each other
/// over a host communicator of its own. The device thread's; never waits but in close().
class Gate {
 public:
  struct Options {
    std::shared_ptr<Backend> on_host;  ///< the same ranks, and nobody else uses it
    int32_t rank = 0;
    int32_t size = 1;
    int32_t world_rank = 0;
    std::string host;
  };
  explicit Gate(Options options);

  /// Whether all ranks have come to `last`, with the same collectives up to it; `first`, and if
  /// that is another one those up to `last`, are to be launched together. Not ok: they have not, or
  /// could not meet.
  Result<bool> passes(const Ledger::Entry& first, const Ledger::Entry& last, Deadline deadline);
  bool is_asking() const { return work_ != nullptr; }
  /// Nothing more passes; ends what is under way at once.
  void close(const Status& status);

 private:
  /// A rank's call as it shows it to the others.
  struct Print {
    Ledger::Entry first;
    int64_t last_position;
    uint64_t chain;
    int64_t pid;
    int32_t world_rank;
    char host[60];
  };
  static_assert(sizeof(Print) == 72 + 88 && sizeof(Ledger::Entry) == 72);

  Status judge() const;

  const Options options_;
  int64_t passed_ = 0;  ///< position
  Print mine_;
  std::vector<Print> all_;
  std::shared_ptr<Work> work_;  ///< null: nothing is asked
};

}  // namespace dt::backend
