// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "launch/facts.h"

namespace dt::launch {

/// Who started a program that starts ranks itself: the innermost launcher or platform that started
/// several such processes. Steps of Slurm aside, and variables that a shell may have set for ranks.
/// Absent: nobody, or this process alone.
///
/// With node rank and node count it started one process on each node; the address of node 0 is
/// there where it is known. Otherwise it started several on a node, or does not say so, and the
/// facts have rank and world size.
/// CONFIG: there are several nodes, but not which of them this is, or not how many; or a variable
/// is malformed.
Result<std::optional<Facts>> find_starter(Variables& variables);

}  // namespace dt::launch
