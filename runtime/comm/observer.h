// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/pulse.h"
#include "comm/failure_board.h"

namespace dt::comm {

/// Looks at the communicators of a job now and then and says what this rank is doing. It measures
/// by its own looks, so that operations need no clock. One thread.
class Observer {
 public:
  struct Activity {
    std::string communicator;  ///< empty: no operation yet
    backend::Pulse pulse;
    int64_t age_ms = 0;            ///< since it was seen to be entered, or left
    std::vector<int32_t> members;  ///< world ranks of the communicator
  };

  /// `board` is borrowed.
  explicit Observer(FailureBoard* board) : board_(board) {}

  /// What it is inside of for the longest, else what it left last.
  Activity look(int64_t now_ns);

 private:
  struct Seen {
    uint64_t stamp = 0;
    int64_t since_ns = 0;
    bool looked = false;  ///< in this round; others are gone
  };
  FailureBoard* const board_;
  std::map<std::string, Seen> seen_;  ///< by communicator
};

}  // namespace dt::comm
