// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/status.h"
#include "base/wait.h"

namespace dt::launch {

/// A client of PMI-1: lines of `name=value` pairs over a socket that the launcher has opened. One
/// question, one answer. Borrows the descriptor, which stays the launcher's.
class PmiClient {
 public:
  PmiClient(int fd, const Wait& wait) : fd_(fd), wait_(wait) {}

  /// All ranks call it; rank 0's `mine` comes back on each. CONFIG no_rendezvous, TIMEOUT.
  Result<std::string> exchange(int32_t rank, const std::string& mine);

 private:
  Status send(const std::string& line) const;
  Result<std::string> receive();
  /// Sends a command, and returns its answer, whose cmd must be `expected` and rc 0.
  Result<std::string> ask(const std::string& line, const char* expected);
  Status wait_for(short events) const;

  const int fd_;
  const Wait wait_;
  std::string received_;  ///< beyond the last line
};

}  // namespace dt::launch
