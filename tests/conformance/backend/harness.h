// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/host/host.h"
#include "fake_cuda.h"

namespace conformance {

using dt::Code;
using dt::Deadline;
using dt::Dtype;
using dt::ReduceOp;
using dt::Status;
using dt::Wait;
using dt::backend::Backend;
using dt::backend::Collective;
using dt::backend::Kind;
using dt::backend::Work;

/// What one rank (a thread) sees. Failed expectations are collected, the test case reports them.
struct Rank {
  int32_t rank = 0;
  int32_t size = 1;
  std::shared_ptr<Backend> backend;
  std::shared_ptr<dt::test::FakeCuda> cuda;  ///< of "nccl" and "staged"
  std::vector<std::string>* failures = nullptr;
  std::function<void()> meet;  ///< all ranks of the harness come here; not through the backend

  /// Runs an operation to its end: on a device the end of run() is only that of enqueueing.
  Status run(const Collective& collective) const;
  void expect(bool holds, const std::string& what) const;
  void expect_ok(const Status& status, const std::string& what) const;
};

struct Setup {
  /// "self", "host", "multihost", or over a GPU made of threads "nccl" and "staged".
  const char* backend = "host";
  int32_t size = 1;
  std::vector<int32_t> hosts;             ///< of multihost: by rank, the number of its host
  std::vector<int32_t> nodes;             ///< by rank, the NUMA node it pretends; empty: none
  dt::backend::HostEngine::Options host;  ///< thresholds
  std::function<void(const Status&)> on_broken;
  int64_t open_ms = 30'000;  ///< of "nccl" and "staged": to make the communicator
  bool registers = false;    ///< of "nccl": memory by NCCL
  /// The same: it could not be made, on which rank and why. Null: that is a failure.
  std::function<void(int32_t rank, const Status&)> on_not_made;
  /// Of multihost: gets what the control plane calls when it has the failure. Null: it has at once.
  std::function<void(std::function<void()> handed_over)> on_telling;
};

/// Runs `body` on every rank at once; returns what failed.
std::vector<std::string> run_ranks(const Setup& setup, const std::function<void(Rank&)>& body);

/// Where the buffers of an operation lie.
enum class Placement {
  kOrdinary,
  kShared,   ///< memory of Backend::allocate
  kInPlace,  ///< ordinary, send and recv coincide as NCCL defines it
  kInPlaceShared,
  kSendShared,
  kRecvShared,
  kSomeShared,  ///< shared on even ranks, in place on every third
  kMisaligned,  ///< ordinary, one element behind an odd address
};
constexpr Placement kPlacements[] = {Placement::kOrdinary,   Placement::kShared,
                                     Placement::kInPlace,    Placement::kInPlaceShared,
                                     Placement::kSendShared, Placement::kRecvShared,
                                     Placement::kSomeShared, Placement::kMisaligned};

/// Runs one collective on a pattern in which every rank and index differs and compares every
/// element with a plain loop.
void check_collective(const Rank& rank, Kind kind, Dtype dtype, ReduceOp op, int64_t count,
                      int32_t root, Placement placement);

double decode(Dtype dtype, const void* data, int64_t index);
void encode(Dtype dtype, void* data, int64_t index, double value);

Collective allreduce_f32(const float* send, float* recv, int64_t count);

}  // namespace conformance
