// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../bench/session.h"

namespace dt::test {

/// Mean, variance and gradient sums of batches that ranks have different parts of: all must get
/// those of the whole batch, and a stream that waits for nothing must see them. Ends the program
/// where not.
void check_batch_statistics(Session* session);

}  // namespace dt::test
