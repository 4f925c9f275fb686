// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dt::load {

/// The least that a server can do for ranks that meet: it accepts each, reads a question of so many
/// bytes, and when all have come writes each an answer. Prints its address, and serves until it is
/// killed.
int serve_least(int ranks, int question_bytes, int answer_bytes);

}  // namespace dt::load
