// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/device/carrier.h"
#include "backend/device/engine.h"
#include "kernels/cuda/tensors.h"

namespace dt::backend {

/// A communicator over device memory: operations are ordered by CUDA streams, and carried out by a
/// Carrier on the device thread.
struct DeviceOptions {
  std::string name;  ///< of the communicator
  int32_t rank = 0;
  int32_t size = 1;
  std::string self;  ///< "rank 3 (node7)", for messages
  std::shared_ptr<DeviceEngine> engine;
  /// The same ranks over host memory: meets, agrees, and splits.
  std::shared_ptr<Backend> on_host;
  std::shared_ptr<kernels::TensorKernels> kernels;
  /// Makes the carrier of this communicator, and of those split from it: rank, size, and its
  /// own on_host.
  struct Seat {
    std::string name;
    int32_t rank = 0;
    int32_t size = 1;
    std::shared_ptr<Backend> on_host;
  };
  std::function<std::shared_ptr<Carrier>(const Seat&)> make_carrier;
  std::function<void(const std::string& communicator, const Status&)> on_broken;
  const char* backend_name = "nccl";
};

/// Collective over the ranks of on_host: all make it, or none; the error names the rank that could
/// not.
Result<std::shared_ptr<Backend>> create_device_backend(DeviceOptions options, const Wait& wait);

}  // namespace dt::backend
