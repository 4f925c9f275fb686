// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "collective/blocks.h"

namespace dt::backend {

/// How an operation's buffers fall into parts, which go through pinned memory chunk by chunk.
class Parts {
 public:
  Parts(int32_t rank, int32_t size) : rank_(rank), size_(size) {}

  /// How many parts a kind takes and gives on this rank, whether or not it has them.
  int64_t sent(const collective::Collective& collective) const;
  int64_t received(const collective::Collective& collective) const;
  /// The most of both on any rank, so that all cut alike.
  int64_t most(const collective::Collective& collective) const;

  /// Elements of the caller's buffer that belong to the chunk of `count` from `begin` of each part.
  collective::Extent sent_at(const collective::Collective& collective, int64_t part, int64_t begin,
                             int64_t count) const;
  collective::Extent received_at(const collective::Collective& collective, int64_t part,
                                 int64_t begin, int64_t count) const;
  /// Of an irregular operation: the chunk with its parts one behind the other.
  std::shared_ptr<const collective::Blocks> chunk_of(const collective::Collective& collective,
                                                     int64_t begin, int64_t count) const;

  /// Of an irregular operation: what this rank sends to each one, then what it expects from each.
  std::vector<int64_t> table_of(const collective::Collective& collective) const;
  /// `tables`: of all ranks, one behind the other. The elements of the longest part; MISMATCH where
  /// a rank expects what another one does not send, the same on all ranks.
  Result<int64_t> longest(const collective::Collective& collective,
                          const std::vector<int64_t>& tables) const;

 private:
  int64_t of(const collective::Collective& collective, const KindBuffer& buffer) const;

  const int32_t rank_;
  const int32_t size_;
};

}  // namespace dt::backend
