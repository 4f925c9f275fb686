// SPDX-License-Identifier: Apache-2.0
// Operations described by a dt_collective: what the named functions cannot say.
#include <string>
#include <vector>

#include "thread_ranks.h"

namespace dt_test::launch_test {

namespace {

constexpr int64_t kWaitMs = 20'000;

dt_collective sum_of(int64_t* value, const char* name, int64_t timeout_ms) {
  dt_collective one;
  dt_collective_init(&one);
  one.kind = DT_KIND_ALLREDUCE;
  one.dtype = DT_I64;
  one.send = value;
  one.recv = value;
  one.count = 1;
  one.name = name;
  one.timeout_ms = timeout_ms;
  return one;
}

}  // namespace

TEST_CASE("launch: an operation's own limit ends it, and its name is in the message") {
  const auto outcomes = run_ranks(3, [](const Rank& rank) -> dt_status {
    if (rank.rank == 1) return dt_store_barrier(rank.job, "after", 3, 20000);
    int64_t value = 1;
    const dt_collective one = sum_of(&value, "loss of step 7", rank.rank == 0 ? 200 : 0);
    const dt_status status = dt_collective_launch(rank.world, &one, nullptr);
    const std::string message = dt_last_error();
    RANK_TRY(dt_store_barrier(rank.job, "after", 3, 20000));
    if (status != DT_ERR_TIMEOUT) return DT_ERR_INTERNAL;
    return contains(message, "allreduce \"loss of step 7\" #") && contains(message, "rank 1")
               ? DT_OK
               : DT_ERR_INTERNAL;
  });
  require_all_ok(outcomes);
}

TEST_CASE("launch: a negative limit is none, whatever the communicator's is") {
  const auto outcomes = run_ranks(2, [](const Rank& rank) -> dt_status {
    dt_comm* other = nullptr;
    RANK_TRY(dt_comm_split(rank.world, 0, 0, &other));
    RANK_TRY(dt_comm_set_timeout(rank.world, 100));
    RANK_TRY(dt_comm_set_timeout(other, 100));
    int64_t patient = 1;
    int64_t abandoned = 1;
    const dt_collective one = sum_of(&patient, nullptr, -1);
    if (rank.rank == 1) {
      RANK_TRY(dt_store_barrier(rank.job, "abandoned", 2, 20000));
      RANK_TRY(dt_collective_launch(rank.world, &one, nullptr));
    } else {
      dt_work* work = nullptr;
      RANK_TRY(dt_collective_launch(rank.world, &one, &work));
      const dt_status status =
          dt_allreduce(other, &abandoned, &abandoned, 1, DT_I64, DT_SUM, nullptr, nullptr);
      RANK_TRY(dt_store_barrier(rank.job, "abandoned", 2, 20000));
      int32_t done = 0;
      RANK_TRY(dt_work_wait(work, 20000, &done));
      dt_work_destroy(work);
      if (status != DT_ERR_TIMEOUT || done != 1) return DT_ERR_INTERNAL;
    }
    dt_comm_destroy(other);
    return patient == 2 ? DT_OK : DT_ERR_INTERNAL;
  });
  require_all_ok(outcomes);
}

TEST_CASE("launch: a long name is cut in messages") {
  const std::string name(1000, 'n');
  const auto outcomes = run_ranks(2, [&](const Rank& rank) -> dt_status {
    std::vector<int64_t> values(2);
    dt_collective one = sum_of(values.data(), name.c_str(), 0);
    one.count = 1 + rank.rank;
    return dt_collective_launch(rank.world, &one, nullptr);
  });
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.status == DT_ERR_MISMATCH);
    CHECK(contains(outcome.message, "\"" + std::string(64, 'n') + "...\""));
    CHECK_FALSE(contains(outcome.message, std::string(65, 'n')));
    CHECK(contains(outcome.message, "x 2"));
  }
}

TEST_CASE("launch: an operation whose caller waited too shortly goes on without it") {
  const auto outcomes = run_ranks(2, [](const Rank& rank) -> dt_status {
    int64_t value = 1;
    dt_collective one = sum_of(&value, nullptr, 0);
    if (rank.rank == 1) {
      RANK_TRY(dt_store_barrier(rank.job, "looked", 2, 20000));
      RANK_TRY(dt_collective_launch(rank.world, &one, nullptr));
      RANK_TRY(dt_store_barrier(rank.job, "through", 2, 20000));
      return value == 2 ? DT_OK : DT_ERR_INTERNAL;
    }
    one.caller_waits = 1;
    dt_work* work = nullptr;
    int32_t done = 1;
    RANK_TRY(dt_collective_launch(rank.world, &one, &work));
    RANK_TRY(dt_work_wait(work, 0, &done));
    if (done != 0) return DT_ERR_INTERNAL;
    RANK_TRY(dt_store_barrier(rank.job, "looked", 2, 20000));
    RANK_TRY(dt_store_barrier(rank.job, "through", 2, 20000));  // rank 1 has needed this rank
    RANK_TRY(dt_work_wait(work, -1, &done));
    dt_work_destroy(work);
    return done == 1 && value == 2 ? DT_OK : DT_ERR_INTERNAL;
  });
  require_all_ok(outcomes);
}

