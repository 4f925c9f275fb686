// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../bench/session.h"

namespace dt::test {

/// Reduces gradients of ranks with different numbers of batches: all must get the averages of those
/// that still have some, and stop in one step. Ends the program where not.
void check_join(Session* session);

}  // namespace dt::test
