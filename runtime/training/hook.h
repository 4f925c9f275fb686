// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "backend/work.h"
#include "base/dtype.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "cuda/runtime.h"

namespace dt::training {

/// A full bucket, as a hook sees it.
struct HookBucket {
  int32_t index = 0;  ///< in launch order
  bool last = false;
  std::span<const int32_t> params;
  std::span<const int64_t> starts;  ///< of each of these, in elements of `data`
  void* data = nullptr;
  int64_t count = 0;  ///< elements, with padding
  Dtype dtype = Dtype::kF32;
  cuda::Stream stream = nullptr;  ///< on GPUs: where the gradients are complete
};

/// What a hook has started. Nothing: it is done.
struct HookWork {
  std::shared_ptr<comm::Communicator> comm;
  std::shared_ptr<backend::Work> work;
};

/// Reduces a bucket in the reducer's place: called at stage 0 when the bucket is launched, and with
/// the next stage whenever the work it gave is done, in finish(), until it gives none; all buckets
/// of a stage in launch order. `data` then holds the result.
using Hook = std::function<Result<HookWork>(const HookBucket& bucket, int32_t stage)>;

}  // namespace dt::training
