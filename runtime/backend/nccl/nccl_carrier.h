// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/device/carrier.h"
#include "backend/device/engine.h"
#include "backend/nccl/library.h"
#include "kernels/cuda/tensors.h"

namespace dt::backend {

/// Operations by NCCL: a non-blocking communicator, polled under each operation's deadline, so that
/// it can be aborted at any time. With one rank nothing is asked of NCCL: copies only.
struct NcclOptions {
  std::string name;
  int32_t rank = 0;
  int32_t size = 1;
  std::shared_ptr<Backend> on_host;              ///< of the same ranks: carries NCCL's unique id
  std::shared_ptr<const nccl::Library> library;  ///< null where size is 1
  nccl::Config config;                           ///< without commName and blocking
  std::shared_ptr<kernels::TensorKernels> kernels;
  std::shared_ptr<const void> config_strings;  ///< holds what `config` points to
  bool register_memory = false;                ///< allocate by NCCL, and register it
};

std::shared_ptr<Carrier> make_nccl_carrier(std::shared_ptr<DeviceThread> device,
                                           NcclOptions options);

}  // namespace dt::backend
