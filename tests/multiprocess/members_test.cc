// SPDX-License-Identifier: Apache-2.0
// Communicators that their members make by themselves. Ranks are threads of this process.
#include <algorithm>
#include <string>
#include <vector>

#include "thread_ranks.h"

namespace dt_test::members_test {

namespace {

/// Rank r lives on host hosts[r].
std::function<Settings(int)> on_hosts(std::vector<int> hosts) {
  return [hosts = std::move(hosts)](int rank) -> Settings {
    return {{"job.host_id", "host" + std::to_string(hosts[static_cast<size_t>(rank)])}};
  };
}

/// Makes the communicator if this rank is a member, and has every member say who it is.
dt_status meet(const Rank& rank, const std::vector<int32_t>& members, const char* name) {
  const auto mine = std::find(members.begin(), members.end(), rank.rank);
  if (mine == members.end()) return DT_OK;
  const auto count = static_cast<int32_t>(members.size());
  dt_comm* comm = nullptr;
  RANK_TRY(dt_comm_create(rank.job, members.data(), count, name, &comm));
  int32_t place = -1;
  int32_t size = -1;
  RANK_TRY(dt_comm_rank(comm, &place));
  RANK_TRY(dt_comm_size(comm, &size));
  if (place != mine - members.begin() || size != count) return DT_ERR_INTERNAL;
  std::vector<int64_t> all(members.size(), -1);
  const int64_t me = rank.rank;
  RANK_TRY(dt_allgather(comm, &me, all.data(), 1, DT_I64, nullptr, nullptr));
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] != members[i]) return DT_ERR_INTERNAL;
  }
  std::vector<float> sum(70'000, static_cast<float>(rank.rank));
  RANK_TRY(dt_allreduce(comm, sum.data(), sum.data(), static_cast<int64_t>(sum.size()), DT_F32,
                        DT_SUM, nullptr, nullptr));
  float wanted = 0;
  for (const int32_t member : members) wanted += static_cast<float>(member);
  dt_comm_destroy(comm);
  return sum.front() == wanted && sum.back() == wanted ? DT_OK : DT_ERR_INTERNAL;
}

/// A status of DT_OK where the call failed as it should.
dt_status refused(dt_status status, dt_status wanted, const std::vector<std::string>& texts) {
  const std::string message = dt_last_error();
  const bool all = std::all_of(texts.begin(), texts.end(),
                               [&](const std::string& text) { return contains(message, text); });
  return status == wanted && all ? DT_OK : status == DT_OK ? DT_ERR_INTERNAL : status;
}

}  // namespace

TEST_CASE("members: parts that overlap, in any order, on one host and over several") {
  for (const auto& hosts : std::vector<std::vector<int>>{
           {0, 0, 0, 0, 0}, {0, 0, 1, 1, 1}, {0, 1, 0, 1, 2}, {0, 1, 2, 3, 4}}) {
    CAPTURE(hosts[1]);
    require_all_ok(run_ranks(
        5,
        [](const Rank& rank) -> dt_status {
          RANK_TRY(meet(rank, {0, 2, 3}, "some"));
          RANK_TRY(meet(rank, {4, 1}, "some"));
          RANK_TRY(meet(rank, {3, 1}, nullptr));
          RANK_TRY(meet(rank, {4, 3, 2, 1, 0}, "all"));
          RANK_TRY(meet(rank, {2}, "alone"));
          return meet(rank, {0, 2, 3}, "some");
        },
        {}, on_hosts(hosts)));
  }
}

TEST_CASE("members: the creation does not need the ranks that are not members") {
  require_all_ok(run_ranks(3, [](const Rank& rank) -> dt_status {
    int64_t value = 1;
    if (rank.rank != 1) RANK_TRY(meet(rank, {2, 0}, "pair"));
    RANK_TRY(dt_allreduce(rank.world, &value, &value, 1, DT_I64, DT_SUM, nullptr, nullptr));
    return value == 3 ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("members: who does not come is named, and the job goes on") {
  require_all_ok(run_ranks(
      3,
      [](const Rank& rank) -> dt_status {
        const int32_t members[] = {0, 1};
        dt_comm* comm = nullptr;
        if (rank.rank == 0) {
          RANK_TRY(refused(dt_comm_create(rank.job, members, 2, "pair", &comm), DT_ERR_TIMEOUT,
                           {"dt_comm_create \"pair\" of ranks 0-1", "missing: rank 1"}));
        }
        RANK_TRY(dt_store_barrier(rank.job, "tried", 3, 20000));
        return meet(rank, {0, 1}, "pair");
      },
      {{"collective.timeout_ms", "300"}}));
}

TEST_CASE("members: one that has left is named at once") {
  require_all_ok(run_ranks(3, [](const Rank& rank) -> dt_status {
    const int32_t members[] = {0, 2};
    dt_comm* comm = nullptr;
    if (rank.rank != 0) return DT_OK;  // leaves
    return refused(dt_comm_create(rank.job, members, 2, "pair", &comm), DT_ERR_PEER_LOST,
                   {"dt_comm_create \"pair\" of ranks 0, 2", "rank 2 has left the job"});
  }));
}

TEST_CASE("members: what cannot be is refused on the rank that asks for it") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    dt_comm* comm = nullptr;
    const auto create = [&](std::vector<int32_t> members, const char* name) {
      return dt_comm_create(rank.job, members.data(), static_cast<int32_t>(members.size()), name,
                            &comm);
    };
    const dt_status bad = DT_ERR_INVALID_ARGUMENT;
    RANK_TRY(refused(create({}, "x"), bad, {"count is 0; the job has 2 ranks"}));
    RANK_TRY(refused(create({0, 1, 0}, "x"), bad, {"count is 3; the job has 2 ranks"}));
    RANK_TRY(refused(create({0, 2}, "x"), bad, {"ranks[1] is 2; the job has ranks 0 to 1"}));
    RANK_TRY(refused(create({1, 1}, "x"), bad, {"ranks[1] is 1, and so is ranks[0]"}));
    RANK_TRY(refused(create({1 - rank.rank}, "x"), bad, {"is not among ranks"}));
    RANK_TRY(refused(create({0, 1}, std::string(65, 'x').c_str()), bad, {"name has 65 bytes"}));
    RANK_TRY(refused(dt_comm_create(rank.job, nullptr, 1, "x", &comm), bad, {"ranks is NULL"}));
    return comm == nullptr ? meet(rank, {1, 0}, "x") : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("members: of a job of one rank, and the host communicator of a host communicator") {
  require_all_ok(run_ranks(1, [](const Rank& rank) -> dt_status {
    RANK_TRY(meet(rank, {0}, "alone"));
    dt_comm* host = nullptr;
    RANK_TRY(dt_comm_host(rank.world, &host));
    int32_t size = 0;
    RANK_TRY(dt_comm_size(host, &size));
    dt_comm_destroy(host);
    return size == 1 ? DT_OK : DT_ERR_INTERNAL;
  }));
}

}  // namespace dt_test::members_test
