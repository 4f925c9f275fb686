// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace dt::job {

// Ranks that make a communicator through the store tell each other there how it went.

/// For what came of it, beyond the deadline of the attempt.
inline constexpr int64_t kTellMs = 5'000;

/// What one rank tells: nothing if it went well.
std::string told(const Status& made);
/// What all make of what each of them told: a time-out is often the consequence of another's error.
Status outcome(const std::vector<std::pair<int32_t, std::string>>& present, const Status& mine);
/// `status` of the call `operation`, whose message begins with `what` then.
Status named(const Status& status, const std::string& what, const char* operation);

}  // namespace dt::job
