// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "cli/bench/worker/buffers.h"

namespace dt::cli::bench {
namespace {

/// Memory that a case sends from or receives into.
class Area {
 public:
  static Result<Area> create(dt_comm* comm, int64_t bytes, bool shared) {
    Area area;
    area.bytes_ = static_cast<size_t>(bytes + kTailBytes);
    if (shared) {
      DT_TRY(check(dt_mem_alloc(comm, bytes + kTailBytes, &area.memory_)));
      area.comm_ = comm;
      return area;
    }
    void* const memory =
        mmap(nullptr, area.bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      return Status(Code::kOutOfMemory, format("cannot get %zu bytes of memory: ", area.bytes_) +
                                            errno_text(errno) + "; choose a smaller -e");
    }
    area.memory_ = memory;
    return area;
  }
  Area(Area&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_), comm_(other.comm_) {}
  Area(const Area&) = delete;
  Area& operator=(const Area&) = delete;
  ~Area() {
    if (memory_ == nullptr) return;
    if (comm_ != nullptr) {
      dt_mem_free(comm_, memory_);
    } else {
      munmap(memory_, bytes_);
    }
  }

  char* data() const { return static_cast<char*>(memory_); }

 private:
  Area() = default;

  void* memory_ = nullptr;
  size_t bytes_ = 0;
  dt_comm* comm_ = nullptr;  // borrowed; NULL: private memory
};

class HostBuffers final : public Buffers {
 public:
  HostBuffers(dt_comm* comm, Area a, Area b) : comm_(comm), a_(std::move(a)), b_(std::move(b)) {}

  void place(bench_case* c) const override {
    c->a = a_.data();
    c->b = b_.data();
  }
  Status prepare(const bench_case& c) override {
    bench_prepare(&c);
    return {};
  }
  Result<int64_t> wrong(const bench_case& c) override { return bench_wrong(&c); }
  Status rewrite(const bench_case& c) override {
    bench_rewrite(&c);
    return {};
  }
  Status operate(const bench_case& c) override { return check(start(comm_, c, nullptr)); }
  Result<Times> time(const bench_case& c, int64_t iterations, int64_t bytes) override {
    double total = 0;
    dt_status status = DT_OK;
    if (bytes < BENCH_FRESH_BYTES) {
      DT_TRY(barrier());
      const double begin = bench_now_us();
      for (int64_t i = 0; i < iterations && status == DT_OK; ++i) status = start(comm_, c, nullptr);
      total = bench_now_us() - begin;
    } else {
      for (int64_t i = 0; i < iterations && status == DT_OK; ++i) {
        bench_rewrite(&c);
        DT_TRY(barrier());
        const double begin = bench_now_us();
        status = start(comm_, c, nullptr);
        total += bench_now_us() - begin;
      }
    }
    DT_TRY(check(status));
    const double us = bench_per_operation_us(&c, total, iterations);
    return Times{us, us};
  }
  Status combine(void* value, dt_dtype dtype, dt_reduce_op op) override {
    return check(dt_allreduce(comm_, value, value, 1, dtype, op, nullptr, nullptr));
  }
  Status barrier() override { return check(dt_barrier(comm_, nullptr, nullptr)); }

 private:
  dt_comm* const comm_;  // borrowed
  const Area a_;
  const Area b_;
};

}  // namespace

Result<std::unique_ptr<Buffers>> make_host_buffers(dt_comm* comm, int64_t bytes, bool shared) {
  DT_TRY_VALUE(Area a, Area::create(comm, bytes, shared));
  DT_TRY_VALUE(Area b, Area::create(comm, bytes, shared));
  return std::unique_ptr<Buffers>(new HostBuffers(comm, std::move(a), std::move(b)));
}

Status check(dt_status status) {
  if (status == DT_OK) return {};
  return Status(static_cast<Code>(status), dt_last_error());
}

namespace {

/// Around the ring. A single rank sends to itself, which is an alltoall.
dt_status start_neighbours(dt_comm* comm, const bench_case& c, dt_stream stream) {
  const auto dtype = static_cast<dt_dtype>(c.dtype);
  const int next = (c.rank + 1) % c.ranks;
  const int before = (c.rank + c.ranks - 1) % c.ranks;
  const auto send = [&] { return dt_send(comm, c.a, c.count, dtype, next, stream, nullptr); };
  const auto receive = [&] { return dt_recv(comm, c.b, c.count, dtype, before, stream, nullptr); };
  if (c.ranks == 1) return dt_alltoall(comm, c.a, c.b, c.count, dtype, stream, nullptr);
  dt_status status = DT_OK;
  if (c.collective == BENCH_PINGPONG) {
    status = c.rank == 0 ? send() : receive();
    return status != DT_OK ? status : c.rank == 0 ? receive() : send();
  }
  if (status = dt_group_begin(comm); status != DT_OK) return status;
  status = send();
  if (status == DT_OK) status = receive();
  const dt_status ended = dt_group_end(comm, nullptr);
  return status != DT_OK ? status : ended;
}

}  // namespace

dt_status start(dt_comm* comm, const bench_case& c, dt_stream stream) {
  const auto dtype = static_cast<dt_dtype>(c.dtype);
  const auto op = static_cast<dt_reduce_op>(c.op);
  char* const send = bench_send(&c);
  char* const recv = bench_recv(&c);
  switch (c.collective) {
    case BENCH_ALLREDUCE:
      return dt_allreduce(comm, send, recv, c.count, dtype, op, stream, nullptr);
    case BENCH_ALLGATHER:  // recv is the whole result in place as well
      return dt_allgather(comm, send, c.b, c.count, dtype, stream, nullptr);
    case BENCH_REDUCE_SCATTER:
      return dt_reduce_scatter(comm, send, recv, c.count, dtype, op, stream, nullptr);
    case BENCH_BROADCAST: return dt_broadcast(comm, recv, c.count, dtype, 0, stream, nullptr);
    case BENCH_ALLTOALL: return dt_alltoall(comm, send, recv, c.count, dtype, stream, nullptr);
    case BENCH_GATHER:
      return dt_gather(comm, send, c.rank == 0 ? recv : nullptr, c.count, dtype, 0, stream,
                       nullptr);
    case BENCH_SCATTER:
      return dt_scatter(comm, c.rank == 0 ? send : nullptr, recv, c.count, dtype, 0, stream,
                        nullptr);
    case BENCH_BARRIER: return dt_barrier(comm, stream, nullptr);
    case BENCH_ALLTOALLV:
      return dt_alltoallv(comm, send, c.counts, nullptr, recv, c.counts, nullptr, dtype, stream,
                          nullptr);
    case BENCH_ALLGATHERV:
      return dt_allgatherv(comm, send, recv, c.counts, nullptr, dtype, stream, nullptr);
    case BENCH_SENDRECV:
    case BENCH_PINGPONG: return start_neighbours(comm, c, stream);
    default: return dt_reduce(comm, send, recv, c.count, dtype, op, 0, stream, nullptr);
  }
}

}  // namespace dt::cli::bench
