// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dt/dt.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "base/wait.h"
#include "cli/bench/method.h"
#include "cuda/runtime.h"

namespace dt::cli::bench {

/// Of one operation on this rank, in microseconds.
struct Times {
  double us = 0;       ///< what the table shows: by CUDA's events, or as `wall_us`
  double wall_us = 0;  ///< by the host's clock
};

/// Where the data of a case lie, and what follows from that: how they are filled, compared and
/// timed. One thread.
class Buffers {
 public:
  virtual ~Buffers() = default;
  /// Sets the case's areas.
  virtual void place(bench_case* c) const = 0;
  /// bench_prepare(), bench_wrong() and bench_rewrite() of method.h.
  virtual Status prepare(const bench_case& c) = 0;
  virtual Result<int64_t> wrong(const bench_case& c) = 0;
  virtual Status rewrite(const bench_case& c) = 0;
  /// One operation, done when this returns.
  virtual Status operate(const bench_case& c) = 0;
  /// `bytes`: of the case.
  virtual Result<Times> time(const bench_case& c, int64_t iterations, int64_t bytes) = 0;
  /// Over all ranks; of 8 bytes.
  virtual Status combine(void* value, dt_dtype dtype, dt_reduce_op op) = 0;
  /// Returns when all ranks are there.
  virtual Status barrier() = 0;
};

/// `shared`: of dt_mem_alloc(), else the program's own. `bytes`: of the largest case.
Result<std::unique_ptr<Buffers>> make_host_buffers(dt_comm* comm, int64_t bytes, bool shared);
/// The same on the GPU of the communicator. No wait is longer than until `deadline`.
Result<std::unique_ptr<Buffers>> make_device_buffers(dt_comm* comm,
                                                     std::shared_ptr<cuda::Runtime> gpu,
                                                     int64_t bytes, bool shared, Deadline deadline);

/// The GPU that the communicator uses.
Result<std::shared_ptr<cuda::Runtime>> gpu_of(dt_comm* comm);

/// A call of dt's as a status.
Status check(dt_status status);
/// The case's collective. On a host communicator it is done when this returns, else enqueued.
dt_status start(dt_comm* comm, const bench_case& c, dt_stream stream);

inline constexpr int64_t kTailBytes = 64;  ///< areas are never empty

}  // namespace dt::cli::bench
