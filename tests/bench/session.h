// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dt/dt.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "cuda/runtime.h"

namespace dt::test {

/// What a benchmark or a test program needs as a rank of a job: over GPU memory, or over host
/// memory, which needs no GPU and lets the program itself be tested. A call that fails ends the
/// program with dt's message and exit code 1, but where a Status is returned.
class Session {
 public:
  /// Joins the job that started the process. Ends the program with 77 where `cuda` and there is no
  /// GPU, and after `limit_s` seconds whatever it does.
  static std::unique_ptr<Session> join(const char* program, bool cuda, unsigned limit_s);
  /// Of a job that is there already. `gpu`: null over host memory.
  Session(dt_job* job, dt_comm* comm, std::shared_ptr<cuda::Runtime> gpu);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  /// dt_finalize().
  void leave();

  dt_job* job() const { return job_; }
  dt_comm* comm() const { return comm_; }
  const dt_place& place() const { return place_; }
  int rank() const { return place_.rank; }
  int ranks() const { return place_.world_size; }
  /// Null over host memory, as the stream.
  const std::shared_ptr<cuda::Runtime>& gpu() const { return gpu_; }
  cuda::Stream stream() const { return stream_; }

  /// Of dt_mem_alloc(); goes with this object.
  void* memory(int64_t bytes);
  void write(void* to, const void* from, int64_t bytes);
  void read(void* to, const void* from, int64_t bytes);

  /// Until the stream is idle and the communicator is known to be whole. TIMEOUT after a minute.
  Status finish();
  void barrier();
  /// Of one number of each rank.
  double combine(double value, dt_reduce_op op);
  /// Passes what rank 0 has to all, through the store.
  std::string spread(const std::string& name, const std::string& of_rank_0);

 private:
  dt_job* const job_;
  dt_comm* const comm_;
  const std::shared_ptr<cuda::Runtime> gpu_;
  dt_place place_;
  cuda::Stream stream_ = nullptr;
  cuda::Event end_ = nullptr;
  std::vector<void*> memory_;
  void* scratch_ = nullptr;
  bool owns_ = false;
};

/// A call of dt's as a status.
Status status_of(dt_status status);
/// Ends the program with the message unless it is ok.
void need(const Status& status);
void need(dt_status status);

/// Of a series of samples.
struct Figures {
  double median = 0;
  double min = 0;
  double max = 0;
  double p99 = 0;
};
/// Zeros for no values.
Figures figures(std::vector<double> values);

/// Microseconds of the monotonic clock.
double now_us();

}  // namespace dt::test
