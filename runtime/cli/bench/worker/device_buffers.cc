// SPDX-License-Identifier: Apache-2.0
// On a GPU, as nccl-tests measures: operations run back to back on one stream, timed by events of
// CUDA around all of them and by the host's clock until the stream is idle.
#include <sched.h>

#include <utility>

#include "cli/bench/worker/buffers.h"

namespace dt::cli::bench {
namespace {

constexpr int kScratchBytes = 64;
constexpr int kPollsPerLook = 256;  // between looks at the communicator, which cost a call each

class DeviceBuffers final : public Buffers {
 public:
  DeviceBuffers(dt_comm* comm, std::shared_ptr<cuda::Runtime> gpu, bool shared, Deadline deadline)
      : comm_(comm), gpu_(std::move(gpu)), shared_(shared), deadline_(deadline) {}
  ~DeviceBuffers() override {
    // A GPU that still works on the buffers keeps them: they go with the process.
    if (stream_ != nullptr && !finish().ok()) return;
    for (void* const host : {host_a_, host_b_}) {
      if (host != nullptr) static_cast<void>(gpu_->release_pinned(host));
    }
    release(a_);
    release(b_);
    if (scratch_ != nullptr) dt_mem_free(comm_, scratch_);
    for (const cuda::Event event : {begin_, end_}) {
      if (event != nullptr) static_cast<void>(gpu_->destroy_event(event));
    }
    if (stream_ != nullptr) static_cast<void>(gpu_->destroy_stream(stream_));
  }
  DeviceBuffers(const DeviceBuffers&) = delete;
  DeviceBuffers& operator=(const DeviceBuffers&) = delete;

  Status allocate(int64_t bytes) {
    DT_TRY_VALUE(host_a_, gpu_->allocate_pinned(bytes + kTailBytes));
    DT_TRY_VALUE(host_b_, gpu_->allocate_pinned(bytes + kTailBytes));
    DT_TRY_VALUE(begin_, gpu_->create_event(true));
    DT_TRY_VALUE(end_, gpu_->create_event(true));
    DT_TRY_VALUE(stream_, gpu_->create_stream(cuda::StreamPriority::kNormal));
    DT_TRY(acquire(bytes + kTailBytes, &a_));
    DT_TRY(acquire(bytes + kTailBytes, &b_));
    return check(dt_mem_alloc(comm_, kScratchBytes, &scratch_));
  }

  void place(bench_case* c) const override {
    c->a = static_cast<char*>(a_);
    c->b = static_cast<char*>(b_);
  }
  Status prepare(const bench_case& c) override {
    const bench_case mine = mirror(c);
    bench_prepare(&mine);
    return upload(c);
  }
  Result<int64_t> wrong(const bench_case& c) override {
    const auto bytes = bytes_of(c);
    if (bytes > 0) {
      DT_TRY(gpu_->copy(host_a_, a_, bytes, stream_));
      DT_TRY(gpu_->copy(host_b_, b_, bytes, stream_));
    }
    DT_TRY(finish());
    const bench_case mine = mirror(c);
    return bench_wrong(&mine);
  }
  Status rewrite(const bench_case& c) override {
    const bench_case mine = mirror(c);
    bench_rewrite(&mine);
    return upload(c);
  }
  Status operate(const bench_case& c) override {
    DT_TRY(check(start(comm_, c, stream_)));
    return finish();
  }
  Result<Times> time(const bench_case& c, int64_t iterations, int64_t /*bytes*/) override {
    DT_TRY(barrier());
    dt_status status = DT_OK;
    const double begin = bench_now_us();
    DT_TRY(gpu_->record(begin_, stream_));
    for (int64_t i = 0; i < iterations && status == DT_OK; ++i) status = start(comm_, c, stream_);
    DT_TRY(check(status));
    DT_TRY(finish());
    const double wall_us = bench_now_us() - begin;
    DT_TRY_VALUE(const float ms, gpu_->elapsed_ms(begin_, end_));
    return Times{bench_per_operation_us(&c, static_cast<double>(ms) * 1e3, iterations),
                 bench_per_operation_us(&c, wall_us, iterations)};
  }
  Status combine(void* value, dt_dtype dtype, dt_reduce_op op) override {
    constexpr int64_t kBytes = 8;
    DT_TRY(gpu_->copy(scratch_, value, kBytes, stream_));
    DT_TRY(finish());
    DT_TRY(check(dt_allreduce(comm_, scratch_, scratch_, 1, dtype, op, stream_, nullptr)));
    DT_TRY(gpu_->copy(value, scratch_, kBytes, stream_));
    return finish();
  }
  Status barrier() override {
    DT_TRY(check(dt_barrier(comm_, stream_, nullptr)));
    return finish();
  }

