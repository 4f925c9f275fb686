// SPDX-License-Identifier: Apache-2.0
// What is refused where ranks use some of the parameters in a step. That it works: steps_test.cc.
#include "thread_ranks.h"

using namespace dt_test;

namespace {

constexpr dt_param kParams[] = {{300, nullptr, DT_F32, 0}, {5, nullptr, DT_F32, 0}};

}  // namespace

TEST_CASE("unused: without find_unused it is refused, and a missing gradient is an error") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, kParams, 2, nullptr, &reducer));
    int32_t used = -1;
    const bool refused =
        dt_reducer_unused(reducer, 1, nullptr, nullptr) == DT_ERR_INVALID_STATE &&
        contains(dt_last_error(), "parameter #1 \"\": the reducer was not made with find_unused") &&
        dt_reducer_used(reducer, 1, &used) == DT_ERR_INVALID_STATE && used == -1 &&
        dt_reducer_finish(reducer, nullptr) == DT_ERR_INVALID_STATE &&
        contains(dt_last_error(), "no gradient for #");
    dt_reducer_destroy(reducer);
    return refused ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("unused: said twice, or of a gradient that was ready, and ranks with other options") {
  const auto outcomes = run_ranks(2, [](const Rank& rank) -> dt_status {
    dt_reducer_options options;
    dt_reducer_options_init(&options);
    options.find_unused = 1;
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, kParams, 2, &options, &reducer));
    RANK_TRY(dt_reducer_unused(reducer, 0, nullptr, nullptr));
    const bool refused =
        dt_reducer_unused(reducer, 0, nullptr, nullptr) == DT_ERR_INVALID_STATE &&
        contains(dt_last_error(), "dt_reducer_unused: parameter #0 \"\" became ready twice");
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    dt_reducer_destroy(reducer);
    if (!refused) return DT_ERR_INTERNAL;
    options.find_unused = rank.rank;
    return dt_reducer_create(rank.world, kParams, 2, &options, &reducer);
  });
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.status == DT_ERR_MISMATCH);
    CHECK_MESSAGE(contains(outcome.message, "find_unused"), outcome.message);
  }
}
