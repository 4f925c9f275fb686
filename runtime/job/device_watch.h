// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "backend/backend.h"
#include "net/loop.h"

namespace dt::job {

/// Looks after the device of a job now and then, so that an operation which hangs in a call of the
/// device's libraries fails also where the program only polls its work.
class DeviceWatch {
 public:
  /// Both outlive it.
  DeviceWatch(net::Loop* loop, backend::Backend* backend);
  /// No look is under way after it returns. Not on the loop's thread.
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

 private:
  void look();

  net::Loop* const loop_;
  backend::Backend* const backend_;
  std::unique_ptr<net::Timer> timer_;  // loop's thread only
};

}  // namespace dt::job
