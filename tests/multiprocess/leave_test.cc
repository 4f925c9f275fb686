// SPDX-License-Identifier: Apache-2.0
// Ranks that leave with dt_finalize while others go on. Ranks are threads of this process.
#include <algorithm>
#include <atomic>
#include <functional>

#include "thread_ranks.h"

namespace dt_test::leave_test {

namespace {

/// Ranks that leave while the others go on; `stays` needs them.
struct Leaving {
  const char* name;
  std::vector<int> leavers;
  std::function<dt_status(const Rank&)> stays;
};

dt_status wait_and_destroy(dt_work* work) {
  int32_t done = 0;
  const dt_status status = dt_work_wait(work, 20000, &done);
  dt_work_destroy(work);
  return status != DT_OK || done == 1 ? status : DT_ERR_INTERNAL;
}

std::vector<Leaving> leavings() {
  return {
      {"inside a group",
       {1},
       [](const Rank& rank) -> dt_status {
         int64_t value = 1;
         float sums[8] = {};
         RANK_TRY(dt_group_begin(rank.world));
         RANK_TRY(dt_allreduce(rank.world, &value, &value, 1, DT_I64, DT_SUM, nullptr, nullptr));
         RANK_TRY(dt_allreduce(rank.world, sums, sums, 8, DT_F32, DT_SUM, nullptr, nullptr));
         return dt_group_end(rank.world, nullptr);
       }},
      {"inside a split",
       {3},
       [](const Rank& rank) -> dt_status {
         dt_comm* half = nullptr;
         return dt_comm_split(rank.world, rank.rank % 2, 0, &half);
       }},
      {"at the vote whether to stop",
       {1},
       [](const Rank& rank) -> dt_status {
         int32_t stop = 0;
         return dt_stop_requested(rank.job, &stop);
       }},
      {"at a recv",
       {3},
       [](const Rank& rank) -> dt_status {
         int64_t value = 0;
         return dt_recv(rank.world, &value, 1, DT_I64, 3, nullptr, nullptr);
       }},
      {"at a send that is too large to be sent ahead",
       {3},
       [](const Rank& rank) -> dt_status {
         const std::vector<int64_t> values(4 << 20, 1);
         dt_work* work = nullptr;
         RANK_TRY(dt_send(rank.world, values.data(), 4 << 20, DT_I64, 3, nullptr, &work));
         return wait_and_destroy(work);
       }},
      {"at the work of an alltoall",
       {2},
       [](const Rank& rank) -> dt_status {
         const std::vector<int32_t> send(4 * 1000, rank.rank);
         std::vector<int32_t> recv(send.size());
         dt_work* work = nullptr;
         RANK_TRY(dt_alltoall(rank.world, send.data(), recv.data(), 1000, DT_I32, nullptr, &work));
         return wait_and_destroy(work);
       }},
      {"of two that leave",
       {0, 3},
       [](const Rank& rank) { return dt_barrier(rank.world, nullptr, nullptr); }},
  };
}

Settings host_of(bool over_hosts, int rank) {
  return {{"job.host_id", over_hosts ? "host" + std::to_string(rank % 2) : "one"}};
}

/// "rank 1 (host, pid 7) has left ...", or in a smaller communicator "rank 0 (world rank 1, ...".
bool names_leaver(const std::string& message, int rank) {
  const std::string number = std::to_string(rank);
  return contains(message, ") has left the job with dt_finalize, and this operation needs it") &&
         (contains(message, "rank " + number + " (") ||
          contains(message, "(world rank " + number + ", "));
}

}  // namespace

TEST_CASE(
    "leave: an operation that needs a rank which has left fails at once; the leaver ends well") {
  for (const bool over_hosts : {false, true}) {
    for (const bool late : {false, true}) {
      CAPTURE(over_hosts);
      CAPTURE(late);
      const auto hosts = [&](int rank) -> Settings {
        return {{"job.host_id", over_hosts ? "host" + std::to_string(rank % 2) : "one"}};
      };
      const auto outcomes = run_ranks(
          4,
          [&](const Rank& rank) -> dt_status {
            // What it has begun is there for the others, who come later.
            int64_t value = rank.rank == 1 ? 7 : 0;
            if (rank.rank != 1 && late) {
              int64_t bytes = 0;
              (void)dt_store_get(rank.job, "never", 100, nullptr, 0, &bytes);
            }
            RANK_TRY(dt_broadcast(rank.world, &value, 1, DT_I64, 1, nullptr, nullptr));
            if (value != 7) return DT_ERR_INTERNAL;
            if (rank.rank == 1) return DT_OK;
            return dt_barrier(rank.world, nullptr, nullptr);
          },
          {}, hosts);
      for (const size_t rank : {0, 2, 3}) {
        INFO(outcomes[rank].message);
        CHECK(outcomes[rank].status == DT_ERR_PEER_LOST);
        CHECK(contains(outcomes[rank].message, "rank 1 ("));
        CHECK(contains(outcomes[rank].message, ") has left the job with dt_finalize, and this"));
      }
      INFO(outcomes[1].message);
      CHECK(outcomes[1].status == DT_OK);
    }
  }
}

TEST_CASE("leave: whatever needs a rank that has left ends at once, and names it") {
  for (const Leaving& leaving : leavings()) {
    for (const bool over_hosts : {false, true}) {
      CAPTURE(leaving.name);
      CAPTURE(over_hosts);
      const auto leaves = [&](int rank) {
        return std::find(leaving.leavers.begin(), leaving.leavers.end(), rank) !=
               leaving.leavers.end();
      };
      const auto outcomes = run_ranks(
          4,
          [&](const Rank& rank) -> dt_status {
            RANK_TRY(dt_store_barrier(rank.job, "begun", 0, 20000));
            return leaves(rank.rank) ? DT_OK : leaving.stays(rank);
          },
          {{"collective.timeout_ms", "60000"}},
          [&](int rank) { return host_of(over_hosts, rank); });
      for (int rank = 0; rank < 4; ++rank) {
        const Outcome& outcome = outcomes[static_cast<size_t>(rank)];
        CAPTURE(rank);
        INFO(outcome.message);
        CHECK(outcome.status == (leaves(rank) ? DT_OK : DT_ERR_PEER_LOST));
        if (leaves(rank)) continue;
        CHECK(std::any_of(leaving.leavers.begin(), leaving.leavers.end(),
                          [&](int each) { return names_leaver(outcome.message, each); }));
      }
    }
  }
}

TEST_CASE("leave: a step of a reducer that needs a rank which has left ends, and names it") {
  for (const bool over_hosts : {false, true}) {
    CAPTURE(over_hosts);
    const auto outcomes = run_ranks(
        4,
        [&](const Rank& rank) -> dt_status {
          const dt_param param = {5000, "a", DT_F32, 0};
          dt_reducer* reducer = nullptr;
          RANK_TRY(dt_reducer_create(rank.world, &param, 1, nullptr, &reducer));
          std::vector<float> gradient(5000, static_cast<float>(rank.rank));
          dt_status status = DT_OK;
          for (int step = 0; step < 3 && status == DT_OK; ++step) {
            RANK_TRY(dt_store_barrier(rank.job, std::to_string(step).c_str(), 4, 20000));
            if (rank.rank == 2 && step == 2) break;
            status = dt_reducer_ready(reducer, 0, gradient.data(), nullptr);
            if (status == DT_OK) status = dt_reducer_finish(reducer, nullptr);
            if (status == DT_OK && gradient.back() != 1.5f) status = DT_ERR_INTERNAL;
          }
          dt_reducer_destroy(reducer);
          return status;
        },
        {{"collective.timeout_ms", "60000"}}, [&](int rank) { return host_of(over_hosts, rank); });
    for (int rank = 0; rank < 4; ++rank) {
      const Outcome& outcome = outcomes[static_cast<size_t>(rank)];
      CAPTURE(rank);
      INFO(outcome.message);
      CHECK(outcome.status == (rank == 2 ? DT_OK : DT_ERR_PEER_LOST));
      CHECK((rank == 2 || names_leaver(outcome.message, 2)));
    }
  }
}

TEST_CASE("leave: who does not need a rank that has left goes on, and a shrunk world does") {
  for (const bool over_hosts : {false, true}) {
    CAPTURE(over_hosts);
    const auto outcomes = run_ranks(
        5,
        [&](const Rank& rank) -> dt_status {
          dt_comm* half = nullptr;
          RANK_TRY(dt_comm_split(rank.world, rank.rank % 2, 0, &half));
          if (rank.rank == 1) return DT_OK;
          int64_t value = 1;
          const dt_status in_half =
              dt_allreduce(half, &value, &value, 1, DT_I64, DT_SUM, nullptr, nullptr);
          if (rank.rank == 3) {
            if (in_half != DT_ERR_PEER_LOST || !names_leaver(dt_last_error(), 1)) {
              return DT_ERR_INTERNAL;
            }
          } else {
            RANK_TRY(in_half);
            if (value != 3) return DT_ERR_INTERNAL;
          }
          dt_comm_destroy(half);
          dt_comm* smaller = nullptr;
          RANK_TRY(dt_comm_shrink(rank.world, &smaller));
          value = 1;
          RANK_TRY(dt_allreduce(smaller, &value, &value, 1, DT_I64, DT_SUM, nullptr, nullptr));
          if (value != 4) return DT_ERR_INTERNAL;
          RANK_TRY(dt_store_barrier(rank.job, "shrunk", 4, 20000));
          // Another one leaves that.
          if (rank.rank == 4) return DT_OK;
          const dt_status status = dt_barrier(smaller, nullptr, nullptr);
          const bool named = names_leaver(dt_last_error(), 4);
          dt_comm_destroy(smaller);
          return status == DT_ERR_PEER_LOST && named ? DT_OK : DT_ERR_INTERNAL;
        },
        {{"collective.timeout_ms", "60000"}}, [&](int rank) { return host_of(over_hosts, rank); });
    require_all_ok(outcomes);
  }
}

TEST_CASE("leave: dt_finalize waits for the works of its rank; the others get what they need") {
  for (const bool over_hosts : {false, true}) {
    CAPTURE(over_hosts);
    require_all_ok(run_ranks(
        3,
        [&](const Rank& rank) -> dt_status {
          constexpr int64_t kCount = 300'000;
          std::vector<int64_t> sums(kCount, rank.rank + 1);
          std::vector<int64_t> values(kCount, 7);
          if (rank.rank == 0) {
            dt_work* works[2];
            RANK_TRY(dt_allreduce(rank.world, sums.data(), sums.data(), kCount, DT_I64, DT_SUM,
                                  nullptr, &works[0]));
            RANK_TRY(dt_send(rank.world, values.data(), kCount, DT_I64, 1, nullptr, &works[1]));
            RANK_TRY(dt_finalize(rank.job, 20000));
            for (dt_work* work : works) RANK_TRY(wait_and_destroy(work));
            return sums.front() == 6 && sums.back() == 6 ? DT_OK : DT_ERR_INTERNAL;
          }
          int64_t bytes = 0;
          (void)dt_store_get(rank.job, "never", 50, nullptr, 0, &bytes);
          RANK_TRY(dt_allreduce(rank.world, sums.data(), sums.data(), kCount, DT_I64, DT_SUM,
                                nullptr, nullptr));
          if (rank.rank == 1) {
            std::fill(values.begin(), values.end(), 0);
            RANK_TRY(dt_recv(rank.world, values.data(), kCount, DT_I64, 0, nullptr, nullptr));
          }
          const bool right = sums.front() == 6 && sums.back() == 6 && values.back() == 7;
          return right ? DT_OK : DT_ERR_INTERNAL;
        },
        {{"collective.timeout_ms", "60000"}}, [&](int rank) { return host_of(over_hosts, rank); }));
  }
}

TEST_CASE("leave: receives that nobody sends for and open groups do not keep dt_finalize") {
  for (const bool over_hosts : {false, true}) {
    for (const bool in_group : {false, true}) {
      CAPTURE(over_hosts);
      CAPTURE(in_group);
      require_all_ok(run_ranks(
          2,
          [&](const Rank& rank) -> dt_status {
            int64_t value = 0;
            dt_work* work = nullptr;
            if (in_group) RANK_TRY(dt_group_begin(rank.world));
            RANK_TRY(dt_recv(rank.world, &value, 1, DT_I64, 1 - rank.rank, nullptr, &work));
            RANK_TRY(dt_finalize(rank.job, 20000));
            dt_work_destroy(work);
            return DT_OK;
          },
          {{"collective.timeout_ms", "60000"}},
          [&](int rank) { return host_of(over_hosts, rank); }));
    }
  }
}

TEST_CASE("leave: nor do they after a shrink, though the ranks that were lost never come") {
  std::vector<Outcome> ended(3);
  const auto outcomes = run_ranks(3, [&](const Rank& rank) -> dt_status {
    if (rank.rank == 2) {  // is lost
      RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
      dt_comm_destroy(rank.world);
      dt_job_destroy(rank.job);
      return DT_OK;
    }
    RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
    if (dt_barrier(rank.world, nullptr, nullptr) != DT_ERR_PEER_LOST) return DT_ERR_INTERNAL;
    dt_comm* smaller = nullptr;
    RANK_TRY(dt_comm_shrink(rank.world, &smaller));
    int64_t value = 0;
    dt_work* work = nullptr;
    RANK_TRY(dt_recv(smaller, &value, 1, DT_I64, 1 - rank.rank, nullptr, &work));
    ended[static_cast<size_t>(rank.rank)] = outcome_of(dt_finalize(rank.job, 20000));
    dt_work_destroy(work);
    dt_comm_destroy(smaller);
    return DT_OK;
  });
  for (const size_t rank : {0, 1}) {
    INFO(outcomes[rank].message);
    CHECK(outcomes[rank].status == DT_OK);
    INFO(ended[rank].message);
    CHECK(ended[rank].status == DT_OK);
  }
}

TEST_CASE("leave: a rank that was lost inside dt_finalize counts once after a shrink of a part") {
  constexpr int64_t kLostMs = 1500;    // by then rank 3 has waited in dt_finalize for long
  constexpr int64_t kLateMs = 7500;    // later than a standstill
  constexpr int64_t kCount = 300'000;  // more than a message that is left behind
  const auto outcomes = run_ranks(5, [](const Rank& rank) -> dt_status {
    std::vector<int64_t> values(kCount, 40 + rank.rank);
    int64_t bytes = 0;
    dt_work* work = nullptr;
    dt_comm* part = nullptr;
    RANK_TRY(dt_comm_split(rank.world, 0, rank.rank, &part));
    if (rank.rank == 4) {  // is lost
      (void)dt_store_get(rank.job, "never", kLostMs, nullptr, 0, &bytes);
      dt_comm_destroy(part);
      dt_comm_destroy(rank.world);
      dt_job_destroy(rank.job);
      return DT_OK;
    }
    if (rank.rank == 3) {  // is lost because of that
      RANK_TRY(dt_recv(rank.world, values.data(), kCount, DT_I64, 0, nullptr, &work));
      const dt_status status = dt_finalize(rank.job, 20000);
      dt_work_destroy(work);
      dt_comm_destroy(part);
      return status;
    }
    if (dt_barrier(part, nullptr, nullptr) != DT_ERR_PEER_LOST) return DT_ERR_INTERNAL;
    dt_comm* smaller = nullptr;
    RANK_TRY(dt_comm_shrink(part, &smaller));
    if (rank.rank == 2) {
      (void)dt_store_get(rank.job, "never", kLateMs, nullptr, 0, &bytes);
      for (const int peer : {0, 1}) {
        RANK_TRY(dt_send(smaller, values.data(), kCount, DT_I64, peer, nullptr, nullptr));
      }
      return DT_OK;
    }
    RANK_TRY(dt_recv(smaller, values.data(), kCount, DT_I64, 2, nullptr, &work));
    RANK_TRY(dt_finalize(rank.job, 20000));
    RANK_TRY(wait_and_destroy(work));
    return values.back() == 42 ? DT_OK : DT_ERR_INTERNAL;
  });
  for (const size_t rank : {0, 1, 2}) {
    CHECK_MESSAGE(outcomes[rank].status == DT_OK, outcomes[rank].message);
  }
  CHECK_MESSAGE(outcomes[3].status == DT_ERR_PEER_LOST, outcomes[3].message);
}

TEST_CASE("leave: an operation whose peer comes late is not given up, though another rank left") {
  require_all_ok(run_ranks(3, [](const Rank& rank) -> dt_status {
    constexpr int64_t kLateMs[] = {800, 7500};  // the second is later than a standstill
    constexpr int64_t kCount = 300'000;         // more than a message that is left behind
    std::vector<int64_t> values(kCount, 40 + rank.rank);
    if (rank.rank == 2) {
      for (const int peer : {0, 1}) {
        int64_t bytes = 0;
        (void)dt_store_get(rank.job, "never", kLateMs[peer], nullptr, 0, &bytes);
        RANK_TRY(dt_send(rank.world, values.data(), kCount, DT_I64, peer, nullptr, nullptr));
      }
      return DT_OK;
    }
    dt_work* work = nullptr;
    RANK_TRY(dt_recv(rank.world, values.data(), kCount, DT_I64, 2, nullptr, &work));
    RANK_TRY(dt_finalize(rank.job, 20000));
    RANK_TRY(wait_and_destroy(work));
    return values.back() == 42 ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("leave: dt_finalize names the communicator whose operations did not end in its time") {
  const auto outcomes = run_ranks(2, [&](const Rank& rank) -> dt_status {
    int64_t value = 0;
    if (rank.rank == 0) return dt_recv(rank.world, &value, 1, DT_I64, 1, nullptr, nullptr);
    dt_work* work = nullptr;
    RANK_TRY(dt_recv(rank.world, &value, 1, DT_I64, 0, nullptr, &work));
    const dt_status status = dt_finalize(rank.job, 200);
    dt_work_destroy(work);
    return status;
  });
  INFO(outcomes[1].message);
  CHECK(outcomes[1].status == DT_ERR_TIMEOUT);
  CHECK(contains(outcomes[1].message, "dt_finalize on rank 1 ("));
  CHECK(
      contains(outcomes[1].message, "): operations of this rank on comm \"world\" have not ended"));
  INFO(outcomes[0].message);
  CHECK(outcomes[0].status == DT_ERR_PEER_LOST);
  CHECK(names_leaver(outcomes[0].message, 1));
}

TEST_CASE("leave: an abort is what the others hear of, though ranks leave because of it") {
  // Who hears of it first leaves at once, while others still wait for both.
  for (int round = 0; round < 10; ++round) {
    const bool over_hosts = round % 2 == 1;
    CAPTURE(over_hosts);
    const auto outcomes = run_ranks(
        4,
        [](const Rank& rank) -> dt_status {
          RANK_TRY(dt_store_barrier(rank.job, "begun", 0, 20000));
          if (rank.rank == 3) return dt_abort(rank.job, "loss is NaN");
          for (;;) RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
        },
        {}, [&](int rank) { return host_of(over_hosts, rank); });
    for (size_t rank = 0; rank < 3; ++rank) {
      CAPTURE(rank);
      INFO(outcomes[rank].message);
      CHECK(outcomes[rank].status == DT_ERR_ABORTED);
      CHECK(contains(outcomes[rank].message, "rank 3 ("));
    }
  }
}

}  // namespace dt_test::leave_test
