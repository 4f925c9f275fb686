// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/device/ledger.h"
#include "base/log.h"
#include "base/status.h"
#include "base/wait.h"
#include "config/config.h"
#include "cuda/runtime.h"
#include "kernels/cuda/tensors.h"
#include "launch/discover.h"

namespace dt::job {

/// Where a job finds GPUs: the machine's, or in tests others.
struct Devices {
  std::function<cuda::Answers()> ask = cuda::ask;
  std::function<Result<std::shared_ptr<cuda::Runtime>>(int32_t index)> open = cuda::open_device;
  std::function<Result<std::shared_ptr<kernels::TensorKernels>>(std::shared_ptr<cuda::Runtime>)>
      kernels = kernels::cuda_tensor_kernels;
  /// Where a call of CUDA or NCCL hangs and watchdog.exit says so.
  std::function<void()> end_process = [] { _exit(1); };
};

/// What a rank tells the others of its GPU.
struct DeviceCard {
  std::string host;
  int64_t pid = 0;
  Status problem;      ///< why it has no GPU
  std::string uuid;    ///< of the GPU
  std::string device;  ///< "NVIDIA H100 80GB HBM3 at 0000:17:00.0"
  int32_t nccl_version = 0;
  Status nccl_problem;    ///< why it has no NCCL
  std::string nccl_host;  ///< its NCCL_HOSTID, by which NCCL takes ranks of one host for several
};

enum class DeviceKind { kNccl, kStaged };
/// By rank. The first rank without a GPU is the error of all; ranks that hold the same GPU are
/// staged through the host where `share`, else CONFIG with both, unless NCCL takes them for ranks
/// of different hosts, as in tests on one GPU; then NCCL must be there, in one version.
Result<DeviceKind> judge(const std::vector<DeviceCard>& cards, bool share);

/// Which device a rank takes: backend.device, else its local rank. CONFIG, with both numbers, where
/// there are fewer devices than ranks of the host and these may not share.
Result<int32_t> choose_device(int32_t wanted, int32_t local_rank, int32_t local_size,
                              int32_t device_count, bool share);

/// Whether the settings ask for GPUs at all.
bool wants_device(const Config& config);

struct DeviceWorldOptions {
  std::string name;  ///< of the communicator
  launch::Place place;
  std::string host_name;
  std::shared_ptr<backend::Backend> on_host;  ///< of the same ranks
  Devices devices;
  LoggerPtr logger;
  std::function<void(const std::string& communicator, const Status&)> on_broken;
  /// Shows the peers of this host what was called last; must not block. May be null.
  std::function<void(backend::Kind, int64_t sequence, const std::string& name)> note_last;
  /// Gets the ledgers of communicators whose operations the control plane compares.
  std::shared_ptr<backend::OrderBook> order_book;
};

/// watchdog.check.
backend::Check check_of(const Config& config);

/// The communicator of all ranks over their GPUs. Collective: either all ranks get it, or all the
/// same error.
Result<std::shared_ptr<backend::Backend>> make_device_world(const Config& config,
                                                            DeviceWorldOptions options,
                                                            const Wait& wait);

}  // namespace dt::job