TEST_CASE(
    "launch: reduce_scatterv leaves each rank its block, with gaps, in place and with a work") {
  for (const int size : {1, 2, 3}) {
    CAPTURE(size);
    require_all_ok(run_ranks(size, [&](const Rank& rank) -> dt_status {
      // Rank r gets 5 r elements, which lie 2 apart; element i of rank r's block is 100 r + i.
      std::vector<int64_t> counts;
      std::vector<int64_t> offsets;
      int64_t end = 0;
      for (int r = 0; r < size; ++r) {
        counts.push_back(5 * r);
        offsets.push_back(end + 2);
        end = offsets.back() + counts.back();
      }
      std::vector<int64_t> given(static_cast<size_t>(end), -7);
      for (int r = 0; r < size; ++r) {
        for (int64_t i = 0; i < counts[r]; ++i) given[offsets[r] + i] = 100 * r + i + rank.rank;
      }
      const int64_t own = counts[rank.rank];
      const auto is_right = [&](const int64_t* found) {
        for (int64_t i = 0; i < own; ++i) {
          if (found[i] != size * (100 * rank.rank + i) + size * (size - 1) / 2) return false;
        }
        return true;
      };
      std::vector<int64_t> apart(static_cast<size_t>(own) + 1, -1);
      std::vector<int64_t> later = given;
      dt_work* work = nullptr;
      int32_t done = 0;
      RANK_TRY(dt_reduce_scatterv(rank.world, given.data(), counts.data(), offsets.data(),
                                  apart.data(), DT_I64, DT_SUM, nullptr, nullptr));
      RANK_TRY(dt_reduce_scatterv(rank.world, later.data(), counts.data(), offsets.data(),
                                  later.data() + offsets[rank.rank], DT_I64, DT_SUM, nullptr,
                                  &work));
      RANK_TRY(dt_work_wait(work, -1, &done));
      dt_work_destroy(work);
      return done == 1 && is_right(apart.data()) && is_right(later.data() + offsets[rank.rank]) &&
                     apart.back() == -1 && later[0] == -7
                 ? DT_OK
                 : DT_ERR_INTERNAL;
    }));
  }
}

TEST_CASE("launch: blocks of reduce_scatterv may overlap, but not in place") {
  const int64_t counts[] = {2, 2};
  const int64_t offsets[] = {0, 1};
  require_all_ok(run_ranks(2, [&](const Rank& rank) -> dt_status {
    const int64_t given[] = {1, 2, 3};
    int64_t result[2] = {};
    RANK_TRY(dt_reduce_scatterv(rank.world, given, counts, offsets, result, DT_I64, DT_SUM, nullptr,
                                nullptr));
    const int64_t first = rank.rank == 0 ? 2 : 4;
    return result[0] == first && result[1] == first + 2 ? DT_OK : DT_ERR_INTERNAL;
  }));
  const auto outcomes = run_ranks(2, [&](const Rank& rank) -> dt_status {
    int64_t given[] = {1, 2, 3};
    return dt_reduce_scatterv(rank.world, given, counts, offsets, given + rank.rank, DT_I64, DT_SUM,
                              nullptr, nullptr);
  });
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.status == DT_ERR_INVALID_ARGUMENT);
    CHECK(contains(outcome.message, "recv is in place, and this rank's block, 2 elements at "));
  }
}

TEST_CASE("launch: ranks that disagree about the counts of reduce_scatterv get MISMATCH") {
  const auto outcomes = run_ranks(2, [](const Rank& rank) -> dt_status {
    const int64_t counts[] = {3, 4 + rank.rank};
    int64_t given[8] = {};
    int64_t result[5] = {};
    return dt_reduce_scatterv(rank.world, given, counts, nullptr, result, DT_I64, DT_SUM, nullptr,
                              nullptr);
  });
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.status == DT_ERR_MISMATCH);
    CHECK(contains(outcome.message, "reduce \"reduce_scatterv\" #2"));
    CHECK(contains(outcome.message, "x 4"));
    CHECK(contains(outcome.message, "x 5"));
  }
}

