// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/status.h"

namespace dt::cuda {

/// While it lives, the calling thread works on one device; afterwards it is as it was before. By
/// the driver's stack of contexts and not by cudaSetDevice: setting the host program's device back
/// would make a context there if it had none yet, which costs hundreds of megabytes on that GPU.
///
/// Also lets the thread query and allocate while another one records a graph.
class DeviceScope {
 public:
  explicit DeviceScope(int32_t device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  /// Not ok: the device is not selected, and nothing may be done. INVALID_STATE in a forked child.
  const Status& status() const { return status_; }

 private:
  Status status_;
  bool pushed_ = false;
  int capture_mode_ = 0;  ///< cudaStreamCaptureMode to be set back
};

}  // namespace dt::cuda
