// SPDX-License-Identifier: Apache-2.0
#include "training/bucket_tuner.h"

#include <doctest/doctest.h>

using dt::training::BucketTuner;

TEST_CASE("bucket tuner: each cap has its steps, the first two untimed, and the fastest stays") {
  BucketTuner tuner({100, 25, 400}, 4);
  int64_t now = 0;
  const int64_t step_ns[] = {10, 5, 7};
  const int64_t next[] = {25, 400, 25};
  for (int cap = 0; cap < 3; ++cap) {
    for (int step = 0; step < 4; ++step) {
      CHECK(tuner.tuning());
      CHECK_FALSE(tuner.has_result());
      CHECK(tuner.wants_time() == (step == 1 || step == 3));
      now += step < 2 ? 1000 : step_ns[cap];
      tuner.end_step(now);
    }
    CHECK(tuner.has_result());
    CHECK(tuner.result_ns() == 2 * step_ns[cap]);
    tuner.end_step(now += 5000);  // before next_cap(): it does not count
    CHECK(tuner.next_cap(tuner.result_ns()) == next[cap]);
  }
  CHECK_FALSE(tuner.tuning());
  CHECK_FALSE(tuner.has_result());
}

TEST_CASE("bucket tuner: where all caps are as fast the one that was asked for stays") {
  BucketTuner tuner({100, 25}, 3);
  CHECK(tuner.next_cap(7) == 25);
  CHECK(tuner.next_cap(7) == 100);
}

TEST_CASE("bucket tuner: a cap whose time could not be taken is not chosen") {
  BucketTuner tuner({100, 25}, 3);
  for (int64_t step = 0; step < 3; ++step) {
    if (step == 1) tuner.lose_time();
    tuner.end_step(step);
  }
  CHECK(tuner.result_ns() == BucketTuner::kSlowest);
  CHECK(tuner.next_cap(tuner.result_ns()) == 25);
  for (int64_t step = 0; step < 3; ++step) tuner.end_step(100 * step);
  CHECK(tuner.result_ns() == 100);
  CHECK(tuner.next_cap(tuner.result_ns()) == 25);
}
