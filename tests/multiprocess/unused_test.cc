// SPDX-License-Identifier: Apache-2.0
// A reducer whose ranks use some of the parameters in a step, against a plain loop.
#include <algorithm>
#include <random>

#include "thread_ranks.h"

using namespace dt_test;

namespace {

/// What rank `rank` does with a parameter in a step.
enum class Use { kGradient, kUnused, kUnusedInBucket, kUnsaid };

Use use_of(unsigned seed, int step, int rank, size_t param) {
  std::seed_seq sequence{seed, static_cast<unsigned>(step), static_cast<unsigned>(rank),
                         static_cast<unsigned>(param)};
  std::mt19937 random(sequence);
  if (param == 0) return Use::kUnused;  // nobody ever uses it
  const unsigned drawn = random() % 6;
  return drawn < 3 ? Use::kGradient : static_cast<Use>(drawn - 2);
}

float gradient(int step, int rank, size_t param, int64_t i) {
  return static_cast<float>((step * 5 + rank * 3 + static_cast<int>(param) * 7 + i) % 32);
}

constexpr float kUntouched = -77;

struct Model {
  std::vector<int64_t> counts;
  std::vector<dt_param> params;

  explicit Model(unsigned seed) {
    std::mt19937 random(seed);
    for (size_t i = 0; i < 2 + seed % 9; ++i) counts.push_back(random() % 700);
    for (const int64_t count : counts) params.push_back({count, nullptr, DT_F32, 0});
  }
};

dt_status run_steps(const Rank& rank, unsigned seed, int steps) {
  const Model model(seed);
  dt_reducer_options options;
  dt_reducer_options_init(&options);
  options.first_bucket_bytes = 1000;
  options.bucket_cap_bytes = 4000;
  options.find_unused = 1;
  dt_reducer* reducer = nullptr;
  RANK_TRY(dt_reducer_create(rank.world, model.params.data(),
                             static_cast<int32_t>(model.params.size()), &options, &reducer));
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<float>> grads;
    for (const int64_t count : model.counts) {
      grads.emplace_back(static_cast<size_t>(count) + 1, kUntouched);
    }
    for (size_t p = grads.size(); p-- > 0;) {
      const auto index = static_cast<int32_t>(p);
      float* const grad = grads[p].data();
      switch (use_of(seed, step, rank.rank, p)) {
        case Use::kGradient:
          for (int64_t i = 0; i < model.counts[p]; ++i) grad[i] = gradient(step, rank.rank, p, i);
          RANK_TRY(dt_reducer_ready(reducer, index, grad, nullptr));
          break;
        case Use::kUnused: RANK_TRY(dt_reducer_unused(reducer, index, grad, nullptr)); break;
        case Use::kUnusedInBucket:
          RANK_TRY(dt_reducer_unused(reducer, index, nullptr, nullptr));
          break;
        case Use::kUnsaid: break;
      }
    }
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    for (size_t p = 0; p < grads.size(); ++p) {
      std::vector<int> users;
      for (int r = 0; r < rank.world_size; ++r) {
        if (use_of(seed, step, r, p) == Use::kGradient) users.push_back(r);
      }
      const bool anybody = !users.empty();
      int32_t used = -1;
      RANK_TRY(dt_reducer_used(reducer, static_cast<int32_t>(p), &used));
      if (used != (anybody ? 1 : 0)) return DT_ERR_INTERNAL;
      const Use mine = use_of(seed, step, rank.rank, p);
      const bool outside = mine == Use::kGradient || mine == Use::kUnused;
      if (!outside && step == 0) continue;  // the plan that was made behind it moves buckets
      void* place = grads[p].data();
      if (!outside) RANK_TRY(dt_reducer_grad(reducer, static_cast<int32_t>(p), &place));
      for (int64_t i = 0; i < model.counts[p]; ++i) {
        float sum = 0;
        for (const int user : users) sum += gradient(step, user, p, i);
        const float wanted = anybody   ? sum / static_cast<float>(rank.world_size)
                             : outside ? kUntouched
                                       : 0;
        const float found = static_cast<const float*>(place)[i];
        if (std::abs(found - wanted) > 1e-4F) return DT_ERR_INTERNAL;
      }
      if (grads[p].back() != kUntouched) return DT_ERR_INTERNAL;
    }
  }
  dt_reducer_destroy(reducer);
  return DT_OK;
}

}  // namespace

TEST_CASE("unused: random models and sets of what each rank uses, on one host and over several") {
  const std::vector<std::vector<int>> layouts = {{0}, {0, 0}, {0, 0, 0, 0}, {0, 1}, {0, 1, 1}};
  for (const auto& hosts : layouts) {
    CAPTURE(hosts.size());
    CAPTURE(hosts.back());
    require_all_ok(run_ranks(
        static_cast<int>(hosts.size()),
        [](const Rank& rank) -> dt_status {
          for (unsigned seed = 0; seed < 20; ++seed) RANK_TRY(run_steps(rank, seed, 4));
          return DT_OK;
        },
        {},
        [&](int rank) -> Settings {
          return {{"job.host_id", "host" + std::to_string(hosts[static_cast<size_t>(rank)])}};
        }));
  }
}

TEST_CASE("unused: without find_unused it is refused, and a missing gradient is an error") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    const Model model(3);
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, model.params.data(),
                               static_cast<int32_t>(model.params.size()), nullptr, &reducer));
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
    const Model model(3);
    dt_reducer_options options;
    dt_reducer_options_init(&options);
    options.find_unused = 1;
    dt_reducer* reducer = nullptr;
    const auto count = static_cast<int32_t>(model.params.size());
    RANK_TRY(dt_reducer_create(rank.world, model.params.data(), count, &options, &reducer));
    RANK_TRY(dt_reducer_unused(reducer, 0, nullptr, nullptr));
    const bool refused =
        dt_reducer_unused(reducer, 0, nullptr, nullptr) == DT_ERR_INVALID_STATE &&
        contains(dt_last_error(), "dt_reducer_unused: parameter #0 \"\" became ready twice");
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    dt_reducer_destroy(reducer);
    if (!refused) return DT_ERR_INTERNAL;
    options.find_unused = rank.rank;
    return dt_reducer_create(rank.world, model.params.data(), count, &options, &reducer);
  });
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.status == DT_ERR_MISMATCH);
    CHECK_MESSAGE(contains(outcome.message, "find_unused"), outcome.message);
  }
}
