// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <utility>

namespace dt {

/// A value that can be reached only while its mutex is held.
///
///     guarded.with([](State& state) { ... });
///
/// Lock order, outermost first (a thread that holds one may take only those to its right):
///   handle table slot < job < communicator progress < communicator queue < reducer < arena < pool
///   < log.
/// No lock is held while calling out: user callbacks, I/O, waits.
template <class T>
class Guarded {
 public:
  Guarded() = default;
  explicit Guarded(T value) : value_(std::move(value)) {}
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  template <class F>
  decltype(auto) with(F&& function) {
    std::lock_guard lock(mutex_);
    return std::forward<F>(function)(value_);
  }
  template <class F>
  decltype(auto) with(F&& function) const {
    std::lock_guard lock(mutex_);
    return std::forward<F>(function)(static_cast<const T&>(value_));
  }
  /// False: somebody has the mutex; nothing was called.
  template <class F>
  bool try_with(F&& function) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock.owns_lock()) std::forward<F>(function)(value_);
    return lock.owns_lock();
  }

 private:
  mutable std::mutex mutex_;
  T value_{};
};

}  // namespace dt
