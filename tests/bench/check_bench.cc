// SPDX-License-Identifier: Apache-2.0
// What the comparison of calls (watchdog.check) and the flight recorder cost an allreduce between
// two ranks, which are threads: over host memory, which always compares, and over GPUs and an NCCL
// that are made of threads, so that what a call costs beside them is seen. All settings in turn, in
// one run; median [5 %-95 %] of the rounds, and the ratio to the first setting.
//   check_bench [rounds] [calls]
#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/wait.h"
#include "comm/communicator.h"
#include "fake_cuda.h"
#include "fake_kernels.h"
#include "fake_nccl.h"
#include "job/job.h"
#include "store/server.h"

using namespace dt;
using namespace dt::test;

namespace {

constexpr int kRanks = 2;
constexpr int64_t kCounts[] = {2, 64, 1024, 16'384, 262'144};  // of f32: 8 bytes to 1 MiB

struct Setting {
  const char* name;
  bool on_gpu;
  const char* check;
  const char* entries;
};

void need(const Status& status) {
  if (status.ok()) return;
  fprintf(stderr, "%s\n", status.message().c_str());
  exit(1);
}

/// A store of each setting's job, and the loop that serves them.
struct Stores {
  std::unique_ptr<net::Loop> loop = std::move(net::Loop::start()).value();
  std::vector<std::unique_ptr<store::Server>> servers;

  explicit Stores(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      store::ServerOptions serving;
      serving.world_size = kRanks;
      serving.server_rank = -1;
      serving.heartbeat_ms = 1'000;
      serving.heartbeat_timeout_ms = 60'000;
      auto server = store::Server::start(loop.get(), serving);
      need(server.status());
      servers.push_back(std::move(server).value());
    }
  }
};

/// A rank's job with one setting.
struct Seat {
  std::shared_ptr<FakeCuda> cuda;
  std::shared_ptr<job::Job> job;
  std::shared_ptr<comm::Communicator> comm;

  Seat(const Setting& setting, int rank, uint16_t port) {
    Config config;
    const std::pair<const char*, std::string> settings[] = {
        {"job.rank", std::to_string(rank)},  {"job.world_size", std::to_string(kRanks)},
        {"job.master_addr", "127.0.0.1"},    {"job.master_port", std::to_string(port)},
        {"job.store_served", "true"},        {"backend.name", setting.on_gpu ? "nccl" : "host"},
        {"nccl.library", DT_FAKE_NCCL},      {"watchdog.check", setting.check},
        {"record.entries", setting.entries},
    };
    for (const auto& [key, value] : settings) need(config.set(key, value));
    job::Devices devices;
    devices.ask = [] {
      cuda::Answers answers;
      answers.built = true;
      answers.runtime_version = answers.driver_version = 13000;
      answers.device_count = kRanks;
      return answers;
    };
    devices.open = [this](int32_t index) -> Result<std::shared_ptr<cuda::Runtime>> {
      cuda = std::make_shared<FakeCuda>(index);
      return std::shared_ptr<cuda::Runtime>(cuda);
    };
    devices.kernels = [this](std::shared_ptr<cuda::Runtime>) {
      return Result<std::shared_ptr<kernels::TensorKernels>>(fake_tensor_kernels(cuda));
    };
    auto started = job::Job::start(config, {}, devices);
    need(started.status());
    job = std::move(started).value();
    auto world = job->world();
    need(world.status());
    comm = std::move(world).value();
  }

  void allreduce(std::vector<float>* data, int64_t count) const {
    backend::Collective collective;
    collective.kind = backend::Kind::kAllreduce;
    collective.dtype = Dtype::kF32;
    collective.send = collective.recv = data->data();
    collective.count = count;
    need(comm->run(collective));
  }
  void drain() const {
    if (!comm->backend().drain(Wait{Deadline::after_ms(60'000), nullptr})) exit(1);
  }
};

struct Spread {
  double low = 0;
  double median = 0;
  double high = 0;
};

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t edge = values.size() / 20;
  return {values[edge], values[values.size() / 2], values[values.size() - 1 - edge]};
}

void print(int64_t count, const Setting& setting, const std::vector<double>& took,
           const std::vector<double>& first) {
  std::vector<double> ratios;
  for (size_t i = 0; i < took.size(); ++i) ratios.push_back(took[i] / first[i]);
  const Spread time = spread_of(took);
  const Spread ratio = spread_of(ratios);
  printf("%9lld  %-28s %9.2f [%.2f-%.2f]  %6.3f [%.3f-%.3f]\n", static_cast<long long>(count * 4),
         setting.name, time.median, time.low, time.high, ratio.median, ratio.low, ratio.high);
}

/// All settings of one kind of memory.
void compare(const std::vector<Setting>& settings, int rounds, int calls) {
  const Stores stores(settings.size());
  std::barrier meet(kRanks);
  const auto rank_body = [&](int rank) {
    std::vector<std::unique_ptr<Seat>> seats;
    for (size_t i = 0; i < settings.size(); ++i) {
      seats.push_back(std::make_unique<Seat>(settings[i], rank, stores.servers[i]->port()));
    }
    for (const int64_t count : kCounts) {
      std::vector<float> data(static_cast<size_t>(count));
      std::vector<std::vector<double>> took(settings.size());
      for (int round = -1; round < rounds; ++round) {
        for (size_t k = 0; k < settings.size(); ++k) {
          const size_t which = (k + static_cast<size_t>(round + 1)) % settings.size();
          meet.arrive_and_wait();
          const int64_t begin_ns = monotonic_ns();
          for (int i = 0; i < calls; ++i) seats[which]->allreduce(&data, count);
          seats[which]->drain();
          const auto us = static_cast<double>(monotonic_ns() - begin_ns) / 1e3 / calls;
          if (round >= 0) took[which].push_back(us);
        }
      }
      for (size_t k = 0; rank == 0 && k < settings.size(); ++k) {
        print(count, settings[k], took[k], took[0]);
      }
    }
    for (const auto& seat : seats) {
      need(seat->job->finalize(60'000));
      seat->comm = nullptr;
    }
    meet.arrive_and_wait();
  };
  std::thread other(rank_body, 1);
  rank_body(0);
  other.join();
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 101;
  const int calls = argc > 2 ? atoi(argv[2]) : 50;
  fake_nccl(DT_FAKE_NCCL)->set_enqueue(FakeCuda::enqueue);
  printf("%9s  %-28s %9s %s  %s\n", "bytes", "setting", "us", "[5 %-95 %]", "ratio [5 %-95 %]");
  compare({{"host, record.entries = 0", false, "lazy", "0"},
           {"host, record.entries = 4096", false, "lazy", "4096"}},
          rounds, calls);
  compare({{"gpu, watchdog.check = off", true, "off", "4096"},
           {"gpu, watchdog.check = lazy", true, "lazy", "4096"},
           {"gpu, watchdog.check = strict", true, "strict", "4096"},
           {"gpu, off, record.entries = 0", true, "off", "0"}},
          rounds, calls);
  return 0;
}
