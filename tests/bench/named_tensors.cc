// SPDX-License-Identifier: Apache-2.0
// named_tensors ROUNDS TENSORS COUNT: a rank of a job that computes nothing. It averages TENSORS
// gradients of COUNT f32, which come in another order on each rank and in each round: with a
// reducer, and by name. One step of each way per round, after one that is not timed. Rank 0 prints
// a line per round: the milliseconds of both, until the last rank has all results, and their ratio.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <dt/dt.hpp>
#include <functional>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Gradients = std::vector<std::vector<float>>;

/// Milliseconds of the slowest rank.
double time_of(dt::Comm* comm, const std::function<void()>& step) {
  comm->barrier();
  const auto begin = std::chrono::steady_clock::now();
  step();
  double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  comm->allreduce({&ms, 1}, DT_MAX);
  return ms;
}

void fill(Gradients* gradients, int32_t rank) {
  for (size_t t = 0; t < gradients->size(); ++t) {
    std::fill((*gradients)[t].begin(), (*gradients)[t].end(),
              static_cast<float>(t % 100) + static_cast<float>(rank));
  }
}

void check(const Gradients& gradients, int32_t ranks, const char* way) {
  for (size_t t = 0; t < gradients.size(); ++t) {
    const float wanted = static_cast<float>(t % 100) + static_cast<float>(ranks - 1) / 2;
    for (const float each : gradients[t]) {
      if (each != wanted) throw std::runtime_error(std::string("a wrong average: ") + way);
    }
  }
}

void run(int rounds, size_t tensors, int64_t count) {
  dt::Job job;
  dt::Comm comm = job.world();
  const int32_t rank = job.place().rank;
  dt::Reducer reducer(comm, std::vector<dt::Param>(tensors, {count, DT_F32, "gradient", 1}));
  dt::Named named(comm);
  std::vector<std::string> names;
  for (size_t t = 0; t < tensors; ++t) names.push_back("layer" + std::to_string(t) + ".weight");
  Gradients gradients(tensors, std::vector<float>(static_cast<size_t>(count)));
  std::vector<size_t> order(tensors);
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937 random(static_cast<unsigned>(rank));
  std::vector<dt::Work> works;
  for (int round = 0; round <= rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    fill(&gradients, rank);
    const double reduced = time_of(&comm, [&] {
      for (const size_t t : order) reducer.ready(static_cast<int32_t>(t), gradients[t].data());
      reducer.finish();
    });
    check(gradients, comm.size(), "reducer");
    fill(&gradients, rank);
    const double submitted = time_of(&comm, [&] {
      for (const size_t t : order) {
        works.push_back(named.allreduce_async(names[t], gradients[t], DT_AVG));
      }
      for (const dt::Work& work : works) work.wait();
      works.clear();
    });
    check(gradients, comm.size(), "named");
    if (round > 0 && rank == 0)
      std::printf("%.3f %.3f %.3f\n", reduced, submitted, submitted / reduced);
  }
  const dt_named_statistics seen = named.statistics();
  if (rank == 0) {
    std::printf("# %lld tensors in %lld operations and %lld answers, %lld described before\n",
                static_cast<long long>(seen.tensors), static_cast<long long>(seen.operations),
                static_cast<long long>(seen.answers), static_cast<long long>(seen.cache_hits));
  }
  named.close();
  job.finalize();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: named_tensors ROUNDS TENSORS COUNT\n");
    return 2;
  }
  try {
    run(std::atoi(argv[1]), static_cast<size_t>(std::atoll(argv[2])), std::atoll(argv[3]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "named_tensors: %s\n", error.what());
    std::_Exit(1);
  }
  return 0;
}
