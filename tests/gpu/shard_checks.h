// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../bench/session.h"

namespace dt::test {

/// Trains a few steps with parameters in shards: every stage must end with the same bits, on GPUs
/// also with those of host memory, a checkpoint of one stage must go on in another, and steps that
/// are not finite must change nothing. Ends the program where not.
void check_shards(Session* session);

}  // namespace dt::test
