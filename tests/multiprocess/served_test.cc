// SPDX-License-Identifier: Apache-2.0
// Many jobs at one store of dt_store_serve().
#include <chrono>
#include <latch>

#include "thread_ranks.h"

namespace dt_test::served_test {

namespace {

using Body = std::function<dt_status(const Rank&)>;

constexpr int64_t kAtOnceMs = 10'000;  // far below the 20 s for which rank_config() waits

/// One rank of a job at `port`, from dt_init to dt_finalize.
Outcome run_rank(int rank, int world_size, int32_t port, const Settings& settings,
                 const Body& body) {
  dt_config* const config = rank_config(rank, world_size, port, settings);
  Rank self{rank, world_size, nullptr, nullptr};
  Outcome outcome = outcome_of(config == nullptr ? DT_ERR_CONFIG : dt_init(config, &self.job));
  dt_config_destroy(config);
  if (outcome.status != DT_OK) return outcome;
  outcome = outcome_of(dt_comm_world(self.job, &self.world));
  if (outcome.status == DT_OK) outcome = outcome_of(body(self));
  if (outcome.status == DT_OK) outcome = outcome_of(dt_finalize(self.job, 20'000));
  dt_comm_destroy(self.world);
  dt_job_destroy(self.job);
  return outcome;
}

std::vector<Outcome> run_at(const ServedStore& store, int world_size, const Settings& settings,
                            const Body& body) {
  std::vector<Outcome> outcomes(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      outcomes[static_cast<size_t>(rank)] =
          run_rank(rank, world_size, store.port(), settings, body);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

Settings job(const std::string& id, int attempt = 0) {
  return {{"job.id", id}, {"job.attempt", std::to_string(attempt)}};
}

/// All ranks are there, and the store holds nothing of another job.
dt_status find_nothing_of_others(const Rank& rank) {
  int64_t came = 0;
  RANK_TRY(dt_store_add(rank.job, "came", 1, -1, &came));
  RANK_TRY(dt_store_barrier(rank.job, "came", 0, -1));
  RANK_TRY(dt_store_add(rank.job, "came", 0, -1, &came));
  int64_t sum = 1;
  RANK_TRY(dt_allreduce(rank.world, &sum, &sum, 1, DT_I64, DT_SUM, nullptr, nullptr));
  return came == rank.world_size && sum == rank.world_size ? DT_OK : DT_ERR_INTERNAL;
}

/// What a rank hears that comes to an attempt that is over.
void check_refused_at_once(const ServedStore& store, const Settings& settings,
                           const std::string& text) {
  const auto start = std::chrono::steady_clock::now();
  const Outcome late = run_rank(1, 2, store.port(), settings, find_nothing_of_others);
  const auto took = std::chrono::steady_clock::now() - start;
  INFO(late.message);
  CHECK(late.status == DT_ERR_CONFIG);
  CHECK(contains(late.message, text));
  CHECK(took < std::chrono::milliseconds(kAtOnceMs));
}

}  // namespace

TEST_CASE("served: job after job, of the same name, of others, and of other sizes") {
  const ServedStore store(2);
  struct Case {
    const char* id;
    int world_size;
  };
  for (const Case& each :
       {Case{"test", 2}, {"test", 2}, {"b", 2}, {"b", 2}, {"b", 3}, {"test", 3}}) {
    CAPTURE(std::string(each.id));
    CAPTURE(each.world_size);
    require_all_ok(run_at(store, each.world_size, job(each.id), find_nothing_of_others));
  }
}

TEST_CASE("served: jobs of several names at the same time") {
  const ServedStore store(2);
  std::latch all_there(6);
  const auto meet = [&](const Rank& rank) -> dt_status {
    all_there.arrive_and_wait();
    for (int i = 0; i < 10; ++i) RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
    return find_nothing_of_others(rank);
  };
  std::vector<Outcome> outcomes[3];
  std::vector<std::thread> jobs;
  for (int i = 0; i < 3; ++i) {
    static constexpr const char* kNames[] = {"test", "b", "c"};
    jobs.emplace_back([&, i] { outcomes[i] = run_at(store, 2, job(kNames[i]), meet); });
  }
  for (std::thread& each : jobs) each.join();
  for (const auto& each : outcomes) require_all_ok(each);
}

TEST_CASE("served: after a death the next attempt follows, and the one before is over at once") {
  const ServedStore store(2);
  for (const char* id : {"test", "other"}) {
    CAPTURE(std::string(id));
    const auto failed = run_at(store, 2, job(id), [](const Rank& rank) -> dt_status {
      RANK_TRY(dt_store_set(rank.job, "old", "x", 1, -1));
      return rank.rank == 1 ? DT_ERR_INTERNAL : dt_barrier(rank.world, nullptr, nullptr);
    });
    CHECK(failed[0].status != DT_OK);
    check_refused_at_once(store, job(id),
                          "cannot take its place: start a new attempt with a higher job.attempt on "
                          "all ranks, or a job of another job.id");
    require_all_ok(run_at(store, 3, job(id, 4), [](const Rank& rank) -> dt_status {
      const char* const key = "old";
      if (dt_store_wait(rank.job, &key, 1, 0) == DT_OK) return DT_ERR_INTERNAL;
      return find_nothing_of_others(rank);
    }));
    check_refused_at_once(store, job(id, 3),
                          " serves job \"" + std::string(id) +
                              "\" attempt 4; this process belongs to job \"" + id +
                              "\" attempt 3 (stale)");
  }
}

TEST_CASE("served: ranks of an attempt that lives hear that the next one has begun") {
  const ServedStore store(2);
  std::latch inside(2);
  std::vector<Outcome> old;
  std::thread before([&] {
    old = run_at(store, 2, job("test", 1), [&](const Rank& rank) -> dt_status {
      inside.count_down();
      int64_t bytes = 0;
      if (rank.rank == 1) return dt_store_get(rank.job, "never", 20'000, nullptr, 0, &bytes);
      return dt_barrier(rank.world, nullptr, nullptr);
    });
  });
  inside.wait();
  require_all_ok(run_at(store, 2, job("test", 2), find_nothing_of_others));
  before.join();
  for (const Outcome& outcome : old) {
    INFO(outcome.message);
    CHECK(outcome.status == DT_ERR_ABORTED);
    CHECK(contains(outcome.message, "attempt 1 of job \"test\" is over: rank "));
    CHECK(contains(outcome.message, " has begun attempt 2; end this process"));
  }
}

}  // namespace dt_test::served_test
