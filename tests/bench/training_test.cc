// SPDX-License-Identifier: Apache-2.0
// The parts of the benchmark of overlap, over host memory.
#include "training.h"

#include <doctest/doctest.h>

#include "../multiprocess/thread_ranks.h"

using namespace dt::test;

namespace {

dt_status worked(const dt::Status& status) {
  if (!status.ok()) MESSAGE(status.message());
  return status.ok() ? DT_OK : DT_ERR_INTERNAL;
}

dt::Status train(const dt_test::Rank& rank) {
  Session session(rank.job, rank.world, nullptr);
  Training::Options options;
  options.layers = 5;
  options.layer_count = 1000;
  bool spoils = false;
  const auto compute = [&spoils](Layer layer) {
    if (spoils) layer.value += 1;
    run_layer(layer);
    return dt::Status();
  };
  DT_TRY_VALUE(const auto training, Training::create(&session, options, compute));
  DT_TRY(training->verify());
  training->set_layer_ns(100'000);
  DT_TRY_VALUE(const Measured measured, measure(&session, training.get(), 4));
  for (const auto& steps : measured.steps) CHECK(steps.size() == 4);
  for (const Part part : {Part::kCompute, Part::kBoth}) {
    for (const StepTimes& each : measured.steps[static_cast<int>(part)]) {
      CHECK(each.wall_us >= 500);
      CHECK(each.gpu_us == each.wall_us);
    }
  }
  for (const double share : measured.hidden_by_reducer) {
    CHECK(share >= 0);
    CHECK(share <= 1);
  }
  CHECK(measured.hidden_by_gpu.size() == 4);
  CHECK(training->statistics().bucket_count >= 1);
  spoils = true;
  CHECK(dt_test::contains(training->verify().message(), "of layer 0 is "));
  return {};
}

Measured pretended(double compute, double alone, double both) {
  Measured measured;
  const double times[] = {compute, alone, both};
  for (int i = 0; i < 3; ++i) measured.steps[i] = {{times[i], times[i]}};
  measured.hidden_by_gpu = measured.hidden_by_wall = {hidden_share(compute, alone, both)};
  measured.hidden_by_reducer = {0.5};
  return measured;
}

}  // namespace

TEST_CASE("steps are verified, take the time they should, and are measured in turns") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    dt_test::require_all_ok(
        dt_test::run_ranks(ranks, [](const dt_test::Rank& rank) { return worked(train(rank)); }));
  }
}

TEST_CASE("the hidden share is what a step with communication does not take longer") {
  CHECK(hidden_share(200, 100, 200) == doctest::Approx(1));
  CHECK(hidden_share(200, 100, 300) == doctest::Approx(0));
  CHECK(hidden_share(200, 100, 205) == doctest::Approx(0.95));
  CHECK(hidden_share(200, 0, 200) == doctest::Approx(1));
}

TEST_CASE("the goal is told as reached or missed") {
  const std::string goal = "goal: at least 95 % hidden when compute is 2 times communication: ";
  CHECK(goal_line(pretended(200, 100, 204), 2) == goal + "reached, 96.0 % at 2.00 times\n");
  CHECK(goal_line(pretended(200, 100, 250), 2) == goal + "missed, 50.0 % at 2.00 times\n");
  CHECK(goal_line(pretended(200, 100, 204), 1) ==
        goal + "not judged, one rank has nothing to communicate\n");
  const std::string table = overlap_table(pretended(200, 100, 250), true);
  CHECK(dt_test::contains(table, "both, us by events                      250.0      250.0"));
  CHECK(dt_test::contains(table, "hidden share, by events                 0.500      0.500"));
  CHECK_FALSE(dt_test::contains(overlap_table(pretended(200, 100, 250), false), "by events"));
}
