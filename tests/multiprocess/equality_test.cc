// SPDX-License-Identifier: Apache-2.0
// Whether ranks hold the same, and which of them does not; on ranks that are threads of this
// process.
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "thread_ranks.h"

namespace dt_test::equality_test {

namespace {

std::vector<float> weights_of(int64_t count) {
  std::vector<float> weights;
  for (int64_t i = 0; i < count; ++i) weights.push_back(static_cast<float>(i) * 0.25f);
  return weights;
}

int64_t bytes_of(const std::vector<float>& values) {
  return static_cast<int64_t>(values.size() * sizeof values[0]);
}

/// Every rank got MISMATCH with all the parts in its text.
void check_mismatch(const std::vector<Outcome>& outcomes, const std::vector<std::string>& parts) {
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.status == DT_ERR_MISMATCH);
    for (const std::string& part : parts) {
      CAPTURE(part);
      CHECK(contains(outcome.message, part));
    }
  }
}

/// `found`, and dt_last_error() with it, after an operation that shows that the communicator is
/// whole.
dt_status then_barrier(const Rank& rank, dt_status found) {
  RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
  return found;
}

}  // namespace

TEST_CASE("check_equal: the same bytes on all ranks are equal, whatever their number") {
  for (const int world_size : {1, 2, 3, 8}) {
    CAPTURE(world_size);
    require_all_ok(run_ranks(world_size, [](const Rank& rank) -> dt_status {
      for (const int64_t count : {0, 1, 7, 8, 1000, 300'001}) {
        const auto weights = weights_of(count);
        RANK_TRY(dt_check_equal(rank.world, weights.data(), bytes_of(weights), "weights", nullptr));
      }
      return dt_check_equal(rank.world, nullptr, 0, nullptr, nullptr);
    }));
  }
}

TEST_CASE("check_equal: one flipped bit names the rank that has it, on all ranks") {
  std::vector<dt_error_info> infos(4);
  const auto outcomes = run_ranks(4, [&](const Rank& rank) -> dt_status {
    auto weights = weights_of(1000);
    if (rank.rank == 2) {
      uint32_t bits = 0;
      memcpy(&bits, &weights[617], sizeof bits);
      bits ^= 1;
      memcpy(&weights[617], &bits, sizeof bits);
    }
    const dt_status status =
        dt_check_equal(rank.world, weights.data(), bytes_of(weights), "fc.weight", nullptr);
    dt_error_info& info = infos[static_cast<size_t>(rank.rank)];
    dt_error_info_init(&info);
    RANK_TRY(dt_last_error_info(&info));
    return then_barrier(rank, status);
  });
  const std::string pid = std::to_string(getpid());
  for (size_t r = 0; r < outcomes.size(); ++r) {
    CAPTURE(r);
    CHECK(infos[r].status == DT_ERR_MISMATCH);
    CHECK(infos[r].rank == 2);
    CHECK(infos[r].pid == getpid());
    CHECK(infos[r].host[0] != '\0');
    CHECK(std::string(infos[r].operation) == "check_equal");
    const std::string message = infos[r].message;
    INFO(message);
    CHECK(message.rfind("dt_check_equal \"fc.weight\" on comm \"world\", rank " +
                            std::to_string(r) + ": ranks hold different data: rank 2 (",
                        0) == 0);
    CHECK(contains(message, ", pid " + pid + ") has \"fc.weight\", 4000 bytes, hash "));
    CHECK(contains(message, ", while rank 0 ("));
    CHECK(contains(message, " and 2 more have: \"fc.weight\", 4000 bytes, hash "));
    CHECK(contains(message, "; give all ranks the same again"));
  }
  check_mismatch(outcomes, {"rank 2 ("});
}

TEST_CASE("check_equal: without a majority every side is shown, and nobody is blamed") {
  std::vector<int32_t> blamed(2, 77);
  const auto outcomes = run_ranks(2, [&](const Rank& rank) -> dt_status {
    const int64_t value = 40 + rank.rank;
    const dt_status status =
        dt_check_equal(rank.world, &value, sizeof value, "step counter", nullptr);
    dt_error_info info;
    dt_error_info_init(&info);
    RANK_TRY(dt_last_error_info(&info));
    blamed[static_cast<size_t>(rank.rank)] = info.rank;
    return status;
  });
  check_mismatch(outcomes, {"rank 0 (", "rank 1 (", "\"step counter\", 8 bytes, hash "});
  CHECK(blamed == std::vector<int32_t>{-1, -1});
}

TEST_CASE("check_equal: other sizes and other names differ, too") {
  check_mismatch(run_ranks(3,
                           [](const Rank& rank) {
                             const auto weights = weights_of(rank.rank == 1 ? 9 : 10);
                             return dt_check_equal(rank.world, weights.data(), bytes_of(weights),
                                                   nullptr, nullptr);
                           }),
                 {"rank 1 (", " has 36 bytes, hash ", " and 1 more have: 40 bytes, hash "});
  check_mismatch(run_ranks(3,
                           [](const Rank& rank) {
                             const auto weights = weights_of(10);
                             return dt_check_equal(rank.world, weights.data(), bytes_of(weights),
                                                   rank.rank == 0 ? "bias" : "weight", nullptr);
                           }),
                 {"rank 0 (", " has \"bias\", 40 bytes, hash ", "have: \"weight\", 40 bytes"});
}

TEST_CASE("check_equal: of a part of the ranks, with world ranks in the text") {
  const auto outcomes = run_ranks(6, [](const Rank& rank) -> dt_status {
    dt_comm* part = nullptr;
    RANK_TRY(dt_comm_split(rank.world, rank.rank % 2, 0, &part));
    const int64_t value = rank.rank == 5 ? 1 : 0;
    const dt_status status = dt_check_equal(part, &value, sizeof value, "v", nullptr);
    dt_comm_destroy(part);
    return status;
  });
  for (size_t r = 0; r < outcomes.size(); ++r) {
    INFO(outcomes[r].message);
    CHECK(outcomes[r].status == (r % 2 == 0 ? DT_OK : DT_ERR_MISMATCH));
    if (r % 2 == 1) CHECK(contains(outcomes[r].message, "rank 2 (world rank 5, "));
  }
}

namespace {

struct SamplerCase {
  const char* what;
  void (*change)(dt_sampler_options*);
  std::vector<std::string> parts;
};

dt_status check_sampler(const Rank& rank, const dt_sampler_options& options, int64_t epoch) {
  dt_sampler* sampler = nullptr;
  RANK_TRY(dt_sampler_create(&options, &sampler));
  RANK_TRY(dt_sampler_set_epoch(sampler, epoch));
  const dt_status status = dt_sampler_check(sampler, rank.world);
  dt_sampler_destroy(sampler);
  return then_barrier(rank, status);
}

dt_sampler_options sampler_options(const Rank& rank) {
  dt_sampler_options options;
  dt_sampler_options_init(&options);
  options.world_size = rank.world_size;
  options.rank = rank.rank;
  options.size = 1000;
  options.seed = 42;
  return options;
}

}  // namespace

TEST_CASE("sampler_check: samplers that belong together pass, in every epoch") {
  for (const int world_size : {1, 2, 3}) {
    require_all_ok(run_ranks(world_size, [](const Rank& rank) -> dt_status {
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        RANK_TRY(check_sampler(rank, sampler_options(rank), epoch));
      }
      return DT_OK;
    }));
  }
}

