// SPDX-License-Identifier: Apache-2.0
// Jobs over several hosts, pretended on one machine by job.host_id, through the installed
// interface.
#include <unistd.h>

#include <algorithm>
#include <future>

#include "held_port.h"
#include "thread_ranks.h"

namespace dt_test::hosts_test {

namespace {

/// Rank r lives on host hosts[r]; launchers may number the ranks of a host downwards.
std::function<Settings(int)> on_hosts(std::vector<int> hosts, bool downwards = false) {
  return [hosts = std::move(hosts), downwards](int rank) {
    Settings settings = {
        {"job.host_id", "host" + std::to_string(hosts[static_cast<size_t>(rank)])}};
    if (downwards) {
      int later = 0;
      for (size_t other = static_cast<size_t>(rank) + 1; other < hosts.size(); ++other) {
        if (hosts[other] == hosts[static_cast<size_t>(rank)]) ++later;
      }
      settings.emplace_back("job.local_rank", std::to_string(later));
    }
    return settings;
  };
}

/// Every element of what an operation left is as `wanted` says.
dt_status expect(const std::vector<int64_t>& found, const std::function<int64_t(int)>& wanted) {
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] != wanted(static_cast<int>(i))) return DT_ERR_INTERNAL;
  }
  return DT_OK;
}

/// Every operation whose result tells one rank from another.
dt_status in_order(dt_comm* comm) {
  int32_t me = 0;
  int32_t n = 0;
  RANK_TRY(dt_comm_rank(comm, &me));
  RANK_TRY(dt_comm_size(comm, &n));
  const auto size = static_cast<size_t>(n);
  std::vector<int64_t> mine(size);  // for rank i: 100 * me + i
  for (int i = 0; i < n; ++i) mine[static_cast<size_t>(i)] = 100 * me + i;
  std::vector<int64_t> all(size, -1);
  RANK_TRY(dt_allgather(comm, mine.data(), all.data(), 1, DT_I64, nullptr, nullptr));
  RANK_TRY(expect(all, [](int i) { return 100 * i; }));
  RANK_TRY(dt_alltoall(comm, mine.data(), all.data(), 1, DT_I64, nullptr, nullptr));
  RANK_TRY(expect(all, [&](int i) { return 100 * i + me; }));
  std::vector<int64_t> one(1, -1);
  RANK_TRY(dt_reduce_scatter(comm, mine.data(), one.data(), 1, DT_I64, DT_MAX, nullptr, nullptr));
  RANK_TRY(expect(one, [&](int) { return 100 * (n - 1) + me; }));
  for (int root = 0; root < n; ++root) {
    one[0] = me;
    RANK_TRY(dt_broadcast(comm, one.data(), 1, DT_I64, root, nullptr, nullptr));
    RANK_TRY(expect(one, [&](int) { return root; }));
    RANK_TRY(dt_scatter(comm, mine.data(), one.data(), 1, DT_I64, root, nullptr, nullptr));
    RANK_TRY(expect(one, [&](int) { return 100 * root + me; }));
    RANK_TRY(dt_gather(comm, mine.data(), all.data(), 1, DT_I64, root, nullptr, nullptr));
    if (me == root) RANK_TRY(expect(all, [](int i) { return 100 * i; }));
  }
  // Around the ring; a rank that waits for one that is itself would wait for ever.
  if (n == 1) return DT_OK;
  dt_work* sent = nullptr;
  RANK_TRY(dt_send(comm, &mine[0], 1, DT_I64, (me + 1) % n, nullptr, &sent));
  RANK_TRY(dt_recv(comm, one.data(), 1, DT_I64, (me + n - 1) % n, nullptr, nullptr));
  RANK_TRY(dt_work_wait(sent, -1, nullptr));
  dt_work_destroy(sent);
  return expect(one, [&](int) { return 100 * ((me + n - 1) % n); });
}

/// In the world and in two parts that turn the order of the ranks around.
void check_order(const std::vector<int>& hosts, unsigned seed) {
  CAPTURE(hosts.size());
  CAPTURE(seed);
  require_all_ok(run_ranks(
      static_cast<int>(hosts.size()),
      [](const Rank& rank) -> dt_status {
        int32_t me = -1;
        RANK_TRY(dt_comm_rank(rank.world, &me));
        if (me != rank.rank) return DT_ERR_INTERNAL;
        RANK_TRY(in_order(rank.world));
        dt_comm* turned = nullptr;
        RANK_TRY(dt_comm_split(rank.world, rank.rank % 2, -rank.rank, &turned));
        const dt_status status = in_order(turned);
        dt_comm_destroy(turned);
        return status;
      },
      {}, numbered(hosts, seed)));
}

dt_status sum(dt_comm* comm, std::vector<double>& data) {
  return dt_allreduce(comm, data.data(), data.data(), static_cast<int64_t>(data.size()), DT_F64,
                      DT_SUM, nullptr, nullptr);
}

