// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../bench/session.h"

namespace dt::test {

/// Reduces gradients that travel in 8 bits: on GPUs with the bits of host memory, step after step.
/// Ends the program where not.
void check_wire(Session* session);

}  // namespace dt::test
