// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/operation.h"

namespace dt::collective {

/// A part of a buffer, in elements.
struct Extent {
  int64_t offset = 0;
  int64_t count = 0;

  int64_t end() const { return offset + count; }
};

/// What a rank sends to and gets from each rank where these are not the same for all: of alltoallv,
/// gatherv, scatterv and allgatherv. Both vectors have an entry for each rank of the communicator;
/// `outgoing` alone for a reduce_scatterv, see reduce_for().
struct Blocks {
  std::vector<Extent> outgoing;  ///< of `send`
  std::vector<Extent> incoming;  ///< of `recv`
};

/// The block that `rank`, which calls it, sends to rank `to` of `size`.
Extent outgoing(const Collective& collective, int32_t rank, int32_t size, int32_t to);
/// The place of the block that it gets from rank `from`.
Extent incoming(const Collective& collective, int32_t rank, int32_t size, int32_t from);

/// An irregular reduce-scatter is a reduce of `outgoing` block `root` for each root; this is the
/// calling rank's part in one.
Collective reduce_for(const Collective& collective, int32_t root, int32_t rank);

/// One word of what a rank says of an irregular collective: the sum of these words over all ranks
/// is zero where each block is as long for its sender as for its receiver, and else, but for one
/// case in 2^64, is not.
uint64_t balance(const Collective& collective, int32_t rank, int32_t size);

/// For a message, where the sum is not zero: which pairs differ, the first few with both counts.
struct Difference {
  std::string text;    ///< starts with the operation's dtype; ends with what to do
  int32_t first = -1;  ///< the sender of the first pair
};
/// `sent(a, b)`: what rank a sends to b, as a says; `expected(a, b)`: what a expects from b.
/// `name(a)`: how to call it.
Difference difference(Dtype dtype, int32_t size,
                      const std::function<int64_t(int32_t, int32_t)>& sent,
                      const std::function<int64_t(int32_t, int32_t)>& expected,
                      const std::function<std::string(int32_t)>& name);

/// The same operation among `members`, ascending ranks of the communicator with the caller, at
/// index `own`, among them.
Collective among(const Collective& collective, int32_t size, const std::vector<int32_t>& members,
                 int32_t own);

}  // namespace dt::collective