/// What ranks 0 and 1 are told when rank 2 does not come to the second barrier.
std::vector<std::string> told_without_rank_2(std::vector<int> hosts) {
  const auto outcomes = run_ranks(
      3,
      [](const Rank& rank) -> dt_status {
        RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
        if (rank.rank == 2) {
          int64_t bytes = 0;  // what nobody sets: until the others have failed
          return dt_store_get(rank.job, "never", 3000, nullptr, 0, &bytes);
        }
        return dt_barrier(rank.world, nullptr, nullptr);
      },
      {{"collective.timeout_ms", "500"}}, on_hosts(std::move(hosts)));
  for (const size_t rank : {0, 1}) CHECK(outcomes[rank].status == DT_ERR_TIMEOUT);
  return {outcomes[0].message, outcomes[1].message};
}

}  // namespace

TEST_CASE("hosts: places and sums are right, however the launcher numbers the ranks of a host") {
  for (const bool downwards : {false, true}) {
    for (const std::vector<int>& hosts : {std::vector<int>{0, 1}, {0, 0, 0, 1}, {0, 1, 0, 1, 2}}) {
      const auto size = static_cast<int>(hosts.size());
      require_all_ok(run_ranks(
          size,
          [&](const Rank& rank) -> dt_status {
            dt_place place;
            dt_place_init(&place);
            RANK_TRY(dt_rank_info(rank.job, &place));
            const auto here = static_cast<size_t>(rank.rank);
            if (place.local_size != std::count(hosts.begin(), hosts.end(), hosts[here]) ||
                place.node_rank != hosts[here]) {
              return DT_ERR_INTERNAL;
            }
            for (const size_t count : {size_t{3}, size_t{100'000}}) {
              std::vector<double> data(count);
              for (size_t i = 0; i < count; ++i) {
                data[i] = static_cast<double>((here + 1) * (i % 7 + 1));
              }
              RANK_TRY(sum(rank.world, data));
              for (size_t i = 0; i < count; ++i) {
                if (data[i] != size * (size + 1) / 2 * static_cast<double>(i % 7 + 1)) {
                  return DT_ERR_INTERNAL;
                }
              }
            }
            return DT_OK;
          },
          {}, on_hosts(hosts, downwards)));
    }
  }
}

TEST_CASE("hosts: operations follow the ranks, in whatever order a launcher numbers a host's") {
  for (const std::vector<int>& hosts :
       {std::vector<int>{0, 0}, {0, 0, 0, 0}, {0, 0, 0, 1, 1, 1}, {0, 1, 0, 1, 2, 0, 1}}) {
    for (const unsigned seed : {1, 2, 3}) check_order(hosts, seed);
  }
}

TEST_CASE("hosts: operations follow the ranks, whatever hosts and local ranks chance gives them") {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    std::mt19937 random(seed);
    std::vector<int> hosts(2 + random() % 6);
    for (int& host : hosts) host = static_cast<int>(random() % 3);
    check_order(hosts, seed);
  }
}

TEST_CASE("hosts: a disagreement between two hosts is an error with both sides on every rank") {
  const auto outcomes = run_ranks(
      3,
      [](const Rank& rank) {
        std::vector<double> data(rank.rank == 2 ? 5 : 4);
        return sum(rank.world, data);
      },
      {}, on_hosts({0, 0, 1}));
  const std::string pid = "pid " + std::to_string(getpid()) + ")";  // theirs too: they are threads
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.status == DT_ERR_MISMATCH);
    CHECK(contains(outcome.message, pid + " and 1 more: allreduce f64 sum x 4"));
    CHECK(contains(outcome.message, pid + ": allreduce f64 sum x 5; make all ranks issue"));
  }
}

TEST_CASE("hosts: a receiver that disagrees is heard of by the sender and by bystanders") {
  const auto outcomes = run_ranks(
      3,
      [](const Rank& rank) -> dt_status {
        int32_t data[4] = {};
        if (rank.rank == 0) RANK_TRY(dt_send(rank.world, data, 4, DT_I32, 2, nullptr, nullptr));
        if (rank.rank == 2) RANK_TRY(dt_recv(rank.world, data, 3, DT_I32, 0, nullptr, nullptr));
        return dt_barrier(rank.world, nullptr, nullptr);
      },
      {}, on_hosts({0, 0, 1}));
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.status == DT_ERR_MISMATCH);
    CHECK(contains(outcome.message, "recv on comm \"world\", rank 2 ("));
    CHECK(contains(outcome.message, "): send i32 x 4, rank 2 ("));
    CHECK(contains(outcome.message, "): recv i32 x 3; make both issue"));
  }
}

