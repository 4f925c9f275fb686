// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/wait.h"
#include "store/client.h"
#include "store/torch_client.h"
#include "store/torch_service.h"

namespace dt::job {

/// Two stores as one: keys below "torch/" lie in the store that PyTorch serves, the others in dt's.
/// `Own` is a store::Client or a LocalStore. Borrows all it is given.
template <class Own>
class RoutedStore {
 public:
  /// Once `failed` has fired, calls of PyTorch's store end with its status, as those of dt's do.
  RoutedStore(Own* own, store::TorchClient* torch, const Interrupt* failed)
      : own_(*own), torch_(*torch), failed_(failed) {}

  Status set(const std::string& key, const std::string& value, const Wait& wait) {
    return is_torch(key) ? torch_.set(key, value, watched(wait)) : own_.set(key, value, wait);
  }
  Result<std::string> get(const std::string& key, const Wait& wait) {
    return is_torch(key) ? torch_.get(key, watched(wait)) : own_.get(key, wait);
  }
  Result<int64_t> add(const std::string& key, int64_t delta, const Wait& wait) {
    return is_torch(key) ? torch_.add(key, delta, watched(wait)) : own_.add(key, delta, wait);
  }
  Status wait_for(const std::vector<std::string>& keys, const Wait& wait) {
    std::vector<std::string> torch = keys;
    std::vector<std::string> own = keys;
    std::erase_if(torch, [](const std::string& key) { return !is_torch(key); });
    std::erase_if(own, is_torch);
    if (!own.empty()) DT_TRY(own_.wait_for(own, wait));
    return torch.empty() ? Status() : torch_.wait_for(torch, watched(wait));
  }
  Result<store::Swap> compare_set(const std::string& key,
                                  const std::optional<std::string>& expected,
                                  const std::string& desired, const Wait& wait) {
    return is_torch(key) ? torch_.compare_set(key, expected, desired, watched(wait))
                         : own_.compare_set(key, expected, desired, wait);
  }
  Result<bool> erase(const std::string& key, const Wait& wait) {
    return is_torch(key) ? torch_.erase(key, watched(wait)) : own_.erase(key, wait);
  }
  Result<std::vector<std::string>> list(const std::string& prefix, const Wait& wait) {
    return is_torch(prefix) ? torch_.list(prefix, watched(wait)) : own_.list(prefix, wait);
  }
  Result<std::vector<std::optional<std::string>>> multi_get(const std::vector<std::string>& keys,
                                                            const Wait& wait) {
    const auto torch_keys = std::count_if(keys.begin(), keys.end(), is_torch);
    if (torch_keys == 0) return own_.multi_get(keys, wait);
    if (static_cast<size_t>(torch_keys) == keys.size())
      return torch_.multi_get(keys, watched(wait));
    return mixed();
  }
  Status multi_set(const std::vector<std::pair<std::string, std::string>>& pairs,
                   const Wait& wait) {
    const auto torch_keys = std::count_if(pairs.begin(), pairs.end(),
                                          [](const auto& pair) { return is_torch(pair.first); });
    if (torch_keys == 0) return own_.multi_set(pairs, wait);
    if (static_cast<size_t>(torch_keys) == pairs.size()) {
      return torch_.multi_set(pairs, watched(wait));
    }
    return mixed();
  }
  /// Barriers are dt's own, whatever their name.
  Status barrier(const std::string& name, int32_t count, const Wait& wait) {
    return own_.barrier(name, count, wait);
  }

 private:
  static bool is_torch(const std::string& key) { return key.rfind(store::kTorchPrefix, 0) == 0; }
  static Status mixed() {
    return Status(Code::kInvalidArgument,
                  "the keys below \"torch/\" and the others lie in two stores; ask for them in two "
                  "calls");
  }
  Wait watched(const Wait& wait) const { return {wait.deadline, failed_}; }

  Own& own_;
  store::TorchClient& torch_;
  const Interrupt* const failed_;
};

}  // namespace dt::job
