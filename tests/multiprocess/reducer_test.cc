// SPDX-License-Identifier: Apache-2.0
// The reducer, on ranks that are threads of this process.
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>

#include "thread_ranks.h"

namespace dt_test::reducer_test {

namespace {

const std::vector<int64_t> kCounts = {1000, 1, 0, 70'000, 333, 4096, 5};

std::vector<dt_param> params_of(const std::vector<int64_t>& counts,
                                const std::vector<std::string>& names) {
  std::vector<dt_param> params(counts.size());
  for (size_t i = 0; i < counts.size(); ++i) {
    params[i] = {counts[i], names[i].c_str(), DT_F32, 0};
  }
  return params;
}

std::vector<std::string> names_of(size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back("layer" + std::to_string(i) + ".weight");
  return names;
}

float gradient(int step, int rank, size_t param, int64_t i) {
  return static_cast<float>(step + rank * 4 + static_cast<int>(param) * 8 + i % 64);
}

/// Sum over ranks of gradient() / world size; exact for world sizes that are powers of two.
float mean(int world_size, int step, size_t param, int64_t i) {
  float sum = 0;
  for (int r = 0; r < world_size; ++r) {
    sum += gradient(step, r, param, i) * (1.0f / static_cast<float>(world_size));
  }
  return sum;
}

dt_reducer_options small_buckets() {
  dt_reducer_options options;
  dt_reducer_options_init(&options);
  options.first_bucket_bytes = 2000;
  options.bucket_cap_bytes = 100'000;
  return options;
}

}  // namespace

TEST_CASE("reducer: averages gradients in place and copied in, step after step") {
  for (const int world_size : {1, 2, 4}) {
    for (const bool in_place : {true, false}) {
      CAPTURE(world_size);
      CAPTURE(in_place);
      std::atomic<int> wrong{0};
      require_all_ok(run_ranks(world_size, [&](const Rank& rank) -> dt_status {
        const auto names = names_of(kCounts.size());
        const auto params = params_of(kCounts, names);
        const dt_reducer_options options = small_buckets();
        dt_reducer* reducer = nullptr;
        RANK_TRY(dt_reducer_create(rank.world, params.data(), static_cast<int32_t>(params.size()),
                                   &options, &reducer));
        std::vector<std::vector<float>> own;
        for (const int64_t count : kCounts) own.emplace_back(static_cast<size_t>(count));
        for (int step = 0; step < 4; ++step) {
          std::vector<float*> grads;
          for (size_t p = 0; p < kCounts.size(); ++p) {
            void* view = own[p].data();
            if (in_place)
              RANK_TRY(dt_reducer_grad(reducer, static_cast<int32_t>(p), nullptr, &view));
            if (in_place && reinterpret_cast<uintptr_t>(view) % 256 != 0) ++wrong;
            grads.push_back(static_cast<float*>(view));
          }
          for (size_t k = kCounts.size(); k-- > 0;) {
            // the arrival order differs between ranks
            const size_t p = (k + static_cast<size_t>(rank.rank)) % kCounts.size();
            for (int64_t i = 0; i < kCounts[p]; ++i) grads[p][i] = gradient(step, rank.rank, p, i);
            RANK_TRY(dt_reducer_ready(reducer, static_cast<int32_t>(p),
                                      in_place ? nullptr : grads[p], nullptr));
          }
          RANK_TRY(dt_reducer_finish(reducer, nullptr));
          for (size_t p = 0; p < kCounts.size(); ++p) {
            for (int64_t i = 0; i < kCounts[p]; ++i) {
              if (grads[p][i] != mean(world_size, step, p, i)) ++wrong;
            }
          }
          if (in_place && step == 1) RANK_TRY(dt_reducer_rebuild(reducer, nullptr));
        }
        dt_reducer_statistics statistics;
        dt_reducer_statistics_init(&statistics);
        RANK_TRY(dt_reducer_stats(reducer, &statistics));
        if (statistics.steps != 4 || statistics.rebuilt != 1 ||
            statistics.bytes != (1000 + 1 + 70'000 + 333 + 4096 + 5) * 4 ||
            statistics.hidden_share < 0 || statistics.hidden_share > 1 ||
            statistics.bucket_count < 3) {
          ++wrong;
        }
        dt_reducer_destroy(reducer);
        return DT_OK;
      }));
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("reducer: with reducer.log_steps rank 0 says what a step took, at any log level") {
  struct Log {
    std::vector<std::string> lines;
    static void take(void* self, dt_log_level level, const char* message) {
      if (level == DT_LOG_INFO) static_cast<Log*>(self)->lines.emplace_back(message);
    }
  };
  Log logs[2];  // each written by the one thread of its rank
  const ServedStore store(2);
  const auto train = [&](int rank) {
    dt_config* const config = rank_config(rank, 2, store.port(), {{"reducer.log_steps", "3"}});
    CHECK(dt_config_set_log_sink(config, Log::take, &logs[rank]) == DT_OK);
    dt_job* job = nullptr;
    dt_comm* world = nullptr;
    CHECK(dt_init(config, &job) == DT_OK);
    dt_config_destroy(config);
    CHECK(dt_comm_world(job, &world) == DT_OK);
    const dt_param param = {250'000, "weight", DT_F32, 0};
    std::vector<float> grad(250'000);
    dt_reducer* reducer = nullptr;
    CHECK(dt_reducer_create(world, &param, 1, nullptr, &reducer) == DT_OK);
    for (int step = 1; step <= 8; ++step) {
      CHECK(dt_reducer_ready(reducer, 0, grad.data(), nullptr) == DT_OK);
      CHECK(dt_reducer_finish(reducer, nullptr) == DT_OK);
    }
    dt_reducer_destroy(reducer);
    dt_comm_destroy(world);
    dt_finalize(job, 20000);
    dt_job_destroy(job);
  };
  std::thread other(train, 1);
  train(0);
  other.join();
  CHECK(logs[1].lines.empty());
  REQUIRE(logs[0].lines.size() == 2);
  for (const size_t i : {0, 1}) {
    const std::string& line = logs[0].lines[i];
    double step_ms = -1, bytes = -1, communication_ms = -1, exposed_ms = -1;
    char end = 0;
    const std::string pattern =
        std::string("reducer on comm \"world\", steps ") + (i == 0 ? "2 to 3" : "4 to 6") +
        ": %lf ms a step; %lf MB of gradients were under way for %lf ms, of "
        "which %lf ms were waited fo%c";
    INFO(line);
    CHECK(sscanf(line.c_str(), pattern.c_str(), &step_ms, &bytes, &communication_ms, &exposed_ms,
                 &end) == 5);
    CHECK(bytes == 1.0);
    CHECK(communication_ms <= step_ms + 0.01);
    CHECK(exposed_ms >= 0);
    CHECK(exposed_ms <= communication_ms + 0.01);
  }
}

TEST_CASE("reducer: parameters join and are frozen between steps, by a new reducer") {
  for (const int world_size : {1, 2, 4}) {
    CAPTURE(world_size);
    std::atomic<int> wrong{0};
    require_all_ok(run_ranks(world_size, [&](const Rank& rank) -> dt_status {
      const auto names = names_of(kCounts.size());
      const auto params = params_of(kCounts, names);
      dt_reducer* before = nullptr;
      int step = 0;
      // All of them; two frozen; other two instead.
      for (const auto& trained : std::vector<std::vector<size_t>>{
               {0, 1, 2, 3, 4, 5, 6}, {0, 1, 2, 5, 6}, {3, 4, 5, 6, 0}}) {
        std::vector<dt_param> chosen;
        for (const size_t p : trained) chosen.push_back(params[p]);
        const dt_reducer_options options = small_buckets();
        dt_reducer* reducer = nullptr;
        RANK_TRY(dt_reducer_create(rank.world, chosen.data(), static_cast<int32_t>(chosen.size()),
                                   &options, &reducer));
        dt_reducer_destroy(before);
        before = reducer;
        for (const int end = step + 2; step < end; ++step) {
          std::vector<std::vector<float>> grads;
          for (size_t k = 0; k < trained.size(); ++k) {
            std::vector<float>& grad = grads.emplace_back();
            for (int64_t i = 0; i < chosen[k].count; ++i) {
              grad.push_back(gradient(step, rank.rank, trained[k], i));
            }
          }
          for (size_t k = trained.size(); k-- > 0;) {
            RANK_TRY(dt_reducer_ready(reducer, static_cast<int32_t>(k), grads[k].data(), nullptr));
          }
          RANK_TRY(dt_reducer_finish(reducer, nullptr));
          for (size_t k = 0; k < trained.size(); ++k) {
            for (int64_t i = 0; i < chosen[k].count; ++i) {
              if (grads[k][static_cast<size_t>(i)] != mean(world_size, step, trained[k], i))
                ++wrong;
            }
          }
        }
      }
      dt_reducer_destroy(before);
      return DT_OK;
    }));
    CHECK(wrong == 0);
  }
}

TEST_CASE("reducer: buckets are rebuilt by the arrival order of rank 0") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    const std::vector<int64_t> counts(4, 500);
    const auto names = names_of(4);
    const auto params = params_of(counts, names);
    const dt_reducer_options options =
        small_buckets();  // 2000 bytes: one parameter fills the first
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, params.data(), 4, &options, &reducer));
    int32_t bucket = -1;
    RANK_TRY(dt_reducer_bucket(reducer, 3, &bucket));
    if (bucket != 0) return DT_ERR_INTERNAL;  // reverse order of registration
    std::vector<std::vector<float>> own(4, std::vector<float>(500, 1.0f));
    for (int k = 0; k < 4; ++k) {
      const int p = rank.rank == 0 ? (k + 1) % 4 : 3 - k;
      RANK_TRY(dt_reducer_ready(reducer, p, own[static_cast<size_t>(p)].data(), nullptr));
    }
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    RANK_TRY(dt_reducer_bucket(reducer, 1, &bucket));
    dt_reducer_destroy(reducer);
    return bucket == 0 ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("reducer: the size of buckets is tuned, and no result depends on it") {
  for (const bool in_place : {false, true}) {
    CAPTURE(in_place);
    std::atomic<int> wrong{0};
    std::atomic<int64_t> caps[2];
    require_all_ok(run_ranks(2, [&](const Rank& rank) -> dt_status {
      const std::vector<int64_t> counts(16, 500);
      const auto names = names_of(counts.size());
      const auto params = params_of(counts, names);
      dt_reducer_options options = small_buckets();
      options.bucket_cap_bytes = 8000;  // 4 parameters
      options.tune_steps = 3;
      dt_reducer* reducer = nullptr;
      RANK_TRY(dt_reducer_create(rank.world, params.data(), 16, &options, &reducer));
      std::vector<std::vector<float>> own(counts.size(), std::vector<float>(500));
      dt_reducer_statistics statistics;
      dt_reducer_statistics_init(&statistics);
      std::vector<int32_t> bucket_counts;
      for (int step = 0; step < 14; ++step) {
        for (int32_t p = 15; p >= 0; --p) {
          void* place = own[static_cast<size_t>(p)].data();
          if (in_place) RANK_TRY(dt_reducer_grad(reducer, p, nullptr, &place));
          for (int64_t i = 0; i < 500; ++i) {
            static_cast<float*>(place)[i] = gradient(step, rank.rank, static_cast<size_t>(p), i);
          }
          RANK_TRY(dt_reducer_ready(reducer, p, in_place ? nullptr : place, nullptr));
        }
        RANK_TRY(dt_reducer_finish(reducer, nullptr));
        for (int32_t p = 0; p < 16; ++p) {
          void* place = own[static_cast<size_t>(p)].data();
          if (in_place) RANK_TRY(dt_reducer_grad(reducer, p, nullptr, &place));
          for (int64_t i = 0; i < 500; ++i) {
            const float expected = mean(2, step, static_cast<size_t>(p), i);
            if (static_cast<float*>(place)[i] != expected) ++wrong;
          }
        }
        RANK_TRY(dt_reducer_stats(reducer, &statistics));
        // With views a change waits for the call, here one step late.
        if (in_place && step == 3 && statistics.bucket_count != bucket_counts[0]) ++wrong;
        if (in_place && step > 0 && step % 3 == 0) RANK_TRY(dt_reducer_rebuild(reducer, nullptr));
        RANK_TRY(dt_reducer_stats(reducer, &statistics));
        bucket_counts.push_back(statistics.bucket_count);
        if (statistics.tuned != (step >= (in_place ? 9 : 8) ? 1 : 0)) ++wrong;
      }
      // The first of one parameter, then 4 by 4; with a quarter one by one, as with a sixteenth;
      // with four times the cap all behind the first.
      if (bucket_counts[0] != 5 || bucket_counts[3] != 16 || bucket_counts[7] != 2) ++wrong;
      caps[rank.rank] = statistics.bucket_cap_bytes;
      dt_reducer_destroy(reducer);
      return DT_OK;
    }));
    CHECK(wrong == 0);
    CHECK(caps[0] == caps[1]);
  }
}

TEST_CASE("reducer: a missing gradient is named on all ranks and the next step works") {
  const auto body = [](const Rank& rank, std::string* message) -> dt_status {
    const auto names = names_of(kCounts.size());
    const auto params = params_of(kCounts, names);
    const dt_reducer_options options = small_buckets();
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, params.data(), static_cast<int32_t>(params.size()),
                               &options, &reducer));
    for (int step = 0; step < 2; ++step) {
      for (int32_t p = 0; p < static_cast<int32_t>(params.size()); ++p) {
        if (step == 0 && rank.rank == 1 && p == 4) continue;
        RANK_TRY(dt_reducer_ready(reducer, p, nullptr, nullptr));
      }
      const dt_status status = dt_reducer_finish(reducer, nullptr);
      if (step == 0) {
        *message = dt_last_error();
        if (status != DT_ERR_INVALID_STATE) return DT_ERR_INTERNAL;
      } else {
        RANK_TRY(status);
      }
    }
    dt_reducer_destroy(reducer);
    return dt_comm_check(rank.world);
  };
  std::vector<std::string> messages(3);
  require_all_ok(run_ranks(
      3, [&](const Rank& rank) { return body(rank, &messages[static_cast<size_t>(rank.rank)]); }));
  for (const std::string& message : messages) {
    INFO(message);
    CHECK(contains(message, "rank 1"));
    CHECK(contains(message, "#4 \"layer4.weight\""));
  }
}

TEST_CASE("reducer: a gradient that is ready twice is an error of that call") {
  require_all_ok(run_ranks(1, [](const Rank& rank) -> dt_status {
    const auto names = names_of(2);
    const auto params = params_of({10, 10}, names);
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, params.data(), 2, nullptr, &reducer));
    RANK_TRY(dt_reducer_ready(reducer, 1, nullptr, nullptr));
    if (dt_reducer_ready(reducer, 1, nullptr, nullptr) != DT_ERR_INVALID_STATE)
      return DT_ERR_INTERNAL;
    if (!contains(dt_last_error(), "layer1.weight")) return DT_ERR_INTERNAL;
    RANK_TRY(dt_reducer_ready(reducer, 0, nullptr, nullptr));
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    dt_reducer_destroy(reducer);
    return DT_OK;
  }));
}

TEST_CASE("reducer: models that differ are refused on all ranks at the first difference") {
  struct Case {
    std::vector<int64_t> odd;  // counts on rank 2
    const char* part;
  };
  for (const Case& each : {Case{{10, 20, 31}, "parameter #2"}, Case{{10, 20}, "has none"},
                           Case{{10, 20, 30, 40}, "parameter #3"}}) {
    const auto outcomes = run_ranks(3, [&](const Rank& rank) -> dt_status {
      const auto names = names_of(4);
      const auto params =
          params_of(rank.rank == 2 ? each.odd : std::vector<int64_t>{10, 20, 30}, names);
      dt_reducer* reducer = nullptr;
      return dt_reducer_create(rank.world, params.data(), static_cast<int32_t>(params.size()),
                               nullptr, &reducer);
    });
    for (const Outcome& outcome : outcomes) {
      INFO(outcome.message);
      CHECK(outcome.status == DT_ERR_MISMATCH);
      CHECK(contains(outcome.message, each.part));
      CHECK(contains(outcome.message, "rank 2"));
    }
  }
}

TEST_CASE("reducer: destroyed inside a step it leaves the job whole") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    const auto names = names_of(2);
    const auto params = params_of({100'000, 100'000}, names);
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, params.data(), 2, nullptr, &reducer));
    RANK_TRY(dt_reducer_ready(reducer, 1, nullptr, nullptr));
    RANK_TRY(dt_reducer_ready(reducer, 0, nullptr, nullptr));
    dt_reducer_destroy(reducer);
    return dt_barrier(rank.world, nullptr, nullptr);
  }));
}

