// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dt {

/// What one rank called where all should have called the same.
struct CallOfRank {
  std::string who;   ///< "rank 3 (node7, pid 4711)"
  uint64_t key = 0;  ///< equal: the same call
  std::string call;  ///< "allreduce f32 sum x 1000"
};

struct Disagreement {
  std::string text;    ///< "ranks disagree: ...", and what to do
  size_t culprit = 0;  ///< the first that differs from what most called; 0 if none does
};

/// Of one call or more, which should be the same: one rank for each distinct call, in the given
/// order, so that it is short also among many ranks.
Disagreement disagreement(const std::vector<CallOfRank>& calls);

/// Behind the name of a rank, where an operation of another one needs it.
inline constexpr char kHasLeft[] =
    " has left the job with dt_finalize, and this operation needs it; let every rank make its part "
    "of each operation before it calls dt_finalize";

}  // namespace dt
