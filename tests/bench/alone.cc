// SPDX-License-Identifier: Apache-2.0
// Two questions on a sum of f32, each answered by two trials in turns in the same threads:
// - What does meeting the other ranks cost? allreduce of memory that the ranks share beside the
//   same loop over the same pages, where nobody waits for anybody.
// - Is bf16 as fast per element? allreduce of as many elements of shared memory, of ordinary
//   memory, and the loop.
// Every rank rewrites its contribution and passes a barrier before each trial. Times are averaged
// over the ranks; a ratio is the second trial's time by the first's of the same round.
// Median [5 %-95 %] of the rounds. Sizes are those of f32.
//   alone [ranks] [rounds] [sizes in bytes...]
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "backend/host/host.h"
#include "collective/thresholds.h"
#include "kernels/host/reduce.h"

namespace {

using dt::Deadline;
using dt::Dtype;
using dt::backend::Collective;
using dt::backend::Kind;
using dt::kernels::Stores;

constexpr int64_t kMinute = 60'000;

[[noreturn]] void fail(const std::string& message) {
  fprintf(stderr, "%s\n", message.c_str());
  _exit(1);  // other ranks may wait
}

template <class T>
T must(dt::Result<T> result) {
  if (!result.ok()) fail(result.status().message());
  return std::move(result).value();
}

void must(const dt::Status& status) {
  if (!status.ok()) fail(status.message());
}

struct Spread {
  double low, median, high;
};

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t edge = values.size() / 20;
  return {values[edge], values[values.size() / 2], values[values.size() - 1 - edge]};
}

/// One way to sum.
struct Trial {
  const char* name;
  bool meets;   ///< allreduce; else the loop alone
  bool shared;  ///< memory of allocate()
  Dtype dtype;
};
constexpr Trial kShared = {"allreduce", true, true, Dtype::kF32};
constexpr Trial kLoop = {"loop", false, true, Dtype::kF32};
constexpr Trial kSharedBf16 = {"bf16", true, true, Dtype::kBf16};
constexpr Trial kLoopBf16 = {"loop bf16", false, true, Dtype::kBf16};
constexpr Trial kOrdinary = {"ordinary", true, false, Dtype::kF32};
constexpr Trial kOrdinaryBf16 = {"bf16", true, false, Dtype::kBf16};

struct Areas {
  void* send = nullptr;
  void* recv = nullptr;
};

/// What the ranks, threads of this process, know of each other.
struct Shared {
  Shared(int ranks, std::vector<int64_t> all_sizes, int all_rounds)
      : size(ranks),
        rounds(all_rounds),
        sizes(std::move(all_sizes)),
        meet(ranks),
        areas(static_cast<size_t>(ranks)),
        took(static_cast<size_t>(ranks)) {}
  const int size;
  const int rounds;
  const std::vector<int64_t> sizes;
  std::barrier<> meet;
  std::vector<Areas> areas;  // of shared memory, by rank; written before a meeting, read behind it
  std::vector<double> took;
};

int64_t bytes_of(Dtype dtype) { return dtype == Dtype::kBf16 ? 2 : 4; }

/// `value` is a small whole number.
void fill(void* area, Dtype dtype, int64_t count, int value) {
  const auto number = static_cast<float>(value);
  if (dtype == Dtype::kF32) {
    std::fill_n(static_cast<float*>(area), count, number);
  } else {
    std::fill_n(static_cast<uint16_t*>(area), count,
                static_cast<uint16_t>(std::bit_cast<uint32_t>(number) >> 16));
  }
}

float value_at(const void* area, Dtype dtype, int64_t at) {
  if (dtype == Dtype::kF32) return static_cast<const float*>(area)[at];
  return std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(area)[at]} << 16);
}

/// The part of rank `rank`, as allreduce sums it.
void loop(const Shared& shared, int rank, Dtype dtype, int64_t count, bool in_place) {
  const dt::collective::Thresholds thresholds;
  const int64_t element = bytes_of(dtype);
  const int64_t line = 64 / element;
  const int64_t each = (count / line + shared.size - 1) / shared.size * line;
  const int64_t begin = std::min(count, rank * each);
  const int64_t end = std::min(count, begin + each);
  const bool large = thresholds.streams(count * element, 2 * shared.size);
  const Stores stores = large && !in_place ? Stores::kStreaming : Stores::kTemporal;
  const int64_t at_once = thresholds.push_bytes / element;
  std::vector<const void*> sources(shared.areas.size());
  std::vector<void*> targets(shared.areas.size());
  for (int64_t at = begin; at < end; at += at_once) {
    for (int k = 0; k < shared.size; ++k) {
      const Areas& source = shared.areas[static_cast<size_t>(k)];
      const Areas& target = shared.areas[static_cast<size_t>((rank + k) % shared.size)];
      sources[static_cast<size_t>(k)] = static_cast<char*>(source.send) + at * element;
      targets[static_cast<size_t>(k)] =
          static_cast<char*>(in_place ? target.send : target.recv) + at * element;
    }
    dt::kernels::reduce_to_all({dtype, dt::ReduceOp::kSum, 1},
                               {targets.data(), shared.size, stores}, sources.data(), shared.size,
                               std::min(at_once, end - at));
  }
}

class Rank {
 public:
  Rank(Shared* shared, int rank, std::shared_ptr<dt::backend::Backend> backend)
      : shared_(*shared), rank_(rank), backend_(std::move(backend)) {}

