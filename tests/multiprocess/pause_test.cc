// SPDX-License-Identifier: Apache-2.0
// Ranks that are away on purpose, votes, and the time-out of the first operations.
#include "thread_ranks.h"

namespace dt_test::pause_test {

namespace {

/// Lets so many ms go by, or returns another error than the expected time-out.
dt_status pass(dt_job* job, int64_t ms) {
  int64_t bytes = 0;
  const dt_status status = dt_store_get(job, "never", ms, nullptr, 0, &bytes);
  return status == DT_ERR_TIMEOUT ? DT_OK : status;
}

dt_status signal_to_others(dt_job* job, const char* key) {
  return dt_store_set(job, key, "", 0, -1);
}

dt_status await(dt_job* job, const char* key) { return dt_store_wait(job, &key, 1, -1); }

/// Submits an allreduce by name, and waits for it.
dt_status run_by_name(dt_named* named) {
  float value = 1;
  dt_collective collective;
  dt_collective_init(&collective);
  collective.kind = DT_KIND_ALLREDUCE;
  collective.dtype = DT_F32;
  collective.op = DT_SUM;
  collective.count = 1;
  collective.send = collective.recv = &value;
  dt_work* work = nullptr;
  RANK_TRY(dt_named_submit(named, "gradient", &collective, &work));
  int32_t done = 0;
  const dt_status status = dt_work_wait(work, 20'000, &done);
  dt_work_destroy(work);
  return status != DT_OK || done == 1 ? status : DT_ERR_INTERNAL;
}

/// Two ranks, on one host and then on two.
void check_on_hosts(const std::string& timeout_ms,
                    const std::function<dt_status(const Rank&)>& body) {
  for (const bool apart : {false, true}) {
    CAPTURE(apart);
    require_all_ok(
        run_ranks(2, body, {{"collective.timeout_ms", timeout_ms}}, [&](int rank) -> Settings {
          return {{"job.host_id", apart && rank == 1 ? "other" : "one"}};
        }));
  }
}

}  // namespace

TEST_CASE("operations wait for a rank that is busy, beyond their time-out") {
  const auto outcomes =
      run_ranks(3,
                [](const Rank& rank) -> dt_status {
                  RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
                  if (rank.rank == 0) {
                    RANK_TRY(dt_busy_begin(rank.job, "checkpoint", 60'000));
                    RANK_TRY(signal_to_others(rank.job, "away"));
                    RANK_TRY(pass(rank.job, 2500));
                    RANK_TRY(dt_busy_end(rank.job));
                  } else {
                    RANK_TRY(await(rank.job, "away"));  // told of the pause before
                  }
                  return dt_barrier(rank.world, nullptr, nullptr);
                },
                {{"collective.timeout_ms", "1000"}});
  require_all_ok(outcomes);
}

TEST_CASE("who is back first does not end the pause of another, nor does a shorter one") {
  const auto outcomes = run_ranks(3,
                                  [](const Rank& rank) -> dt_status {
                                    RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
                                    if (rank.rank == 0) {
                                      RANK_TRY(dt_busy_begin(rank.job, "checkpoint", 60'000));
                                      RANK_TRY(signal_to_others(rank.job, "away"));
                                      RANK_TRY(pass(rank.job, 2500));
                                      RANK_TRY(dt_busy_end(rank.job));
                                    } else {
                                      RANK_TRY(await(rank.job, "away"));
                                      RANK_TRY(dt_busy_begin(rank.job, "checkpoint", 1));
                                      if (rank.rank == 1) RANK_TRY(dt_busy_end(rank.job));
                                    }
                                    return dt_barrier(rank.world, nullptr, nullptr);
                                  },
                                  {{"collective.timeout_ms", "1000"}});
  require_all_ok(outcomes);
}

TEST_CASE("a communicator made in a pause waits for who is away, too") {
  const auto outcomes =
      run_ranks(2,
                [](const Rank& rank) -> dt_status {
                  if (rank.rank == 0) RANK_TRY(dt_busy_begin(rank.job, "evaluation", 60'000));
                  RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));  // both know of it
                  dt_comm* part = nullptr;
                  RANK_TRY(dt_comm_split(rank.world, 0, rank.rank, &part));
                  if (rank.rank == 0) RANK_TRY(pass(rank.job, 2500));
                  const dt_status status = dt_barrier(part, nullptr, nullptr);
                  dt_comm_destroy(part);
                  return status;
                },
                {{"collective.timeout_ms", "1000"}});
  require_all_ok(outcomes);
}

TEST_CASE("a rank that is back has the usual time, and no more") {
  const auto outcomes =
      run_ranks(2,
                [](const Rank& rank) -> dt_status {
                  if (rank.rank == 1) {
                    RANK_TRY(dt_busy_begin(rank.job, nullptr, 600'000));
                    RANK_TRY(dt_busy_end(rank.job));
                    RANK_TRY(signal_to_others(rank.job, "back"));
                    return await(rank.job, "done");
                  }
                  RANK_TRY(await(rank.job, "back"));
                  const dt_status late = dt_barrier(rank.world, nullptr, nullptr);
                  const bool named = contains(dt_last_error(), "rank 1 (");
                  RANK_TRY(signal_to_others(rank.job, "done"));
                  return late == DT_ERR_TIMEOUT && named ? DT_OK : DT_ERR_INTERNAL;
                },
                {{"collective.timeout_ms", "1000"}});
  require_all_ok(outcomes);
}

TEST_CASE("a wait that began in a pause ends its time-out after it, not after what was announced") {
  check_on_hosts("1000", [](const Rank& rank) -> dt_status {
    if (rank.rank == 1) {
      RANK_TRY(dt_busy_begin(rank.job, nullptr, 600'000));
      RANK_TRY(signal_to_others(rank.job, "away"));
      RANK_TRY(await(rank.job, "inside"));
      RANK_TRY(pass(rank.job, 1500));
      RANK_TRY(dt_busy_end(rank.job));
      return await(rank.job, "done");
    }
    RANK_TRY(await(rank.job, "away"));
    RANK_TRY(signal_to_others(rank.job, "inside"));
    const dt_status late = dt_barrier(rank.world, nullptr, nullptr);
    RANK_TRY(signal_to_others(rank.job, "done"));
    return late == DT_ERR_TIMEOUT ? DT_OK : DT_ERR_INTERNAL;
  });
}

TEST_CASE("named operations wait for a rank that is busy, too, and no longer than that") {
  const auto outcomes = run_ranks(3,
                                  [](const Rank& rank) -> dt_status {
                                    dt_named* named = nullptr;
                                    RANK_TRY(dt_named_create(rank.world, nullptr, &named));
                                    if (rank.rank == 1) {
                                      RANK_TRY(dt_busy_begin(rank.job, "checkpoint", 600'000));
                                      RANK_TRY(signal_to_others(rank.job, "away"));
                                      RANK_TRY(pass(rank.job, 2500));
                                      RANK_TRY(dt_busy_end(rank.job));
                                    } else {
                                      RANK_TRY(await(rank.job, "away"));
                                    }
                                    RANK_TRY(run_by_name(named));
                                    // Now it does not come after the pause, which ends before the
                                    // time announced.
                                    if (rank.rank == 1) {
                                      RANK_TRY(dt_busy_begin(rank.job, nullptr, 600'000));
                                      RANK_TRY(signal_to_others(rank.job, "away again"));
                                      RANK_TRY(pass(rank.job, 1500));
                                      RANK_TRY(dt_busy_end(rank.job));
                                      RANK_TRY(dt_store_barrier(rank.job, "done", 0, -1));
                                    } else {
                                      RANK_TRY(await(rank.job, "away again"));
                                      const dt_status late = run_by_name(named);
                                      const bool blames = contains(dt_last_error(), "rank 1 (");
                                      RANK_TRY(dt_store_barrier(rank.job, "done", 0, -1));
                                      if (late != DT_ERR_TIMEOUT || !blames) return DT_ERR_INTERNAL;
                                    }
                                    dt_named_destroy(named);
                                    return DT_OK;
                                  },
                                  {{"collective.timeout_ms", "1000"}});
  require_all_ok(outcomes);
}

TEST_CASE("after a pause an operation's own time-out counts, not that of the communicator") {
  check_on_hosts("3600000", [](const Rank& rank) -> dt_status {
    if (rank.rank == 1) {
      RANK_TRY(dt_busy_begin(rank.job, nullptr, 600'000));
      RANK_TRY(dt_busy_end(rank.job));
      RANK_TRY(signal_to_others(rank.job, "back"));
      const char* key = "done";
      return dt_store_wait(rank.job, &key, 1, 60'000);
    }
    RANK_TRY(await(rank.job, "back"));
    dt_collective barrier;
    dt_collective_init(&barrier);
    barrier.kind = DT_KIND_BARRIER;
    barrier.timeout_ms = 300;
    const dt_status late = dt_collective_launch(rank.world, &barrier, nullptr);
    RANK_TRY(signal_to_others(rank.job, "done"));
    return late == DT_ERR_TIMEOUT ? DT_OK : DT_ERR_INTERNAL;
  });
}

TEST_CASE("a rank that does not come back in time is waited for as long as it said, and named") {
  const auto outcomes =
      run_ranks(2,
                [](const Rank& rank) -> dt_status {
                  if (rank.rank == 1) {
                    RANK_TRY(dt_busy_begin(rank.job, "checkpoint", 500));
                    RANK_TRY(signal_to_others(rank.job, "away"));
                    return await(rank.job, "done");
                  }
                  RANK_TRY(await(rank.job, "away"));
                  const dt_status late = dt_barrier(rank.world, nullptr, nullptr);
                  const bool named = contains(dt_last_error(), "rank 1 (");
                  RANK_TRY(signal_to_others(rank.job, "done"));
                  return late == DT_ERR_TIMEOUT && named ? DT_OK : DT_ERR_INTERNAL;
                },
                {{"collective.timeout_ms", "1000"}});
  require_all_ok(outcomes);
}

TEST_CASE("no operation times out in the first collective.first_timeout_ms of a communicator") {
  const auto outcomes =
      run_ranks(2,
                [](const Rank& rank) -> dt_status {
                  if (rank.rank == 1) RANK_TRY(pass(rank.job, 1500));
                  return dt_barrier(rank.world, nullptr, nullptr);
                },
                {{"collective.timeout_ms", "200"}, {"collective.first_timeout_ms", "60000"}});
  require_all_ok(outcomes);
}

TEST_CASE("a step is kept where all ranks agree") {
  const auto outcomes = run_ranks(3, [](const Rank& rank) -> dt_status {
    int32_t agreed = -1;
    RANK_TRY(dt_agree(rank.job, 7, &agreed));
    if (agreed != 1) return DT_ERR_INTERNAL;
    RANK_TRY(dt_agree(rank.job, rank.rank == 1 ? 0 : 1, &agreed));
    return agreed == 0 ? DT_OK : DT_ERR_INTERNAL;
  });
  require_all_ok(outcomes);
}

TEST_CASE("one rank's request stops all in the same step") {
  const auto outcomes = run_ranks(3, [](const Rank& rank) -> dt_status {
    for (int step = 0; step < 5; ++step) {
      if (rank.rank == 2 && step == 3) RANK_TRY(dt_request_stop(rank.job));
      int32_t stop = -1;
      RANK_TRY(dt_stop_requested(rank.job, &stop));
      if (stop != (step >= 3 ? 1 : 0)) return DT_ERR_INTERNAL;
    }
    return DT_OK;
  });
  require_all_ok(outcomes);
}

}  // namespace dt_test::pause_test