TEST_CASE("hosts: an operation that one rank never enters names it, on every host") {
  for (const std::string& told : told_without_rank_2({0, 0, 1})) {
    CHECK(contains(told, "barrier #2 on comm \"world\", rank 0 ("));
    CHECK(contains(told, "timed out: rank 2 ("));
    CHECK(contains(told, "has not arrived"));
  }
}

TEST_CASE("hosts: a missing rank is named where the rank that speaks for its host is there") {
  for (const std::string& told : told_without_rank_2({0, 1, 1})) {
    CHECK(contains(told, "has not arrived: rank 2 ("));
  }
}

TEST_CASE("hosts: the end of rank 0, which serves the store, ends communicators without it too") {
  const dt::test::HeldPort held;
  std::promise<void> told;
  const auto outcomes = run_ranks(
      3,
      [&, heard = told.get_future().share()](const Rank& rank) -> dt_status {
        dt_comm* others = nullptr;
        RANK_TRY(dt_comm_split(rank.world, rank.rank == 0 ? -1 : 1, 0, &others));
        if (rank.rank == 0) {
          const char* const keys[] = {"here 1", "here 2"};
          RANK_TRY(dt_store_wait(rank.job, keys, 2, 20'000));
          dt_comm_destroy(rank.world);
          dt_job_destroy(rank.job);
          return DT_ERR_INTERNAL;  // it has no job any more
        }
        const std::string key = "here " + std::to_string(rank.rank);
        RANK_TRY(dt_store_set(rank.job, key.c_str(), "", 0, 20'000));
        if (rank.rank == 2) {  // lives, and does not come
          heard.wait_for(std::chrono::seconds(60));
          return DT_OK;
        }
        const dt_status status = dt_barrier(others, nullptr, nullptr);
        told.set_value();
        dt_comm_destroy(others);
        return status;
      },
      {{"job.master_port", std::to_string(held.port())}, {"job.store_served", "false"}},
      on_hosts({0, 1, 2}));
  CHECK(outcomes[1].status == DT_ERR_PEER_LOST);
  CHECK(contains(outcomes[1].message, "rank 0 ("));
  CHECK(contains(outcomes[1].message, "which serves the store, closed the connection"));
}

TEST_CASE("hosts: a reducer overlaps, averages, and names a gradient that is missing") {
  const auto outcomes = run_ranks(
      4,
      [](const Rank& rank) -> dt_status {
        const dt_param params[] = {{100'000, "a", DT_F32, 0}, {50'000, "b", DT_F32, 0}};
        dt_reducer* reducer = nullptr;
        RANK_TRY(dt_reducer_create(rank.world, params, 2, nullptr, &reducer));
        std::vector<float> a(100'000);
        std::vector<float> b(50'000);
        dt_status status = DT_OK;
        for (int step = 0; step < 3 && status == DT_OK; ++step) {
          std::fill(a.begin(), a.end(), static_cast<float>(4 * rank.rank));
          std::fill(b.begin(), b.end(), static_cast<float>(rank.rank + step));
          RANK_TRY(dt_reducer_ready(reducer, 1, b.data(), nullptr));
          RANK_TRY(dt_reducer_ready(reducer, 0, a.data(), nullptr));
          status = dt_reducer_finish(reducer, nullptr);
          if (status == DT_OK && (a[99'999] != 6.0f || b[0] != 1.5f + static_cast<float>(step))) {
            status = DT_ERR_INTERNAL;
          }
        }
        RANK_TRY(status);
        RANK_TRY(dt_reducer_ready(reducer, 1, b.data(), nullptr));
        if (rank.rank != 3) RANK_TRY(dt_reducer_ready(reducer, 0, a.data(), nullptr));
        status = dt_reducer_finish(reducer, nullptr);
        if (status != DT_ERR_INVALID_STATE || !contains(dt_last_error(), "a") ||
            !contains(dt_last_error(), "rank 3")) {
          return status == DT_OK ? DT_ERR_INTERNAL : status;
        }
        RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));  // the communicator is whole
        dt_reducer_destroy(reducer);
        return DT_OK;
      },
      {}, on_hosts({0, 1, 0, 1}));
  require_all_ok(outcomes);
}

TEST_CASE("hosts: a network.interface that is not there matters to a job of several hosts only") {
  const Settings wrong = {{"network.interface", "nosuch0"}};
  const auto sum_up = [](const Rank& rank) {
    std::vector<double> data(4);
    return sum(rank.world, data);
  };
  require_all_ok(run_ranks(2, sum_up, wrong, on_hosts({0, 0})));
  for (const Outcome& outcome : run_ranks(2, sum_up, wrong, on_hosts({0, 1}))) {
    CHECK(outcome.status == DT_ERR_CONFIG);
    CHECK(contains(outcome.message,
                   ") cannot be reached by ranks of other hosts: network.interface is \"nosuch0\", "
                   "and this host has no "));
  }
}

}  // namespace dt_test::hosts_test