 private:
  Status acquire(int64_t bytes, void** area) {
    if (shared_) return check(dt_mem_alloc(comm_, bytes, area));
    DT_TRY_VALUE(*area, gpu_->allocate(bytes));
    return {};
  }
  void release(void* area) {
    if (area == nullptr) return;
    if (shared_) {
      dt_mem_free(comm_, area);
    } else {
      static_cast<void>(gpu_->release(area));
    }
  }

  static int64_t bytes_of(const bench_case& c) {
    return bench_bytes(c.collective, c.dtype, c.ranks, c.count);
  }
  /// The case in host memory: what method.h fills and compares.
  bench_case mirror(const bench_case& c) {
    bench_case mine = c;
    mine.a = static_cast<char*>(host_a_);
    mine.b = static_cast<char*>(host_b_);
    return mine;
  }
  Status upload(const bench_case& c) {
    const auto bytes = bytes_of(c);
    if (bytes > 0) {
      DT_TRY(gpu_->copy(a_, host_a_, bytes, stream_));
      DT_TRY(gpu_->copy(b_, host_b_, bytes, stream_));
    }
    return finish();
  }

  /// Until the stream is idle: never inside CUDA, where no deadline holds.
  Status finish() {
    DT_TRY(gpu_->record(end_, stream_));
    for (int polls = 1;; ++polls) {
      DT_TRY_VALUE(const bool passed, gpu_->passed(end_));
      if (passed) break;
      if (polls % kPollsPerLook != 0) continue;
      DT_TRY(check(dt_comm_check(comm_)));
      if (deadline_.passed()) {
        return Status(Code::kTimeout,
                      "the GPU is not done before --timeout; raise it, or lower -e");
      }
      sched_yield();
    }
    return check(dt_comm_check(comm_));  // else results are undefined
  }

  dt_comm* const comm_;  // borrowed
  const std::shared_ptr<cuda::Runtime> gpu_;
  const bool shared_;
  const Deadline deadline_;
  void* host_a_ = nullptr;
  void* host_b_ = nullptr;
  void* a_ = nullptr;
  void* b_ = nullptr;
  void* scratch_ = nullptr;
  cuda::Stream stream_ = nullptr;  // null: none yet
  cuda::Event begin_ = nullptr;
  cuda::Event end_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<Buffers>> make_device_buffers(dt_comm* comm,
                                                     std::shared_ptr<cuda::Runtime> gpu,
                                                     int64_t bytes, bool shared,
                                                     Deadline deadline) {
  auto buffers = std::make_unique<DeviceBuffers>(comm, std::move(gpu), shared, deadline);
  DT_TRY(buffers->allocate(bytes));
  return std::unique_ptr<Buffers>(std::move(buffers));
}

Result<std::shared_ptr<cuda::Runtime>> gpu_of(dt_comm* comm) {
  void* memory = nullptr;
  DT_TRY(check(dt_mem_alloc(comm, kScratchBytes, &memory)));
  const auto any = cuda::open_device(0);
  const auto info =
      any.ok() ? any.value()->pointer_info(memory) : Result<cuda::PointerInfo>(any.status());
  dt_mem_free(comm, memory);
  DT_TRY(info.status());
  if (info.value().memory != cuda::Memory::kDevice) {
    return Status(Code::kInternal,
                  "dt_mem_alloc gave no GPU memory on a communicator over GPUs; please report it");
  }
  return cuda::open_device(info.value().device);
}

}  // namespace dt::cli::bench
