// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "base/wait.h"
#include "cuda/runtime.h"

namespace dt::backend {

/// The events of one operation on a device.
///
/// `ready` is recorded by the caller on its stream before the operation is queued, `done` by the
/// device thread behind the operation. CUDA lets a stream pass an event that was never recorded, so
/// nobody may touch `done` before `enqueued` is set: that store publishes the record.
struct Launch {
  cuda::Event ready = nullptr;
  cuda::Event done = nullptr;
  std::atomic<bool> enqueued{false};
  Doorbell bell;  ///< rung when enqueued, or when the work is done without
};

}  // namespace dt::backend
