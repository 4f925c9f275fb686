// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dt/dt.h>

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "cuda/runtime.h"

namespace dt::cli::bench {

/// What carries the collectives between GPUs.
struct Gpus {
  std::shared_ptr<cuda::Runtime> own;
  // of rank 0
  std::string backend;             ///< "nccl", "staged"
  std::vector<std::string> lines;  ///< "rank 0: NVIDIA H100 at 0000:17:00.0 on node1"; not all
};

/// Collective.
Result<Gpus> look_at_gpus(dt_job* job, dt_comm* comm, const dt_place& place);

/// Of what the ranks' GPUs are ("GPU-8f2c...", by rank): staged where two hold the same one and
/// these do not count as hosts of their own to NCCL.
std::string backend_of(const std::vector<std::string>& uuids);

}  // namespace dt::cli::bench
