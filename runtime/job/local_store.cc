// SPDX-License-Identifier: Apache-2.0
#include "job/local_store.h"

#include <charconv>
#include <chrono>

namespace dt::job {
namespace {

// The caller's interrupt rings no condition variable: look at it this often.
constexpr int64_t kPollMs = 20;

std::string absent_text(const std::map<std::string, std::string>& values,
                        const std::vector<std::string>& keys) {
  std::string text;
  for (const std::string& key : keys) {
    if (values.count(key) != 0) continue;
    text += format("%s\"%s\"", text.empty() ? "" : ", ", key.c_str());
  }
  return text;
}

}  // namespace

template <class Condition, class What>
Status LocalStore::until(std::unique_lock<std::mutex>& lock, const Wait& wait, Condition condition,
                         What what) {
  for (;;) {
    DT_TRY(closed_);
    if (condition()) return {};
    if (wait.interrupted()) return wait.interrupt->status();
    if (wait.deadline.passed()) {
      return Status(Code::kTimeout, format("store: %s did not come in time, and no other rank "
                                           "exists that could set it",
                                           what().c_str()));
    }
    changed_.wait_for(lock,
                      std::chrono::milliseconds(std::min(wait.deadline.remaining_ms(), kPollMs)));
  }
}

void LocalStore::put(const std::string& key, std::string value) {
  values_[key] = std::move(value);
  changed_.notify_all();
}

Status LocalStore::set(const std::string& key, const std::string& value, const Wait&) {
  std::lock_guard lock(mutex_);
  DT_TRY(closed_);
  put(key, value);
  return {};
}

/// Under one lock: between the key's coming and the reading nobody can delete it.
Result<std::string> LocalStore::get(const std::string& key, const Wait& wait) {
  std::unique_lock lock(mutex_);
  auto found = values_.end();
  const auto is_there = [&] {
    found = values_.find(key);
    return found != values_.end();
  };
  DT_TRY(until(lock, wait, is_there, [&] { return absent_text(values_, {key}); }));
  return found->second;
}

Result<int64_t> LocalStore::add(const std::string& key, int64_t delta, const Wait&) {
  std::lock_guard lock(mutex_);
  DT_TRY(closed_);
  int64_t value = 0;
  if (const auto found = values_.find(key); found != values_.end()) {
    const std::string& text = found->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      return Status(Code::kInvalidArgument,
                    format("store: the value of \"%s\" is no decimal number", key.c_str()));
    }
  }
  if (__builtin_add_overflow(value, delta, &value)) {
    return Status(Code::kInvalidArgument, format("store: adding to \"%s\" overflows", key.c_str()));
  }
  put(key, std::to_string(value));
  return value;
}

Status LocalStore::wait_for(const std::vector<std::string>& keys, const Wait& wait) {
  std::unique_lock lock(mutex_);
  return until(
      lock, wait, [&] { return absent_text(values_, keys).empty(); },
      [&] { return absent_text(values_, keys); });
}

Result<store::Swap> LocalStore::compare_set(const std::string& key,
                                            const std::optional<std::string>& expected,
                                            const std::string& desired, const Wait&) {
  std::lock_guard lock(mutex_);
  DT_TRY(closed_);
  const auto found = values_.find(key);
  store::Swap swap;
  if (found != values_.end()) swap.current = found->second;
  swap.swapped = swap.current == expected;
  if (swap.swapped) {
    put(key, desired);
    swap.current = desired;
  }
  return swap;
}

Result<bool> LocalStore::erase(const std::string& key, const Wait&) {
  std::lock_guard lock(mutex_);
  DT_TRY(closed_);
  return values_.erase(key) != 0;
}

Result<std::vector<std::string>> LocalStore::list(const std::string& prefix, const Wait&) {
  std::lock_guard lock(mutex_);
  DT_TRY(closed_);
  std::vector<std::string> keys;
  for (auto it = values_.lower_bound(prefix);
       it != values_.end() && it->first.compare(0, prefix.size(), prefix) == 0; ++it) {
    keys.push_back(it->first);
  }
  return keys;
}

Result<std::vector<std::optional<std::string>>> LocalStore::multi_get(
    const std::vector<std::string>& keys, const Wait&) {
  std::lock_guard lock(mutex_);
  DT_TRY(closed_);
  std::vector<std::optional<std::string>> values;
  for (const std::string& key : keys) {
    const auto found = values_.find(key);
    values.push_back(found == values_.end() ? std::nullopt : std::optional(found->second));
  }
  return values;
}

Status LocalStore::multi_set(const std::vector<std::pair<std::string, std::string>>& pairs,
                             const Wait&) {
  std::lock_guard lock(mutex_);
  DT_TRY(closed_);
  for (const auto& [key, value] : pairs) values_[key] = value;
  changed_.notify_all();
  return {};
}

Status LocalStore::barrier(const std::string& name, int32_t count, const Wait& wait) {
  std::unique_lock lock(mutex_);
  DT_TRY(closed_);
  Barrier& barrier = barriers_[name];  // map nodes do not move
  const uint64_t round = barrier.round;
  if (++barrier.arrived >= count) {
    barrier.arrived = 0;
    ++barrier.round;
    changed_.notify_all();
    return {};
  }
  const Status status = until(
      lock, wait, [&] { return barrier.round != round; },
      [&] {
        return format("barrier \"%s\": %d of %d callers; the others", name.c_str(), barrier.arrived,
                      count);
      });
  if (!status.ok() && barrier.round == round) --barrier.arrived;
  return status;
}

void LocalStore::close(const Status& status) {
  std::lock_guard lock(mutex_);
  if (closed_.ok()) closed_ = status;
  changed_.notify_all();
}

}  // namespace dt::job
