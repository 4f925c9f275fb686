// SPDX-License-Identifier: Apache-2.0
// slow_network ROUNDS MATRICES SIDE: a rank of a job that computes nothing. It reduces the
// gradients of MATRICES parameters of SIDE x SIDE f32 in each of seven ways, one step of each per
// round, after one round that is not timed and whose results are checked. Rank 0 prints a line per
// step: WAY MILLISECONDS BYTES, the time from the first dt_reducer_ready() until the last rank's
// dt_reducer_finish() returned, and what rank 0's eth0 sent. slow_network.py starts it.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dt/dt.hpp>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Way {
  const char* name;
  dt_wire wire;
  int32_t power_sgd;  // rank; 0: none
  double tolerance;   // of the average, relative to the largest element
};
constexpr Way kWays[] = {{"plain", DT_WIRE_SAME, 0, 1e-6},  {"bf16", DT_WIRE_BF16, 0, 0.01},
                         {"f16", DT_WIRE_F16, 0, 0.002},    {"8bit", DT_WIRE_8BIT, 0, 0.01},
                         {"powersgd4", DT_WIRE_SAME, 4, 0}, {"powersgd4_bf16", DT_WIRE_BF16, 4, 0},
                         {"powersgd1", DT_WIRE_SAME, 1, 0}};

/// In [-1, 1], of many singular values.
float element(int32_t rank, int64_t i) {
  uint64_t z = (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(rank);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  return static_cast<float>(static_cast<double>(z >> 11) * 0x1p-52 - 1);
}

int64_t sent_bytes() {
  std::ifstream file("/sys/class/net/eth0/statistics/tx_bytes");
  int64_t bytes = 0;
  file >> bytes;
  return bytes;
}

class Rank {
 public:
  Rank(int64_t matrices, int64_t side)
      : matrices_(matrices),
        count_(side * side),
        rank_(job_.place().rank),
        ranks_(job_.place().world_size),
        comm_(job_.world()) {
    for (int64_t i = 0; i < count_; ++i) {
      own_.push_back(element(rank_, i));
      double sum = 0;
      for (int32_t r = 0; r < ranks_; ++r) sum += static_cast<double>(element(r, i));
      average_.push_back(static_cast<float>(sum / ranks_));
    }
    const auto parameters = static_cast<size_t>(matrices);
    for (const Way& way : kWays) {
      dt::ReducerOptions options;
      if (way.power_sgd == 0) options.wire = way.wire;
      reducers_.emplace_back(comm_, std::vector<dt::Param>(parameters, {count_, DT_F32, "matrix"}),
                             options);
      if (way.power_sgd == 0) continue;
      dt::PowerSgdOptions power_sgd;
      power_sgd.rank = way.power_sgd;
      power_sgd.wire = way.wire;
      reducers_.back().power_sgd(std::vector<int64_t>(parameters, side), power_sgd);
    }
  }

  void run(int64_t rounds) {
    for (int64_t round = 0; round <= rounds; ++round) {
      for (size_t way = 0; way < reducers_.size(); ++way) {
        const int64_t sent = sent_bytes();
        const double ms = step(&reducers_[way]);
        if (round == 0) {
          check(kWays[way], &reducers_[way]);
        } else if (rank_ == 0) {
          std::printf("%s %.3f %lld\n", kWays[way].name, ms,
                      static_cast<long long>(sent_bytes() - sent));
        }
      }
    }
    reducers_.clear();
    job_.finalize();
  }

 private:
  /// Milliseconds until the slowest rank is done.
  double step(dt::Reducer* reducer) {
    const auto bytes = static_cast<size_t>(count_) * sizeof(float);
    for (int32_t i = 0; i < matrices_; ++i) std::memcpy(reducer->grad(i), own_.data(), bytes);
    comm_.barrier();
    const auto begin = std::chrono::steady_clock::now();
    for (int32_t i = static_cast<int32_t>(matrices_); i-- > 0;) reducer->ready(i);
    reducer->finish();
    double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    comm_.allreduce({&ms, 1}, DT_MAX);
    return ms;
  }

  void check(const Way& way, dt::Reducer* reducer) {
    for (int32_t i = 0; i < matrices_; ++i) {
      const auto* result = reducer->grad_as<float>(i);
      comm_.check_equal(result, count_ * 4, way.name);
      if (way.power_sgd > 0) continue;
      for (int64_t at = 0; at < count_; ++at) {
        const auto wanted = static_cast<double>(average_[static_cast<size_t>(at)]);
        if (std::fabs(static_cast<double>(result[at]) - wanted) <= way.tolerance) continue;
        throw std::runtime_error(std::string(way.name) + ": a wrong average");
      }
    }
  }

  dt::Job job_;
  const int64_t matrices_;
  const int64_t count_;  // elements of a matrix
  const int32_t rank_;
  const int32_t ranks_;
  dt::Comm comm_;
  std::vector<float> own_;      // [count_] gradients, the same for each matrix
  std::vector<float> average_;  // [count_]
  std::vector<dt::Reducer> reducers_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: slow_network ROUNDS MATRICES SIDE\n");
    return 2;
  }
  try {
    Rank(std::atoll(argv[2]), std::atoll(argv[3])).run(std::atoll(argv[1]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "slow_network: %s\n", error.what());
    std::_Exit(1);
  }
  return 0;
}
