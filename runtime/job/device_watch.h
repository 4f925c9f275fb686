// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "base/log.h"
#include "net/loop.h"

namespace dt::job {

/// Looks after the device of a job now and then, so that an operation which hangs in a call of the
/// device's libraries fails also where the program only polls its work; and tells of a call that
/// hangs with a broken communicator, after which the process has no use of its GPU.
class DeviceWatch {
 public:
  struct Options {
    std::string self;  ///< "rank 3 (node7 pid 123)"
    int64_t abort_timeout_ms = 0;
    std::function<void()> end_process;  ///< then; null: it is only told
    LoggerPtr logger;
  };
  /// Loop and backend outlive it.
  DeviceWatch(net::Loop* loop, backend::Backend* backend, Options options);
  /// No look is under way after it returns. Not on the loop's thread.
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

 private:
  void look();
  void tell_of_hang(const Status& reason);

  net::Loop* const loop_;
  backend::Backend* const backend_;
  const Options options_;
  std::unique_ptr<net::Timer> timer_;  // loop's thread only
  bool told_ = false;                  // loop's thread only
};

}  // namespace dt::job
