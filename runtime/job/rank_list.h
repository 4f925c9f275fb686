// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dt::job {

/// "0-3, 8" of ranks 0, 1, 2, 3 and 8: equal on all ranks that give the same list in the same
/// order. Fits into a key of the store, however many ranks there are: of a long list it is the
/// beginning, the number of ranks and a hash of all, which tells lists apart.
std::string rank_list(const std::vector<int32_t>& ranks);

}  // namespace dt::job
