// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "base/status.h"
#include "base/wait.h"

namespace dt::launch {

/// Runs a call into foreign code that knows no deadline on a thread of its own, with every signal
/// blocked, and returns what it returns. At the deadline the thread is left behind, so `call` owns
/// all that it touches; TIMEOUT with `what`.
Result<std::string> run_aside(std::function<Result<std::string>()> call, const std::string& what,
                              const Wait& wait);

}  // namespace dt::launch
