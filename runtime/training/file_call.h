// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "comm/communicator.h"

namespace dt::training {

/// How a step went on this rank that either succeeds on all ranks or fails on all.
struct FileOutcome {
  Status status;
  bool lacks_file = false;  ///< `status` is the path of a file that rank 0 made and this rank lacks
};

/// A call that all ranks make, with steps that they agree on.
class FileCall {
 public:
  /// @param operation "shard_save", in messages
  FileCall(comm::Communicator& comm, const char* operation) : comm_(comm), operation_(operation) {}

  /// Collective: ok if every rank's outcome is; otherwise that of the first rank that failed, on
  /// all with the same text. `word`, unless null, becomes the smallest of all ranks.
  Status agree(const FileOutcome& mine, int64_t* word = nullptr);
  /// The same, and MISMATCH if ranks have different words: "rank 1 and rank 0 DIFFERENCE".
  Status agree_on(const FileOutcome& mine, int64_t word, const char* difference);
  /// Collective.
  Status reduce(std::span<int64_t> words, ReduceOp op);

 private:
  Status explain(const FileOutcome& mine, int64_t word, const char* difference);

  comm::Communicator& comm_;
  const char* const operation_;
};

}  // namespace dt::training
