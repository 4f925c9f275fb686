// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/kinds.h"
#include "base/status.h"
#include "base/wait.h"
#include "cuda/runtime.h"
#include "record/recorder.h"

namespace dt::collective {

using dt::Kind;

/// What an operation on a device does beside itself, in the order of the communicator's stream.
/// With it the operation knows no stream of the caller, who has refused those that record a graph.
struct StreamSteps {
  /// Recorded before the operation was submitted: it waits for them, and not for what else its
  /// stream holds.
  std::vector<cuda::Event> after;
  cuda::Event began = nullptr;  ///< recorded behind `after`; null: none
  /// Enqueues what makes the input ready, and what uses the result. On the device thread; may
  /// neither block nor allocate.
  std::function<Status(cuda::Stream)> before;
  std::function<Status(cuda::Stream)> behind;
  cuda::Event ended = nullptr;  ///< recorded last; null: none
};

struct Blocks;  // collective/blocks.h

/// One operation as the caller described it. Arguments are checked before a backend sees it.
struct Collective {
  Kind kind = Kind::kBarrier;
  Dtype dtype = Dtype::kU8;
  ReduceOp op = ReduceOp::kSum;
  Combine custom;              ///< of op kCustom, in host memory; dtype is kU8 then
  int32_t root = 0;            ///< of those that have one; the peer of send and recv
  int32_t tag = 0;             ///< of the others: what ranks must agree on besides, < 2^20
  const void* send = nullptr;  ///< borrowed until completion
  void* recv = nullptr;        ///< borrowed until completion
  /// Elements, as in dt.h: per rank's contribution for allgather and gather, per rank's result for
  /// reduce_scatter and scatter, per pair of ranks for alltoall, of the whole buffer for the
  /// others.
  int64_t count = 0;
  /// What the average divides by; 0: the communicator's size. Set for a part of a larger one, to
  /// the same on all ranks.
  int32_t divisor = 0;
  /// Of alltoallv, gatherv, scatterv, allgatherv and reduce_scatterv: what goes where. Null for the
  /// others.
  std::shared_ptr<const Blocks> blocks;
  /// What produces `send` and uses `recv`, on a device communicator; elsewhere ignored.
  cuda::Stream stream = nullptr;
  std::shared_ptr<const StreamSteps> steps;  ///< of a device communicator; null: none
  bool caller_waits = false;                 ///< waits for the work as soon as it is submitted
  int64_t timeout_ms = 0;                 ///< the caller's; 0: as its communicator says; < 0: none
  Deadline deadline = Deadline::never();  ///< set by the communicator, unless:
  bool has_deadline = false;              ///< the caller set it, one for several operations
  record::Mark mark;  ///< of the flight recorder; set by the communicator, none: not recorded
  std::string name;   ///< label for messages ("bucket 3"), may be empty
  /// Set: this rank takes part but has nothing to give, and why ("no gradient for #3 fc.bias").
  /// The operation then fails on every rank of the communicator with INVALID_STATE and the texts of
  /// all withholding ranks, moves no data, and leaves the communicator usable.
  std::shared_ptr<const std::string> withheld;

  int64_t element_bytes() const {
    return op == ReduceOp::kCustom ? custom.element_bytes : dtype_bytes(dtype);
  }
  bool is_transfer() const { return dt::is_transfer(kind); }
};

}  // namespace dt::collective
