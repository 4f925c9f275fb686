// SPDX-License-Identifier: Apache-2.0
// The example trainer as a job of one rank on a GPU, through libdt.
#include <doctest/doctest.h>

#include <cmath>
#include <dt/dt.hpp>
#include <string>

#include "device_cuda.h"
#include "trainer.h"

using namespace gpt;

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
    dt::Config config;
    config.set("backend.name", "nccl");
    config.set("backend.device", "0");
    config.set("job.rank", "0");
    config.set("job.world_size", "1");
    dt::Job job(config);
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
    options.accumulate = each.accumulate;
    options.clip = each.clip;
    options.wire = each.wire;
    std::string text;
    while (text.size() < 5000) text += "the quick brown fox jumps over the lazy dog; ";
    {
      Trainer trainer(options, &job, make_cuda_device(0, each.precision), text);
      trainer.run();
      REQUIRE(trainer.losses().size() == 20);
      CHECK(trainer.losses().front() == doctest::Approx(std::log(256.0)).epsilon(0.02));
      CHECK(trainer.losses().back() < trainer.losses().front() - 1.0);
    }
    job.finalize();
  }
}