TEST_CASE("sampler_check: the first difference is named with both sides, on all ranks") {
  const SamplerCase cases[] = {
      {"seed", [](dt_sampler_options* o) { o->seed = 7; }, {"has seed = 42", "has seed = 7"}},
      {"size", [](dt_sampler_options* o) { o->size = 999; }, {"has size = 1000", "has size = 999"}},
      {"order",
       [](dt_sampler_options* o) { o->sequential = 1; },
       {"has sequential = 0", "has sequential = 1"}},
      {"tail",
       [](dt_sampler_options* o) { o->drop_last = 1; },
       {"has drop_last = 0", "has drop_last = 1"}},
      {"batches",
       [](dt_sampler_options* o) { o->whole_batches = 1; },
       {"has whole_batches = 0", "has whole_batches = 1"}},
      {"blocks", [](dt_sampler_options* o) { o->block = 8; }, {"has block = 0", "has block = 8"}},
      {"weights",
       [](dt_sampler_options* o) {
         static const std::vector<double> weights(1000, 0.5);
         o->weights = weights.data();
       },
       {"has draws = 0", "has draws = 1000"}},
      {"world size",
       [](dt_sampler_options* o) { o->world_size = 4; },
       {"has world_size = 3", "has world_size = 4"}},
      {"part",
       [](dt_sampler_options* o) { o->rank = 0; },
       {"two ranks deal themselves the same samples", "has rank = 0"}},
  };
  for (const SamplerCase& each : cases) {
    CAPTURE(each.what);
    const auto outcomes = run_ranks(3, [&](const Rank& rank) {
      dt_sampler_options options = sampler_options(rank);
      if (rank.rank == 1) each.change(&options);
      return check_sampler(rank, options, 0);
    });
    check_mismatch(outcomes, {"dt_sampler_check on comm \"world\", rank "});
    check_mismatch(outcomes, each.parts);
  }
  std::vector<std::string> messages(3);
  (void)run_ranks(3, [&](const Rank& rank) -> dt_status {
    dt_sampler* sampler = nullptr;
    const dt_sampler_options options = sampler_options(rank);
    RANK_TRY(dt_sampler_create(&options, &sampler));
    RANK_TRY(dt_sampler_set_epoch(sampler, rank.rank == 2 ? 5 : 4));
    const dt_status status = dt_sampler_check(sampler, rank.world);
    messages[static_cast<size_t>(rank.rank)] = dt_last_error();
    dt_sampler_destroy(sampler);
    return status;
  });
  for (const std::string& message : messages) {
    INFO(message);
    CHECK(contains(message, "rank 0 ("));
    CHECK(contains(message, "has epoch = 4, rank 2 ("));
    CHECK(contains(message, "has epoch = 5; create the same sampler on every rank"));
  }
}

