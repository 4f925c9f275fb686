// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/device/carrier.h"
#include "backend/device/engine.h"
#include "backend/device/ledger.h"
#include "kernels/cuda/tensors.h"

namespace dt::backend {

/// A communicator over device memory: operations are ordered by CUDA streams, and carried out by a
/// Carrier on the device thread.
struct DeviceOptions {
  std::string name;  ///< of the communicator
  int32_t rank = 0;
  int32_t size = 1;
  std::string self;  ///< "rank 3 (node7)", for messages
  int32_t world_rank = 0;
  std::string host;  ///< its name, for messages
  /// When operations are compared between ranks. Carriers over host memory need it not: what they
  /// do there is.
  Check check = Check::kOff;
  std::shared_ptr<OrderBook> order_book;  ///< with Check::kLazy: whose ledgers are told to others
  std::shared_ptr<DeviceEngine> engine;
  /// The same ranks over host memory: meets, agrees, and splits.
  std::shared_ptr<Backend> on_host;
  std::shared_ptr<kernels::TensorKernels> kernels;
  /// A communicator takes no longer to make, whatever the caller's deadline.
  int64_t open_timeout_ms = -1;
  /// The carriers' operations go over host memory: each gets a communicator there for itself.
  bool carries_on_host = false;
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
  /// Shows the peers of this host what was called last; must not block. May be null.
  std::function<void(Kind, int64_t sequence, const std::string& name)> note_last;
  const char* backend_name = "nccl";
};

/// Runs it on a communicator over host memory, which `interrupt` (may be null) breaks.
Status run_on_host(Backend& on_host, const Collective& collective, const Interrupt* interrupt);

/// Collective over the ranks of on_host: all make it, or none; the error names the rank that could
/// not.
Result<std::shared_ptr<Backend>> create_device_backend(DeviceOptions options, const Wait& wait);

}  // namespace dt::backend
