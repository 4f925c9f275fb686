// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>

#include "base/guarded.h"
#include "cli/run/fd.h"

namespace dt::cli {

/// The ranks of an attempt that the job took for lost because they gave no sign of life. Their
/// processes may live: stopped, or cut off from the store.
class LostRanks {
 public:
  LostRanks();

  /// `rank` is a world rank. Any thread; does not wait. Of other attempts than the last one that
  /// was noted or taken nothing is kept.
  void note(int attempt, int rank);
  /// Those noted since the last call. One thread.
  std::set<int> take(int attempt);
  /// Readable when take() has something new; -1 where the system had no descriptor left.
  int wake_fd() const { return wake_.get(); }

 private:
  struct State {
    int attempt = 0;
    std::set<int> ranks;
  };
  Fd wake_;
  Guarded<State> state_;
};

}  // namespace dt::cli