TEST_CASE("launch: the parts of reduce_scatterv have one limit together") {
  const auto outcomes = run_ranks(2, [](const Rank& rank) -> dt_status {
    constexpr int64_t kLimitMs = 2000;
    int64_t given[2] = {1, 2};
    int64_t result = 0;
    const int64_t counts[2] = {1, 1};
    if (rank.rank == 0) {
      dt_collective one;
      dt_collective_init(&one);
      one.kind = DT_KIND_REDUCE_SCATTERV;
      one.dtype = DT_I64;
      one.send = given;
      one.send_counts = counts;
      one.recv = &result;
      one.timeout_ms = kLimitMs;
      RANK_TRY(dt_store_set(rank.job, "begun", "", 0, kWaitMs));
      const dt_status status = dt_collective_launch(rank.world, &one, nullptr);
      RANK_TRY(dt_store_set(rank.job, "ended", "", 0, kWaitMs));
      return status == DT_ERR_TIMEOUT ? DT_OK : DT_ERR_INTERNAL;
    }
    // Makes its parts itself, each late, but sooner than the limit after the one before.
    const auto ended_within = [&](int64_t ms) {
      int64_t bytes = 0;
      return dt_store_get(rank.job, "ended", ms, nullptr, 0, &bytes) == DT_OK;
    };
    int64_t bytes = 0;
    RANK_TRY(dt_store_get(rank.job, "begun", kWaitMs, nullptr, 0, &bytes));
    for (int32_t root = 0; root < 2; ++root) {
      if (ended_within(kLimitMs * 4 / 5)) return DT_OK;
      const dt_status status =
          dt_reduce(rank.world, &given[root], &result, 1, DT_I64, DT_SUM, root, nullptr, nullptr);
      if (status != DT_OK) break;  // the other rank's limit has passed
    }
    return ended_within(kWaitMs) ? DT_OK : DT_ERR_TIMEOUT;
  });
  CHECK_MESSAGE(outcomes[0].status == DT_OK, outcomes[0].message);
}

TEST_CASE("launch: bits, truth values and integers of 16 bits, on one host and over two") {
  for (const bool apart : {false, true}) {
    CAPTURE(apart);
    const auto host_of = [apart](int rank) -> Settings {
      return {{"job.host_id", apart && rank == 2 ? "there" : "here"}};
    };
    const auto body = [](const Rank& rank) -> dt_status {
      const auto reduce = [&](void* value, dt_dtype dtype, dt_reduce_op op) {
        return dt_allreduce(rank.world, value, value, 1, dtype, op, nullptr, nullptr);
      };
      uint32_t bits = 1U << rank.rank | 0x80U;
      RANK_TRY(reduce(&bits, DT_U32, DT_BOR));
      if (bits != 0x87U) return DT_ERR_INTERNAL;
      int64_t common = -1 - (int64_t{1} << rank.rank);
      RANK_TRY(reduce(&common, DT_I64, DT_BAND));
      if (common != -8) return DT_ERR_INTERNAL;
      uint8_t odd = 1;
      RANK_TRY(reduce(&odd, DT_U8, DT_BXOR));
      if (odd != 1) return DT_ERR_INTERNAL;
      auto small = static_cast<int16_t>(-100 * rank.rank);
      RANK_TRY(reduce(&small, DT_I16, DT_MIN));
      if (small != -200) return DT_ERR_INTERNAL;
      auto mean = static_cast<uint16_t>(30'000 + rank.rank);  // the sum wraps: 90003 - 65536
      RANK_TRY(reduce(&mean, DT_U16, DT_AVG));
      if (mean != 8155) return DT_ERR_INTERNAL;
      bool any = rank.rank == 1;
      RANK_TRY(reduce(&any, DT_BOOL, DT_SUM));
      bool all = rank.rank != 1;
      RANK_TRY(reduce(&all, DT_BOOL, DT_PROD));
      if (!any || all) return DT_ERR_INTERNAL;
      std::vector<uint8_t> moved(3);
      const auto mine = static_cast<uint8_t>(rank.rank + 1);
      RANK_TRY(dt_allgather(rank.world, &mine, moved.data(), 1, DT_F8E4M3, nullptr, nullptr));
      if (moved != std::vector<uint8_t>{1, 2, 3}) return DT_ERR_INTERNAL;
      const auto refuses = [&](dt_dtype dtype, dt_reduce_op op, const char* text) {
        return reduce(&bits, dtype, op) == DT_ERR_INVALID_ARGUMENT &&
               contains(dt_last_error(), text);
      };
      const bool refused = refuses(DT_F8E5M2, DT_MAX, "max of f8e5m2: 8-bit floats are moved") &&
                           refuses(DT_BOOL, DT_AVG, "avg of bool: truth values have no mean") &&
                           refuses(DT_F32, DT_BXOR, "bxor of f32: bits are combined of integers");
      return refused ? DT_OK : DT_ERR_INTERNAL;
    };
    require_all_ok(run_ranks(3, body, {}, host_of));
  }
}

TEST_CASE("launch: a reducer refuses gradients that have no mean") {
  require_all_ok(run_ranks(1, [](const Rank& rank) -> dt_status {
    const dt_param params[] = {{4, "weight", DT_F32, 0}, {4, "mask", DT_BOOL, 0}};
    dt_reducer* reducer = nullptr;
    return dt_reducer_create(rank.world, params, 2, nullptr, &reducer) == DT_ERR_INVALID_ARGUMENT &&
                   contains(dt_last_error(), "avg of bool: truth values have no mean") &&
                   contains(dt_last_error(), "params[1]")
               ? DT_OK
               : DT_ERR_INTERNAL;
  }));
}

}  // namespace dt_test::launch_test
