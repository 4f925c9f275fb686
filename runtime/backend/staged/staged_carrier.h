// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/device/carrier.h"
#include "backend/device/engine.h"

namespace dt::backend {

/// Operations on device memory through pinned host memory and the host backend: for ranks that
/// share a GPU, which NCCL refuses. Ordered by streams like NCCL's, and much slower.
struct StagedOptions {
  int32_t rank = 0;
  int32_t size = 1;
  std::shared_ptr<Backend> on_host;  ///< of the same ranks
};

std::shared_ptr<Carrier> make_staged_carrier(std::shared_ptr<DeviceThread> device,
                                             StagedOptions options);

}  // namespace dt::backend
