// SPDX-License-Identifier: Apache-2.0
// What is refused where ranks use some of the parameters in a step. That it works: steps_test.cc.
#include "thread_ranks.h"

namespace dt_test::unused_test {

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

TEST_CASE("static graph: a step that differs from step 1 is an error with the parameter's name") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    const dt_param params[] = {
        {3, "twice", DT_F32, 0}, {3, "of rank 1", DT_F32, 0}, {3, "nobody's", DT_F32, 0}};
    dt_reducer_options options;
    dt_reducer_options_init(&options);
    options.static_graph = 1;
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, params, 3, &options, &reducer));
    float twice[] = {1, 2, 3};
    float other[] = {4, 5, 6};
    float none[] = {7, 8, 9};
    const auto step = [&](int times) -> dt_status {
      for (int i = 0; i < times; ++i) RANK_TRY(dt_reducer_ready(reducer, 0, twice, nullptr));
      if (rank.rank == 1) RANK_TRY(dt_reducer_ready(reducer, 1, other, nullptr));
      if (rank.rank == 0) RANK_TRY(dt_reducer_unused(reducer, 1, other, nullptr));
      return dt_reducer_finish(reducer, nullptr);
    };
    RANK_TRY(step(2));
    int32_t used[3];
    for (int32_t i = 0; i < 3; ++i) RANK_TRY(dt_reducer_used(reducer, i, &used[i]));
    bool right = twice[0] == 2 && twice[2] == 6 && other[0] == 2 && none[0] == 7 && used[0] == 1 &&
                 used[1] == 1 && used[2] == 0;
    other[0] = 4;
    RANK_TRY(step(2));
    right = right && twice[0] == 4 && other[0] == 2;

    right = right && dt_reducer_ready(reducer, 2, none, nullptr) == DT_ERR_INVALID_STATE &&
            contains(dt_last_error(),
                     "dt_reducer_ready: parameter #2 \"nobody's\" became ready "
                     "more often on rank " +
                         std::to_string(rank.rank) + " than in step 1 (0 times)") &&
            dt_reducer_unused(reducer, 0, twice, nullptr) == DT_ERR_INVALID_STATE &&
            contains(dt_last_error(), "#0 \"twice\" has a gradient in each step") &&
            step(1) == DT_ERR_INVALID_STATE &&
            contains(dt_last_error(),
                     "no gradient for #0 \"twice\" (ready 1 of 2 times, as in step 1)");
    RANK_TRY(step(2));  // the communicator is whole
    dt_reducer_destroy(reducer);
    return right ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("static graph: a gradient that only accumulates is an error on all ranks") {
  const auto outcomes = run_ranks(2, [](const Rank& rank) -> dt_status {
    dt_reducer_options options;
    dt_reducer_options_init(&options);
    options.static_graph = 1;
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, kParams, 2, &options, &reducer));
    std::vector<float> gradient(300, 1);
    RANK_TRY(dt_reducer_accumulate(reducer, 1));
    if (rank.rank == 1) RANK_TRY(dt_reducer_ready(reducer, 1, gradient.data(), nullptr));
    RANK_TRY(dt_reducer_accumulate(reducer, 0));
    RANK_TRY(dt_reducer_ready(reducer, 0, gradient.data(), nullptr));
    const dt_status status = dt_reducer_finish(reducer, nullptr);
    const std::string text = dt_last_error();
    for (int step = 0; step < 2; ++step) {  // step 1 comes again
      RANK_TRY(dt_reducer_ready(reducer, 0, gradient.data(), nullptr));
      RANK_TRY(dt_reducer_finish(reducer, nullptr));
    }
    dt_reducer_destroy(reducer);
    return status != DT_ERR_INVALID_STATE ? DT_ERR_INTERNAL
           : contains(text, rank.rank == 1
                                ? "#1 \"\" had a gradient on rank 1 only while the reducer "
                                  "accumulated"
                                : "another rank had a gradient only while its reducer")
               ? DT_OK
               : DT_ERR_INTERNAL;
  });
  require_all_ok(outcomes);
}

}  // namespace dt_test::unused_test
