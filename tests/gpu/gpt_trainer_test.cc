// SPDX-License-Identifier: Apache-2.0
// The example trainer as a job of one rank on a GPU, through libdt.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <dt/dt.hpp>
#include <optional>
#include <string>
#include <vector>

#include "device_cuda.h"
#include "trainer.h"

using namespace gpt;

namespace {

Options small_model() {
  Options options;
  options.shape.layers = 2;
  options.shape.channels = 32;
  options.shape.length = 32;
  options.batch = 4;
  options.steps = 20;
  options.interval = 1;  // every loss is read
  options.rate = 0.01;
  options.bucket_bytes = 20'000;  // several buckets
  options.quiet = true;
  return options;
}

/// As a job of one rank; the losses.
std::vector<double> train(const Options& options, Precision precision) {
  dt::Config config;
  config.set("backend.name", "nccl");
  config.set("backend.device", "0");
  config.set("job.rank", "0");
  config.set("job.world_size", "1");
  dt::Job job(config);
  std::string text;
  while (text.size() < 5000) text += "the quick brown fox jumps over the lazy dog; ";
  std::vector<double> losses;
  {
    Trainer trainer(options, &job, make_cuda_device(0, precision), text);
    trainer.run();
    losses = trainer.losses();
  }
  job.finalize();
  return losses;
}

}  // namespace

TEST_CASE("a job of one GPU trains twenty steps and its loss falls") {
  struct Case {
    Precision precision;
    int64_t accumulate;
    double clip;
    const char* wire;
  };
  for (const Case& each :
       {Case{Precision::kF32, 1, 0, "same"}, Case{Precision::kBf16, 1, 0, "same"},
        Case{Precision::kF32, 2, 1, "bf16"}, Case{Precision::kBf16, 2, 1, "same"}}) {
    CAPTURE(static_cast<int>(each.precision));
    CAPTURE(each.accumulate);
    Options options = small_model();
    options.accumulate = each.accumulate;
    options.clip = each.clip;
    options.wire = each.wire;
    if (each.accumulate > 1) options.tune_steps = 3;
    const std::vector<double> losses = train(options, each.precision);
    REQUIRE(losses.size() == 20);
    CHECK(losses.front() == doctest::Approx(std::log(256.0)).epsilon(0.02));
    CHECK(losses.back() < losses.front() - 1.0);
  }
}

TEST_CASE("shards of every stage learn the same bit by bit, and nearly what is learnt without") {
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    for (const int64_t passes : {1, 2}) {
      CAPTURE(static_cast<int>(precision));
      CAPTURE(passes);
      Options options = small_model();
      options.steps = 10;
      options.accumulate = passes;
      options.clip = passes == 1 ? 0 : 1;
      const std::vector<double> without = train(options, precision);
      std::optional<std::vector<double>> first;
      for (const int64_t stage : {0, 1, 2, 3}) {
        CAPTURE(stage);
        options.zero = stage;
        const std::vector<double> losses = train(options, precision);
        if (!first) first = losses;
        CHECK(losses == *first);
        REQUIRE(losses.size() == without.size());
        CHECK(losses.front() == without.front());  // before the first update
        // The network's own AdamW rounds elsewhere, and in bf16 begins with exact values.
        const double most = precision == Precision::kF32 ? 1e-3 : 0.03;
        for (size_t i = 0; i < losses.size(); ++i) {
          CAPTURE(i);
          CHECK(losses[i] == doctest::Approx(without[i]).epsilon(most));
        }
      }
    }
  }
}