TEST_CASE("sampler_check: other weights, and another place in the epoch") {
  std::vector<std::string> messages(3);
  (void)run_ranks(3, [&](const Rank& rank) -> dt_status {
    std::vector<double> weights(1000, 0.5);
    if (rank.rank == 1) weights[999] = 0.25;
    dt_sampler* sampler = nullptr;
    dt_sampler_options options = sampler_options(rank);
    options.weights = weights.data();
    RANK_TRY(dt_sampler_create(&options, &sampler));
    const dt_status status = dt_sampler_check(sampler, rank.world);
    messages[static_cast<size_t>(rank.rank)] = dt_last_error();
    dt_sampler_destroy(sampler);
    return then_barrier(rank, status);
  });
  for (const std::string& message : messages) CHECK(contains(message, "has weights = "));
  require_all_ok(run_ranks(3, [&](const Rank& rank) -> dt_status {
    dt_sampler* sampler = nullptr;
    const dt_sampler_options options = sampler_options(rank);
    RANK_TRY(dt_sampler_create(&options, &sampler));
    int64_t batch[10];
    int64_t given = 0;
    RANK_TRY(dt_sampler_next(sampler, 10, batch, &given));
    RANK_TRY(dt_sampler_check(sampler, rank.world));
    if (rank.rank == 2) RANK_TRY(dt_sampler_next(sampler, 1, batch, &given));
    const dt_status status = dt_sampler_check(sampler, rank.world);
    messages[static_cast<size_t>(rank.rank)] = dt_last_error();
    dt_sampler_destroy(sampler);
    return status == DT_ERR_MISMATCH ? DT_OK : DT_ERR_INTERNAL;
  }));
  for (const std::string& message : messages) {
    INFO(message);
    CHECK(contains(message, "has consumed = 30, rank 2 ("));
    CHECK(contains(message,
                   "has consumed = 33; resume every rank from the same state, and take as "
                   "many samples on each"));
  }
}

