// SPDX-License-Identifier: Apache-2.0
// Times f32 sum allreduce of the host backend: processes made by fork, each with its own engine.
//   bench_host [ranks] [spin_us] [inline_bytes] [slot_bytes] [ring_bytes]
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "backend/host/host.h"

namespace {

using dt::Deadline;
using dt::backend::Collective;
using dt::backend::Kind;

struct Names {
  char leader[32];
};

struct Case {
  int64_t count;
  int rounds;
  int repeats;  // back to back in a round
};

int fail(const dt::Status& status) {
  fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}

int run_rank(int rank, int size, dt::shm::ArenaListener listener, const std::string& leader,
             char** options) {
  if (size <= sysconf(_SC_NPROCESSORS_ONLN)) {
    cpu_set_t mine;
    CPU_ZERO(&mine);
    CPU_SET(rank, &mine);
    sched_setaffinity(0, sizeof mine, &mine);
  }
  dt::backend::HostEngine::Options engine_options;
  engine_options.leader_name = leader;
  engine_options.local_rank = rank;
  engine_options.local_size = size;
  for (int i = 0; i < size; ++i) engine_options.world_ranks.push_back(i);
  if (options[0]) engine_options.spin_us = atoll(options[0]);
  if (options[0] && options[1]) engine_options.inline_bytes = atoll(options[1]);
  if (options[0] && options[1] && options[2]) engine_options.slot_bytes = atoll(options[2]);
  if (options[0] && options[1] && options[2] && options[3]) {
    engine_options.ring_bytes = atoll(options[3]);
  }
  const dt::Wait wait{Deadline::after_ms(30'000)};
  auto engine = dt::backend::HostEngine::create(std::move(listener), engine_options, wait);
  if (!engine.ok()) return fail(engine.status());
  auto world = dt::backend::create_host_world(engine.value(), {}, wait);
  if (!world.ok()) return fail(world.status());
  dt::backend::Backend& backend = *world.value();
  const std::vector<Case> cases = {{2, 40, 2000},  {256, 40, 1000},  {4096, 40, 100},
                                   {16384, 60, 1}, {1 << 18, 60, 1}, {25 << 18, 21, 1}};
  for (const Case& one : cases) {
    for (const bool direct : {true, false}) {
      const int64_t bytes = one.count * 4;
      float* data;
      if (direct) {
        auto memory = backend.allocate(bytes);
        if (!memory.ok()) return fail(memory.status());
        data = static_cast<float*>(memory.value());
      } else {
        data = static_cast<float*>(
            aligned_alloc(4096, static_cast<size_t>(bytes + 4095) / 4096 * 4096));
      }
      Collective reduce;
      reduce.kind = Kind::kAllreduce;
      reduce.dtype = dt::Dtype::kF32;
      reduce.send = data;
      reduce.recv = data;
      reduce.count = one.count;
      reduce.deadline = Deadline::after_ms(60'000);
      Collective barrier;
      std::vector<double> times;
      for (int round = -2; round < one.rounds; ++round) {
        for (int64_t i = 0; i < one.count; ++i) data[i] = static_cast<float>(rank);
        dt::Status status = backend.run(barrier);
        const int64_t begin = dt::monotonic_ns();
        for (int i = 0; i < one.repeats && status.ok(); ++i) status = backend.run(reduce);
        const double us = static_cast<double>(dt::monotonic_ns() - begin) / 1e3 / one.repeats;
        if (!status.ok()) return fail(status);
        if (one.repeats == 1 && data[one.count - 1] != static_cast<float>(size * (size - 1) / 2)) {
          fprintf(stderr, "wrong result\n");
          return 1;
        }
        if (round >= 0) times.push_back(us);
      }
      std::sort(times.begin(), times.end());
      if (rank == 0) {
        printf("%2d ranks %9lld B %-8s min %9.2f  p50 %9.2f  max %9.2f us\n", size,
               static_cast<long long>(bytes), direct ? "direct" : "ordinary", times.front(),
               times[times.size() / 2], times.back());
        fflush(stdout);
      }
      if (direct) {
        (void)backend.run(barrier);
        (void)backend.release(data);
      } else {
        free(data);
      }
    }
  }
  (void)backend.run(Collective());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int size = argc > 1 ? atoi(argv[1]) : 2;
  auto* names = static_cast<Names*>(
      mmap(nullptr, sizeof(Names), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  auto leader = dt::shm::ArenaListener::create();
  if (!leader.ok()) return fail(leader.status());
  snprintf(names->leader, sizeof names->leader, "%s", leader.value().name().c_str());
  char* none[] = {nullptr};
  char** options = argc > 2 ? argv + 2 : none;
  std::vector<pid_t> children;
  for (int rank = 1; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      auto own = dt::shm::ArenaListener::create();
      if (!own.ok()) _exit(fail(own.status()));
      _exit(run_rank(rank, size, std::move(own).value(), names->leader, options));
    }
    children.push_back(child);
  }
  int result = run_rank(0, size, std::move(leader).value(), names->leader, options);
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) result = 1;
  }
  return result;
}
