// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>
#include <sched.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "fake_cuda.h"
#include "fake_kernels.h"
#include "fake_nccl.h"
#include "job/job.h"
#include "ranks.h"
#include "training/reducer.h"

// Ranks as threads, each with a job of its own over a GPU made of threads.
namespace dt::test {

/// Opened once; whoever waits gives up after a while.
class Gate {
 public:
  void open() { event_->set(); }
  /// `stream` stands still until the gate is open.
  Status hold(FakeCuda& cuda, cuda::Stream stream) {
    return cuda.launch(stream,
                       [event = event_] { (void)event->wait({Deadline::after_ms(30'000)}); });
  }

 private:
  std::shared_ptr<Event> event_ = std::make_shared<Event>();
};

struct GpuRank {
  int rank = 0;
  int size = 1;
  std::shared_ptr<FakeCuda> cuda;
  std::shared_ptr<job::Job> job;
  std::shared_ptr<comm::Communicator> comm;
  std::function<void()> meet;
  std::vector<std::string>* failures = nullptr;
  std::vector<std::shared_ptr<void>>* memory = nullptr;  ///< stays as long as the GPU

  void expect(bool holds, const std::string& what) const {
    if (!holds) failures->push_back(format("rank %d: %s", rank, what.c_str()));
  }
  void expect_ok(const Status& status, const std::string& what) const {
    expect(status.ok(), what + ": " + status.message());
  }
  cuda::Stream new_stream() const {
    return cuda->create_stream(cuda::StreamPriority::kNormal).value();
  }
  /// Waits until the communicator is broken, or for too long.
  Status await_broken() const {
    const Deadline deadline = Deadline::after_ms(20'000);
    while (comm->broken().ok() && !deadline.passed()) sched_yield();
    return comm->broken();
  }
};

/// "nccl", each rank with a GPU, or "staged", all with the same.
struct GpuWorld {
  const char* backend = "nccl";
  int size = 1;
  int64_t timeout_ms = 20'000;  ///< of operations
  const char* check = "lazy";   ///< watchdog.check
  int64_t heartbeat_ms = 0;
  bool ranks_may_disagree = false;  ///< in what they ask of NCCL
};

inline void play_rank(const GpuWorld& world, uint16_t port, GpuRank* self,
                      const std::function<void(GpuRank&)>& body) {
  const bool staged = std::string(world.backend) == "staged";
  Config config;
  const std::pair<const char*, std::string> settings[] = {
      {"job.rank", std::to_string(self->rank)},
      {"job.world_size", std::to_string(self->size)},
      {"job.master_addr", "127.0.0.1"},
      {"job.master_port", std::to_string(port)},
      {"job.store_served", "true"},
      {"backend.name", "nccl"},
      {"backend.shared_gpu", staged ? "host" : "refuse"},
      {"nccl.library", DT_FAKE_NCCL},
      {"rendezvous.timeout_ms", "30000"},
      {"collective.timeout_ms", std::to_string(world.timeout_ms)},
      {"watchdog.check", world.check},
  };
  for (const auto& [key, value] : settings) self->expect_ok(config.set(key, value), key);
  job::Devices devices;
  devices.ask = [gpus = staged ? 1 : world.size] {
    cuda::Answers answers;
    answers.built = true;
    answers.runtime_version = answers.driver_version = 13000;
    answers.device_count = gpus;
    return answers;
  };
  devices.open = [self](int32_t index) -> Result<std::shared_ptr<cuda::Runtime>> {
    self->cuda = std::make_shared<FakeCuda>(index);
    return std::shared_ptr<cuda::Runtime>(self->cuda);
  };
  devices.kernels = [self](std::shared_ptr<cuda::Runtime>) {
    return Result<std::shared_ptr<kernels::TensorKernels>>(fake_tensor_kernels(self->cuda));
  };
  auto job = job::Job::start(config, {}, devices);
  self->expect_ok(job.status(), "job");
  if (!job.ok()) return;
  self->job = std::move(job.value());
  auto comm = self->job->world();
  self->expect_ok(comm.status(), "world");
  if (!comm.ok()) return;
  self->comm = std::move(comm.value());
  body(*self);
  if (self->comm != nullptr && self->comm->broken().ok()) {
    self->expect_ok(self->job->finalize(20'000), "finalize");
  }
  self->comm = nullptr;
  self->job = nullptr;
}

/// Runs `body` on all ranks at once; what failed fails the test case. It should leave nothing
/// behind: no memory, no events, no calls that NCCL would not forgive.
inline void run_on_gpus(const GpuWorld& world, const std::function<void(GpuRank&)>& body) {
  FakeNccl* const nccl = fake_nccl(DT_FAKE_NCCL);
  nccl->reset();
  nccl->set_enqueue(FakeCuda::enqueue);
  const auto loop = std::move(net::Loop::start()).value();
  store::ServerOptions serving;
  serving.world_size = world.size;
  serving.server_rank = -1;
  serving.heartbeat_ms = world.heartbeat_ms;
  auto server = store::Server::start(loop.get(), serving);
  REQUIRE(server.ok());
  std::mutex mutex;
  std::condition_variable all_here;
  int present = 0;
  int round = 0;
  std::vector<std::vector<std::string>> failures(static_cast<size_t>(world.size));
  std::vector<std::vector<std::shared_ptr<void>>> memory(static_cast<size_t>(world.size));
  std::vector<std::shared_ptr<FakeCuda>> devices(static_cast<size_t>(world.size));
  on_ranks(world.size, [&](int rank) {
    GpuRank self;
    self.rank = rank;
    self.size = world.size;
    self.failures = &failures[static_cast<size_t>(rank)];
    self.memory = &memory[static_cast<size_t>(rank)];
    self.meet = [&] {
      std::unique_lock lock(mutex);
      const int mine = round;
      if (++present == world.size) {
        present = 0;
        ++round;
        all_here.notify_all();
      }
      self.expect(all_here.wait_for(lock, std::chrono::seconds(40), [&] { return round != mine; }),
                  "the others did not come");
    };
    play_rank(world, server.value()->port(), &self, body);
    devices[static_cast<size_t>(rank)] = self.cuda;
  });
  for (const auto& device : devices) {
    if (device == nullptr) continue;
    CHECK(device->counters().live_allocations == 0);
    CHECK(device->counters().live_events == 0);
  }
  for (const auto& of_rank : failures) {
    for (const std::string& failure : of_rank) FAIL_CHECK(failure);
  }
  if (world.ranks_may_disagree) return;
  for (const std::string& misuse : nccl->misuses()) FAIL_CHECK(misuse);
}

/// The ranks of a GPU communicator over host memory.
inline std::shared_ptr<comm::Communicator> host_comm(const GpuRank& rank) {
  comm::Communicator::Options seat;
  seat.name = "on host";
  seat.rank = rank.rank;
  seat.world_ranks.resize(static_cast<size_t>(rank.size));
  std::iota(seat.world_ranks.begin(), seat.world_ranks.end(), 0);
  seat.backend = std::shared_ptr<backend::Backend>(rank.comm, &rank.comm->backend().on_host());
  seat.board = std::make_shared<comm::FailureBoard>();
  seat.timeout_ms = 20'000;
  return comm::Communicator::create(std::move(seat));
}

inline bool contains(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

}  // namespace dt::test
