// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/status.h"

namespace dt {

/// A thread that runs `body`; it has the caller's signal mask. SYSTEM when there can be none;
/// `what` names it in the text.
inline Result<std::thread> start_thread(const char* what, std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return Status(Code::kSystem, std::string("cannot start the thread that ") + what + ": " +
                                     error.what() + "; raise the limit of processes (ulimit -u)");
  }
}

}  // namespace dt