TEST_CASE("reducer: threads that call what one may call alone get an error, and do no harm") {
  require_all_ok(run_ranks(1, [](const Rank& rank) -> dt_status {
    const auto names = names_of(kCounts.size());
    const auto params = params_of(kCounts, names);
    const dt_reducer_options options = small_buckets();
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, params.data(), static_cast<int32_t>(params.size()),
                               &options, &reducer));
    std::atomic<int> other_errors{0};
    std::vector<std::vector<float>> gradients;
    for (const int64_t count : kCounts) gradients.emplace_back(static_cast<size_t>(count) + 1);
    const auto count_error = [&](dt_status status) {
      if (status != DT_OK && status != DT_ERR_INVALID_STATE) ++other_errors;
    };
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < 300; ++i) {
          const auto index = static_cast<int32_t>((i + thread) % static_cast<int>(kCounts.size()));
          float* const gradient = gradients[static_cast<size_t>(index)].data();
          count_error(dt_reducer_ready(reducer, index, gradient, nullptr));
          int32_t value = 0;
          count_error(dt_reducer_bucket(reducer, index, &value));
          count_error(dt_reducer_finish(reducer, nullptr));
          if (i % 50 == 0) count_error(dt_reducer_rebuild(reducer, &value));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    dt_reducer_destroy(reducer);
    return other_errors == 0 ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("reducer: gradients that are adjacent on one rank alone make equal buckets everywhere") {
  require_all_ok(run_ranks(3, [](const Rank& rank) -> dt_status {
    std::vector<float> flat(9, static_cast<float>(rank.rank));
    const dt_param params[] = {{3, "a", DT_F32, 0}, {3, "b", DT_F32, 0}, {2, "c", DT_F32, 0}};
    // a and b are adjacent everywhere, c to b on rank 0 alone.
    void* const grads[] = {&flat[0], &flat[3], &flat[rank.rank == 0 ? 6 : 7]};
    dt_reducer_options options;
    dt_reducer_options_init(&options);
    options.grads = grads;
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, params, 3, &options, &reducer));
    int32_t buckets[3];
    for (int32_t i = 0; i < 3; ++i) RANK_TRY(dt_reducer_bucket(reducer, i, &buckets[i]));
    for (int32_t i = 3; i-- > 0;) RANK_TRY(dt_reducer_ready(reducer, i, nullptr, nullptr));
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    dt_reducer_destroy(reducer);
    const auto gap = static_cast<size_t>(rank.rank == 0 ? 8 : 6);
    for (size_t i = 0; i < flat.size(); ++i) {
      if (flat[i] != (i == gap ? static_cast<float>(rank.rank) : 1)) return DT_ERR_INTERNAL;
    }
    if (buckets[2] != 0 || buckets[0] != 1 || buckets[1] != 1) return DT_ERR_INTERNAL;
    options.grads = rank.rank == 1 ? nullptr : grads;
    const dt_status status = dt_reducer_create(rank.world, params, 3, &options, &reducer);
    const bool named = contains(dt_last_error(), "grads, given");
    return status == DT_ERR_MISMATCH && named ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("reducer: destroyed inside a step it leaves the caller's gradients alone") {
  struct Gone {
    std::atomic<int>* flag;
    explicit Gone(std::atomic<int>* to) : flag(to) {}
    Gone(const Gone&) = delete;
    Gone& operator=(const Gone&) = delete;
    ~Gone() {
      flag->store(1);
      flag->notify_one();
    }
  };
  for (const bool over_hosts : {false, true}) {
    CAPTURE(over_hosts);
    std::atomic<int> gone{0};
    const auto outcomes = run_ranks(
        2,
        [&gone](const Rank& rank) -> dt_status {
          std::optional<Gone> told;  // also where rank 1 fails
          if (rank.rank == 1) told.emplace(&gone);
          std::vector<float> flat(100'000, 1);
          const dt_param params[] = {{50'000, "a", DT_F32, 0}, {50'000, "b", DT_F32, 0}};
          void* const grads[] = {&flat[0], &flat[50'000]};
          dt_reducer_options options = small_buckets();
          options.grads = grads;
          dt_reducer* reducer = nullptr;
          RANK_TRY(dt_reducer_create(rank.world, params, 2, &options, &reducer));
          if (rank.rank == 1) {
            RANK_TRY(dt_reducer_ready(reducer, 1, nullptr, nullptr));  // is under way
            dt_reducer_destroy(reducer);                               // nobody comes
            std::fill(flat.begin(), flat.end(), 7.0F);
            told.reset();
            const dt_status status = dt_barrier(rank.world, nullptr, nullptr);
            for (const float each : flat) {
              if (each != 7) return DT_ERR_INTERNAL;
            }
            return status;
          }
          gone.wait(0);
          for (int32_t i = 2; i-- > 0;) (void)dt_reducer_ready(reducer, i, nullptr, nullptr);
          const dt_status status = dt_reducer_finish(reducer, nullptr);
          const std::string text = dt_last_error();
          dt_reducer_destroy(reducer);
          if (!contains(text.c_str(), "destroyed its reducer inside a step"))
            return DT_ERR_INTERNAL;
          return status;
        },
        {},
        [over_hosts](int rank) -> Settings {
          return {{"job.host_id", over_hosts && rank == 1 ? "other" : "one"}};
        });
    for (const Outcome& outcome : outcomes) {
      CHECK_MESSAGE(outcome.status == DT_ERR_ABORTED, outcome.message);
    }
  }
}

}  // namespace dt_test::reducer_test