  void measure(int64_t bytes) {
    count_ = bytes / 4;
    Areas& mine = shared_.areas[static_cast<size_t>(rank_)];
    mine = {must(backend_->allocate(bytes)), must(backend_->allocate(bytes))};
    std::vector<float> send(static_cast<size_t>(count_)), recv(static_cast<size_t>(count_));
    ordinary_ = {send.data(), recv.data()};
    for (const bool in_place : {true, false}) {
      compare(kShared, kLoop, in_place);
      compare(kShared, kSharedBf16, in_place);
      compare(kOrdinary, kOrdinaryBf16, in_place);
      compare(kLoop, kLoopBf16, in_place);
    }
    shared_.meet.arrive_and_wait();
    must(backend_->release(mine.send));
    must(backend_->release(mine.recv));
  }

 private:
  void compare(const Trial& one, const Trial& other, bool in_place) {
    std::vector<double> first, second, ratios;
    for (int round = -2; round < shared_.rounds; ++round) {
      const bool swap = round % 2 != 0;  // each goes first as often
      const double early = time(swap ? other : one, in_place);
      const double late = time(swap ? one : other, in_place);
      if (round < 0) continue;
      first.push_back(swap ? late : early);
      second.push_back(swap ? early : late);
      ratios.push_back(second.back() / first.back());
    }
    if (rank_ != 0) return;
    const Spread a = spread_of(first), b = spread_of(second), ratio = spread_of(ratios);
    printf("%2d ranks %10lld B %-12s %9s %9.2f [%.2f-%.2f] us, ", shared_.size,
           static_cast<long long>(count_ * 4), in_place ? "in place" : "out of place", one.name,
           a.median, a.low, a.high);
    printf("%9s %9.2f [%.2f-%.2f] us, ratio %.3f [%.3f-%.3f]\n", other.name, b.median, b.low,
           b.high, ratio.median, ratio.low, ratio.high);
    fflush(stdout);
  }

  /// Microseconds, averaged over the ranks.
  double time(const Trial& trial, bool in_place) {
    const auto me = static_cast<size_t>(rank_);
    const Areas& areas = trial.shared ? shared_.areas[me] : ordinary_;
    fill(areas.send, trial.dtype, count_, rank_ + 1);
    Collective reduce;
    reduce.kind = Kind::kAllreduce;
    reduce.dtype = trial.dtype;
    reduce.send = areas.send;
    reduce.recv = in_place ? areas.send : areas.recv;
    reduce.count = count_;
    reduce.deadline = Deadline::after_ms(kMinute);
    Collective barrier;
    barrier.deadline = reduce.deadline;
    must(backend_->run(barrier));
    const int64_t begin = dt::monotonic_ns();
    if (trial.meets) {
      must(backend_->run(reduce));
    } else {
      loop(shared_, rank_, trial.dtype, count_, in_place);
    }
    shared_.took[me] = static_cast<double>(dt::monotonic_ns() - begin) / 1e3;
    shared_.meet.arrive_and_wait();
    const auto expected = static_cast<float>(shared_.size * (shared_.size + 1) / 2);
    for (const int64_t at : {int64_t{0}, count_ / 2, count_ - 1}) {
      if (value_at(reduce.recv, trial.dtype, at) != expected) fail("the sum is wrong");
    }
    double sum = 0;
    for (const double one : shared_.took) sum += one;
    shared_.meet.arrive_and_wait();
    return sum / shared_.size;
  }

  Shared& shared_;
  const int rank_;
  const std::shared_ptr<dt::backend::Backend> backend_;
  Areas ordinary_;
  int64_t count_ = 0;
};

void run_rank(Shared* shared, int rank, dt::shm::ArenaListener listener,
              const std::string& leader) {
  if (shared->size <= sysconf(_SC_NPROCESSORS_ONLN)) {
    cpu_set_t mine;
    CPU_ZERO(&mine);
    CPU_SET(static_cast<size_t>(rank), &mine);
    sched_setaffinity(0, sizeof mine, &mine);
  }
  dt::backend::HostEngine::Options options;
  options.leader_name = leader;
  options.local_rank = rank;
  options.local_size = shared->size;
  for (int i = 0; i < shared->size; ++i) options.world_ranks.push_back(i);
  const dt::Wait wait{Deadline::after_ms(kMinute)};
  auto engine = must(dt::backend::HostEngine::create(std::move(listener), options, wait));
  Rank own(shared, rank, must(dt::backend::create_host_world(engine, {}, wait)));
  for (const int64_t bytes : shared->sizes) own.measure(bytes);
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? atoi(argv[1]) : 2;
  const int rounds = argc > 2 ? atoi(argv[2]) : 41;
  std::vector<int64_t> sizes;
  for (int i = 3; i < argc; ++i) sizes.push_back(atoll(argv[i]));
  if (sizes.empty()) sizes = {64 << 10, 1 << 20, 25 << 20, 256 << 20};
  if (ranks < 2 || rounds < 1 || *std::min_element(sizes.begin(), sizes.end()) < 64 << 10) {
    fprintf(stderr, "alone [ranks >= 2] [rounds] [sizes in bytes >= 65536...]\n");
    return 2;
  }
  Shared shared(ranks, sizes, rounds);
  std::vector<dt::shm::ArenaListener> listeners;
  for (int rank = 0; rank < ranks; ++rank) {
    listeners.push_back(must(dt::shm::ArenaListener::create()));
  }
  const std::string leader = listeners[0].name();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      run_rank(&shared, rank, std::move(listeners[static_cast<size_t>(rank)]), leader);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}
