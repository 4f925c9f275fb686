// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace dt::test {

/// Calls function(rank) in a thread for each rank, and waits for all.
inline void on_ranks(int count, const std::function<void(int rank)>& function) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) threads.emplace_back(function, rank);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace dt::test
