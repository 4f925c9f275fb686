// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/wait.h"
#include "store/client.h"

namespace dt::job {

/// The store of a job of one rank, which opens no socket: same calls and errors as store::Client.
/// Any thread.
class LocalStore {
 public:
  Status set(const std::string& key, const std::string& value, const Wait& wait);
  Result<std::string> get(const std::string& key, const Wait& wait);
  Result<int64_t> add(const std::string& key, int64_t delta, const Wait& wait);
  Status wait_for(const std::vector<std::string>& keys, const Wait& wait);
  Result<store::Swap> compare_set(const std::string& key,
                                  const std::optional<std::string>& expected,
                                  const std::string& desired, const Wait& wait);
  Result<bool> erase(const std::string& key, const Wait& wait);
  Result<std::vector<std::string>> list(const std::string& prefix, const Wait& wait);
  Result<std::vector<std::optional<std::string>>> multi_get(const std::vector<std::string>& keys,
                                                            const Wait& wait);
  Status multi_set(const std::vector<std::pair<std::string, std::string>>& pairs, const Wait& wait);
  Status barrier(const std::string& name, int32_t count, const Wait& wait);

  /// Every blocked and later call fails with `status`.
  void close(const Status& status);

 private:
  struct Barrier {
    int32_t arrived = 0;
    uint64_t round = 0;  // moves when the barrier opens
  };

  /// Waits under the lock until `condition` holds; at the deadline TIMEOUT with `what` in the text.
  template <class Condition, class What>
  Status until(std::unique_lock<std::mutex>& lock, const Wait& wait, Condition condition,
               What what);
  void put(const std::string& key, std::string value);

  std::mutex mutex_;
  std::condition_variable changed_;  // under mutex_: a key or a barrier moved
  std::map<std::string, std::string> values_;
  std::map<std::string, Barrier> barriers_;
  Status closed_;
};

}  // namespace dt::job