namespace {

constexpr int kParams = 3;

/// Steps of a reducer that watches its parameters, until the first error; says in which step.
dt_status train_watched(const Rank& rank, int steps, int bad_step, int bad_rank, int* failed_step) {
  const dt_param params[kParams] = {
      {100, "conv.weight", DT_F32, 0}, {200, "fc.weight", DT_F32, 0}, {10, "fc.bias", DT_F32, 0}};
  dt_reducer* reducer = nullptr;
  RANK_TRY(dt_reducer_create(rank.world, params, kParams, nullptr, &reducer));
  std::vector<std::vector<float>> weights;
  std::vector<std::vector<float>> gradients;
  for (int32_t i = 0; i < kParams; ++i) {
    weights.push_back(weights_of(params[i].count));
    gradients.emplace_back(static_cast<size_t>(params[i].count), 1.0f);
    RANK_TRY(dt_reducer_watch(reducer, i, weights.back().data(), bytes_of(weights.back())));
  }
  dt_status status = DT_OK;
  for (int step = 1; step <= steps && status == DT_OK; ++step) {
    if (step == bad_step && rank.rank == bad_rank) weights[1][5] += 1.0f;
    for (int32_t i = kParams - 1; i >= 0; --i) {
      RANK_TRY(dt_reducer_ready(reducer, i, gradients[static_cast<size_t>(i)].data(), nullptr));
    }
    status = dt_reducer_finish(reducer, nullptr);
    if (status != DT_OK) *failed_step = step;
    for (size_t i = 0; i < weights.size(); ++i) {
      for (size_t k = 0; k < weights[i].size(); ++k) weights[i][k] -= 0.5f * gradients[i][k];
    }
  }
  dt_reducer_destroy(reducer);
  return status;
}

}  // namespace

TEST_CASE("reducer.check_steps: parameters that stay the same are never complained about") {
  require_all_ok(run_ranks(3,
                           [](const Rank& rank) {
                             int failed = 0;
                             return train_watched(rank, 7, 0, 0, &failed);
                           },
                           {{"reducer.check_steps", "2"}}));
}

TEST_CASE("reducer.check_steps: the parameter and the rank that diverged are named") {
  struct Case {
    int bad_step;
    int found_in;
  };
  // In the first step, and in each third.
  for (const Case& each : {Case{1, 1}, Case{2, 3}, Case{4, 6}}) {
    CAPTURE(each.bad_step);
    std::vector<int> failed(4);
    const auto outcomes = run_ranks(4,
                                    [&](const Rank& rank) {
                                      return train_watched(rank, 9, each.bad_step, 3,
                                                           &failed[static_cast<size_t>(rank.rank)]);
                                    },
                                    {{"reducer.check_steps", "3"}});
    check_mismatch(outcomes, {"dt_reducer_finish, step " + std::to_string(each.found_in) +
                                  " on comm \"world\", rank ",
                              "parameter: ranks hold different data: rank 3 (",
                              ") has \"#1 fc.weight\", 800 bytes, hash ", ", while rank 0 ("});
    CHECK(failed == std::vector<int>(4, each.found_in));
  }
}

TEST_CASE("reducer.check_steps: nothing is compared without it, nor what is not watched") {
  require_all_ok(run_ranks(2, [](const Rank& rank) {
    int failed = 0;
    return train_watched(rank, 3, 2, 1, &failed);
  }));
  const auto outcomes =
      run_ranks(2,
                [](const Rank& rank) -> dt_status {
                  const dt_param param = {4, "w", DT_F32, 0};
                  dt_reducer* reducer = nullptr;
                  RANK_TRY(dt_reducer_create(rank.world, &param, 1, nullptr, &reducer));
                  float gradient[4] = {};
                  const int64_t odd = rank.rank;
                  RANK_TRY(dt_reducer_watch(reducer, 0, &odd, sizeof odd));
                  RANK_TRY(dt_reducer_watch(reducer, 0, nullptr, 0));
                  RANK_TRY(dt_reducer_ready(reducer, 0, gradient, nullptr));
                  RANK_TRY(dt_reducer_finish(reducer, nullptr));
                  // What only one rank watches is a difference, and the reducer lives on.
                  if (rank.rank == 1) RANK_TRY(dt_reducer_watch(reducer, 0, &odd, sizeof odd));
                  RANK_TRY(dt_reducer_ready(reducer, 0, gradient, nullptr));
                  const dt_status status = dt_reducer_finish(reducer, nullptr);
                  const std::string message = dt_last_error();
                  if (status != DT_ERR_MISMATCH || !contains(message, "\"#0 w\", 8 bytes") ||
                      !contains(message, "\"no more\", 0 bytes")) {
                    return DT_ERR_INTERNAL;
                  }
                  RANK_TRY(dt_reducer_watch(reducer, 0, nullptr, 0));
                  RANK_TRY(dt_reducer_ready(reducer, 0, gradient, nullptr));
                  RANK_TRY(dt_reducer_finish(reducer, nullptr));
                  dt_reducer_destroy(reducer);
                  return DT_OK;
                },
                {{"reducer.check_steps", "1"}});
  require_all_ok(outcomes);
}

}  // namespace dt_test::equality_test
