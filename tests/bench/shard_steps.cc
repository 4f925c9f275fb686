// SPDX-License-Identifier: Apache-2.0
// shard_steps ROUNDS MATRICES SIDE [STAGE [DIRECTORY]]: a rank of a job that computes nothing but
// AdamW. It trains MATRICES parameters of SIDE x SIDE f32 in shards of stages 0 to 3, one step of
// each per round after one that is not timed: a forward pass that gathers each parameter, a
// backward pass that copies each gradient, AdamW. Rank 0 prints a line per step: STAGE
// MILLISECONDS, until the parameters are whole on the last rank, in stage 3 its pieces. With STAGE
// that one alone, and at the end its memory: STAGE MEMORY BYTES, the mean over the ranks of what
// each has more than before, pages of several processes divided among them. With DIRECTORY what it
// keeps lies in files there; with SHARD_RANKS in the environment so many ranks are a replica.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dt/dt.hpp>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

int64_t memory_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  while (file >> word) {
    int64_t kib = 0;
    if (word == "Pss:" && file >> kib) return kib * 1024;
  }
  throw std::runtime_error("/proc/self/smaps_rollup has no Pss");
}

/// A model in shards, and its AdamW.
class Model {
 public:
  Model(const dt::Comm& comm, int32_t stage, int32_t matrices, int64_t count,
        const std::string& offload)
      : stage_(stage),
        matrices_(matrices),
        count_(count),
        shard_(comm, params(), options(stage, offload)),
        reducer_(shard_.reducer()),
        optimizer_(dt::Optimizer::adamw(shard_)) {
    const std::vector<float> first(static_cast<size_t>(count), 1.0F);
    for (int32_t i = 0; i < matrices; ++i) shard_.set(i, first.data());
  }

  void step(const std::vector<float>& gradient) {
    for (int32_t i = 0; i < matrices_; ++i) {
      shard_.gather(i);
      shard_.release(i);
    }
    for (int32_t i = matrices_; i-- > 0;) {
      shard_.gather(i);
      std::memcpy(reducer_.grad(i), gradient.data(), static_cast<size_t>(count_) * sizeof(float));
      reducer_.ready(i);
      shard_.release(i);
    }
    reducer_.finish();
    optimizer_.step(1e-3);
    for (int32_t i = 0; stage_ < 3 && i < matrices_; ++i) shard_.gather(i);
  }

  /// That each element of a parameter is what the others are, here and on all ranks.
  void check(dt::Comm* comm) {
    for (int32_t i = 0; i < matrices_; ++i) {
      shard_.gather(i);
      const auto* values = shard_.param_as<float>(i);
      comm->check_equal(values, count_ * 4, "parameter");
      for (int64_t at = 0; at < count_; ++at) {
        if (values[at] != values[0] || !(values[at] < 1)) throw std::runtime_error("a wrong step");
      }
      shard_.release(i);
    }
  }

 private:
  std::vector<dt::Param> params() const {
    return std::vector<dt::Param>(static_cast<size_t>(matrices_), {count_, DT_F32, "matrix", 1});
  }
  dt::ShardOptions options(int32_t stage, const std::string& offload) const {
    dt::ShardOptions options;
    options.stage = stage;
    options.offload = offload;
    const char* const replica = std::getenv("SHARD_RANKS");
    if (replica != nullptr) options.shard_ranks = std::atoi(replica);
    for (int32_t i = 0; i < matrices_; ++i) options.units.push_back(i);
    return options;
  }

  const int32_t stage_;
  const int32_t matrices_;
  const int64_t count_;  // elements of a matrix
  dt::Shard shard_;
  dt::Reducer& reducer_;
  dt::Optimizer optimizer_;
};

void run(int64_t rounds, int32_t matrices, int64_t side, int32_t only, const std::string& offload) {
  dt::Job job;
  dt::Comm comm = job.world();
  const int32_t rank = job.place().rank;
  const std::vector<float> gradient(static_cast<size_t>(side * side), static_cast<float>(rank + 1));
  int64_t before = memory_bytes();
  std::vector<std::unique_ptr<Model>> models(4);
  for (int32_t stage = 0; stage < 4; ++stage) {
    if (only >= 0 && stage != only) continue;
    models[static_cast<size_t>(stage)] =
        std::make_unique<Model>(comm, stage, matrices, side * side, offload);
  }
  for (int64_t round = 0; round <= rounds; ++round) {
    for (int32_t stage = 0; stage < 4; ++stage) {
      auto& model = models[static_cast<size_t>(stage)];
      if (model == nullptr) continue;
      comm.barrier();
      const auto begin = std::chrono::steady_clock::now();
      model->step(gradient);
      double ms =
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
              .count();
      comm.allreduce({&ms, 1}, DT_MAX);
      if (round == 0) model->check(&comm);
      if (round > 0 && rank == 0) std::printf("%d %.3f\n", stage, ms);
    }
  }
  double more = static_cast<double>(memory_bytes() - before);
  comm.allreduce({&more, 1}, DT_AVG);
  if (only >= 0 && rank == 0) std::printf("%d memory %.0f\n", only, more);
  models.clear();
  job.finalize();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4 || argc > 6) {
    std::fprintf(stderr, "usage: shard_steps ROUNDS MATRICES SIDE [STAGE [DIRECTORY]]\n");
    return 2;
  }
  try {
    run(std::atoll(argv[1]), std::atoi(argv[2]), std::atoll(argv[3]),
        argc > 4 ? std::atoi(argv[4]) : -1, argc > 5 ? argv[5] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shard_steps: %s\n", error.what());
    std::_Exit(1);
  }
  return 0;
}
