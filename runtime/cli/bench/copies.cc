// SPDX-License-Identifier: Apache-2.0
// The machine's own limit for a plot: what a copy takes when every rank makes one and waits for
// nobody. Threads stand for the ranks: each has memory of its own, and they share the processors
// and the memory bus as ranks do.
#include <algorithm>
#include <barrier>
#include <cstring>
#include <memory>
#include <new>
#include <system_error>
#include <thread>

#include "base/memory_limit.h"
#include "cli/bench/method.h"
#include "cli/bench/plot.h"

namespace dt::cli::bench {
namespace {

constexpr int kCopyRounds = 5;
constexpr double kCopyBudgetUs = 3'000;  // of one round of one size

struct CopyAreas {
  std::unique_ptr<char[]> from;
  std::unique_ptr<char[]> to;
};

CopyAreas make_areas(size_t bytes) {
  CopyAreas areas{std::unique_ptr<char[]>(new (std::nothrow) char[bytes]),
                  std::unique_ptr<char[]>(new (std::nothrow) char[bytes])};
  if (areas.from == nullptr || areas.to == nullptr) return {};
  memset(areas.from.get(), 1, bytes);
  memset(areas.to.get(), 2, bytes);
  return areas;
}

double copy_us(const CopyAreas& areas, size_t bytes, int64_t repeats) {
  const double begin = bench_now_us();
  for (int64_t i = 0; i < repeats; ++i) {
    memcpy(areas.to.get(), areas.from.get(), bytes);
    asm volatile("" ::: "memory");  // each copy is made
  }
  return (bench_now_us() - begin) / static_cast<double>(repeats);
}

/// By rank; empty: there were not enough threads.
std::vector<double> copy_together(const std::vector<CopyAreas>& areas, size_t bytes,
                                  int64_t repeats) {
  std::vector<double> us(areas.size(), 0);  // each thread writes its own, joined before read
  std::barrier begin(static_cast<std::ptrdiff_t>(areas.size()));
  std::vector<std::thread> threads;
  threads.reserve(areas.size());
  bool all_run = true;
  try {
    for (size_t i = 0; i < areas.size(); ++i) {
      threads.emplace_back([&, i] {
        begin.arrive_and_wait();
        us[i] = copy_us(areas[i], bytes, repeats);
      });
    }
  } catch (const std::system_error&) {
    // In place of those that were not started.
    for (size_t i = threads.size(); i < areas.size(); ++i) begin.arrive_and_drop();
    all_run = false;
  }
  for (std::thread& thread : threads) thread.join();
  return all_run ? us : std::vector<double>();
}

}  // namespace

std::vector<CopyLimit> measure_copies(int ranks, const std::vector<int64_t>& asked_bytes) {
  // Two areas of each rank, in half of the memory that is left.
  const int64_t most = memory_limit().available_bytes / 4 / ranks - 1;
  std::vector<int64_t> sizes_bytes = asked_bytes;
  std::erase_if(sizes_bytes, [most](int64_t bytes) { return bytes > most; });
  if (sizes_bytes.empty()) return {};
  const int64_t largest = *std::max_element(sizes_bytes.begin(), sizes_bytes.end());
  std::vector<CopyAreas> areas;
  for (int rank = 0; rank < ranks; ++rank) {
    areas.push_back(make_areas(static_cast<size_t>(largest) + 1));
    if (areas.back().from == nullptr) return {};  // not enough memory: no line in the plot
  }
  std::vector<CopyLimit> limits;
  for (const int64_t bytes : sizes_bytes) {
    const auto size = static_cast<size_t>(bytes);
    const int64_t repeats = std::clamp<int64_t>(
        static_cast<int64_t>(kCopyBudgetUs / copy_us(areas[0], size, 2)), 1, BENCH_MAX_ITERATIONS);
    std::vector<double> rounds_us;
    for (int round = 0; round < kCopyRounds; ++round) {
      const std::vector<double> us = copy_together(areas, size, repeats);
      if (us.empty()) return {};
      double sum = 0;
      for (const double one : us) sum += one;
      rounds_us.push_back(sum / ranks);
    }
    limits.push_back({bytes, spread(rounds_us).median});
  }
  return limits;
}

}  // namespace dt::cli::bench
