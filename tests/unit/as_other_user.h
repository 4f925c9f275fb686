// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <exception>
#include <thread>

namespace dt::test {

inline constexpr int kOtherUser = 65534;

/// Runs `function` on a thread of its own as user kOtherUser, whom modes of files hold back even
/// where the tests run as root. False where they do not: there it has not run.
template <class F>
bool as_other_user(F&& function) {
  if (geteuid() != 0) return false;
  bool changed = false;
  std::exception_ptr failed;  // what ends a test case
  std::thread([&] {
    // The C library's setresuid() changes all threads, the system call this one alone.
    changed = syscall(SYS_setresuid, kOtherUser, kOtherUser, kOtherUser) == 0;
    if (!changed) return;
    try {
      function();
    } catch (...) {
      failed = std::current_exception();
    }
  }).join();
  if (failed) std::rethrow_exception(failed);
  return changed;
}

}  // namespace dt::test
