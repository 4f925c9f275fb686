// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dt::launch {

/// The hosts that a Slurm list names, in its order: "n[08-10],gpu4,r[1-2]n[1-2]" is n08 n09 n10
/// gpu4 r1n1 r1n2 r2n1 r2n2. Items are separated by commas or blanks, empty items are skipped,
/// zeros in front are kept, several brackets multiply (the left one slowest), nothing is sorted or
/// made unique. CONFIG with the position of the fault when the text is malformed or names more than
/// `limit` hosts.
Result<std::vector<std::string>> expand_hostlist(std::string_view text, size_t limit = 100000);

}  // namespace dt::launch
