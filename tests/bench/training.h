// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "layer.h"
#include "session.h"

namespace dt::test {

/// What a step does.
enum class Part { kCompute, kCommunicate, kBoth, kInTurn };
inline constexpr Part kParts[] = {Part::kCompute, Part::kCommunicate, Part::kBoth, Part::kInTurn};
inline constexpr int kPartCount = std::size(kParts);
const char* part_name(Part part);

/// How long a step took, on the slowest rank.
struct StepTimes {
  double gpu_us = 0;   ///< between CUDA's events around it; over host memory as `wall_us`
  double wall_us = 0;  ///< by the host's clock
};

/// A model that is trained without learning anything: layer after layer a backward pass of a known
/// duration, whose gradients a reducer averages. One thread.
class Training {
 public:
  struct Options {
    int32_t layers = 24;
    int64_t layer_count = 1 << 20;  ///< parameters
  };
  /// Runs a layer's backward pass in the order of the session's stream.
  using Compute = std::function<Status(const Layer&)>;

  /// Collective. UNSUPPORTED where there is no reducer for the session's memory.
  static Result<std::unique_ptr<Training>> create(Session* session, const Options& options,
                                                  Compute compute);
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  void set_layer_ns(int64_t duration_ns) { layer_ns_ = duration_ns; }
  int64_t layer_ns() const { return layer_ns_; }
  int32_t layers() const { return options_.layers; }

  /// Collective. Done when this returns.
  Result<StepTimes> step(Part part);
  dt_reducer_statistics statistics() const;
  /// Whether a step leaves the average of what the ranks wrote.
  Status verify();

 private:
  Training(Session* session, const Options& options, Compute compute);
  Status begin();
  Status enqueue(Part part);

  Session* const session_;
  const Options options_;
  const Compute compute_;
  dt_reducer* reducer_ = nullptr;
  std::vector<Layer> layers_;
  int64_t layer_ns_ = 0;
  cuda::Event begin_ = nullptr;
  cuda::Event end_ = nullptr;
};

/// Steps of all parts in turns.
struct Measured {
  std::vector<StepTimes> steps[kPartCount];  ///< by Part
  std::vector<double> hidden_by_gpu;  ///< in each round: 1 - (both - compute) / communication
  std::vector<double> hidden_by_wall;
  /// As dt_reducer_stats() says of the step of both: the longest of the ranks.
  std::vector<double> under_way_us;
  std::vector<double> waited_us;
  std::vector<double> hidden_by_reducer;
};
/// Collective.
Result<Measured> measure(Session* session, Training* training, int rounds);

/// The share of `alone` that is not seen in `both` beyond `compute`.
double hidden_share(double compute, double alone, double both);

/// `gpu`: with the figures by events, which are of a GPU alone.
std::string overlap_table(const Measured& measured, bool gpu);
/// The last line. `ranks`: with one there is nothing to hide.
std::string goal_line(const Measured& measured, int ranks);

}  // namespace dt::test
