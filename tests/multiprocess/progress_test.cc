// SPDX-License-Identifier: Apache-2.0
// Who advances works, and on which processors: host.progress and host.progress_cpus.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "thread_ranks.h"

namespace dt_test::progress_test {

namespace {

const Settings kByCaller = {{"host.progress", "caller"}};
constexpr int64_t kLarge = 300'000;

std::string line_of(const std::filesystem::path& file, const std::string& beginning) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(beginning, 0) == 0) return line.substr(beginning.size());
  }
  return {};
}

/// The processors of each thread of this process that has the name.
std::vector<std::string> processors_of(const std::string& name) {
  std::vector<std::string> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const auto status = task.path() / "status";
    if (line_of(status, "Name:\t") == name)
      found.push_back(line_of(status, "Cpus_allowed_list:\t"));
  }
  return found;
}

/// One that this process may use.
int own_processor() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  for (int processor = CPU_SETSIZE - 1; processor >= 0; --processor) {
    if (CPU_ISSET(processor, &set)) return processor;
  }
  return 0;
}

/// Lets works complete, so that each thread that they need is there.
dt_status use_works(const Rank& rank) {
  for (const int64_t count : {int64_t{1}, kLarge}) {
    std::vector<float> data(static_cast<size_t>(count), static_cast<float>(rank.rank + 1));
    dt_work* work = nullptr;
    RANK_TRY(
        dt_allreduce(rank.world, data.data(), data.data(), count, DT_F32, DT_SUM, nullptr, &work));
    int32_t done = 0;
    RANK_TRY(dt_work_wait(work, 60'000, &done));
    dt_work_destroy(work);
    const auto sum = static_cast<float>(rank.world_size * (rank.world_size + 1) / 2);
    if (done != 1 || data.front() != sum || data.back() != sum) return DT_ERR_INTERNAL;
  }
  return DT_OK;
}

/// What rank 0 finds of a thread while all ranks have used works.
std::vector<std::string> threads_named(const std::string& name, int world_size,
                                       const Settings& settings,
                                       const std::function<Settings(int)>& settings_of = {}) {
  std::vector<std::string> found;
  require_all_ok(run_ranks(
      world_size,
      [&](const Rank& rank) -> dt_status {
        RANK_TRY(use_works(rank));
        RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
        if (rank.rank == 0) found = processors_of(name);
        return dt_barrier(rank.world, nullptr, nullptr);
      },
      settings, settings_of));
  return found;
}

Settings on_own_host(int rank) { return {{"job.host_id", "host" + std::to_string(rank)}}; }

}  // namespace

TEST_CASE("progress: each rank that uses works has one thread for them, or none if callers do it") {
  CHECK(threads_named("dt-host", 3, {}).size() == 3);
  CHECK(threads_named("dt-host", 3, kByCaller).empty());
}

TEST_CASE("progress: the threads run where they are told to, and no other does") {
  const std::string there = std::to_string(own_processor());
  const std::string before = line_of("/proc/self/status", "Cpus_allowed_list:\t");
  const Settings told = {{"host.progress_cpus", there}};
  CHECK(threads_named("dt-host", 2, told) == std::vector<std::string>(2, there));
  CHECK(threads_named("dt-tcp", 2, told, on_own_host) == std::vector<std::string>(2, there));
  for (const std::string& processors : threads_named("dt-io", 2, told)) CHECK(processors == before);
  CHECK(line_of("/proc/self/status", "Cpus_allowed_list:\t") == before);
}

TEST_CASE("progress: a list that is none, and a processor that is not there, are refused") {
  struct Case {
    const char* list;
    std::string says;
  };
  const Case cases[] = {
      {"x", "\"x\" is no list of processors from \"x\" on; write it as \"1,3-5\""},
      {"0,", "from \"0,\" on"},
      {"0,,1", "from \",1\" on"},
      {"0-", "from \"0-\" on"},
      {"0,5-3", "from \"5-3\" on"},
      {"0 1", "from \"0 1\" on"},
      {"8192", "with numbers below 8192"},
      {"8191",
       "processor 8191: Invalid argument; this machine has no such processor, or the group"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.list);
    ServedStore store(2);
    dt_config* const config = rank_config(1, 2, store.port(), {{"host.progress_cpus", each.list}});
    REQUIRE(config != nullptr);
    dt_job* job = nullptr;
    CHECK(dt_init(config, &job) == DT_ERR_CONFIG);
    dt_config_destroy(config);
    const std::string message = dt_last_error();
    INFO(message);
    CHECK(contains(message, "rank 1 ("));
    CHECK(contains(message, "): host.progress_cpus"));
    CHECK(contains(message, each.says));
  }
}

TEST_CASE("progress: callers advance works by looking at them, and by waiting for any of them") {
  require_all_ok(run_ranks(
      3,
      [](const Rank& rank) -> dt_status {
        std::vector<int64_t> data(kLarge, rank.rank + 1);
        dt_work* work = nullptr;
        RANK_TRY(dt_allreduce(rank.world, data.data(), data.data(), kLarge, DT_I64, DT_SUM, nullptr,
                              &work));
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        int32_t done = 0;
        while (done == 0 && std::chrono::steady_clock::now() < limit)
          RANK_TRY(dt_work_test(work, &done));
        dt_work_destroy(work);
        if (done != 1 || data[0] != 6 || data[kLarge - 1] != 6) return DT_ERR_INTERNAL;

        // Of two communicators, issued in another order by each rank.
        dt_comm* comms[2] = {};
        dt_work* works[2] = {};
        std::vector<int64_t> each[2];
        for (size_t i = 0; i < 2; ++i) RANK_TRY(dt_comm_split(rank.world, 0, 0, &comms[i]));
        for (size_t turn = 0; turn < 2; ++turn) {
          const size_t i = (turn + static_cast<size_t>(rank.rank)) % 2;
          each[i].assign(kLarge, rank.rank + 1);
          RANK_TRY(dt_allreduce(comms[i], each[i].data(), each[i].data(), kLarge, DT_I64, DT_SUM,
                                nullptr, &works[i]));
        }
        int32_t first = -1;
        RANK_TRY(dt_work_wait_any(works, 2, 60'000, &first));
        if (first < 0) return DT_ERR_INTERNAL;
        RANK_TRY(dt_work_wait_any(&works[1 - first], 1, 60'000, &first));
        if (first != 0) return DT_ERR_INTERNAL;
        for (size_t i = 0; i < 2; ++i) {
          if (each[i][0] != 6 || each[i][kLarge - 1] != 6) return DT_ERR_INTERNAL;
          dt_work_destroy(works[i]);
          dt_comm_destroy(comms[i]);
        }
        return DT_OK;
      },
      kByCaller));
}

TEST_CASE("progress: callers advance the buckets of a reducer, and transfers in any order") {
  require_all_ok(run_ranks(
      2,
      [](const Rank& rank) -> dt_status {
        const dt_param params[] = {{kLarge, "a", DT_F32, 0}, {500, "b", DT_F32, 0}};
        dt_reducer* reducer = nullptr;
        RANK_TRY(dt_reducer_create(rank.world, params, 2, nullptr, &reducer));
        std::vector<float> a(kLarge);
        std::vector<float> b(500);
        for (int step = 0; step < 3; ++step) {
          std::fill(a.begin(), a.end(), static_cast<float>(2 * rank.rank + step));
          std::fill(b.begin(), b.end(), static_cast<float>(4 * rank.rank));
          RANK_TRY(dt_reducer_ready(reducer, 1, b.data(), nullptr));
          RANK_TRY(dt_reducer_ready(reducer, 0, a.data(), nullptr));
          RANK_TRY(dt_reducer_finish(reducer, nullptr));
          if (a[kLarge - 1] != static_cast<float>(1 + step) || b[499] != 2) return DT_ERR_INTERNAL;
        }
        dt_reducer_destroy(reducer);
        // Both send first.
        std::vector<float> in(kLarge);
        dt_work* work = nullptr;
        RANK_TRY(dt_send(rank.world, a.data(), kLarge, DT_F32, 1 - rank.rank, nullptr, &work));
        RANK_TRY(dt_recv(rank.world, in.data(), kLarge, DT_F32, 1 - rank.rank, nullptr, nullptr));
        int32_t done = 0;
        RANK_TRY(dt_work_wait(work, 60'000, &done));
        dt_work_destroy(work);
        return done == 1 && in == a ? DT_OK : DT_ERR_INTERNAL;
      },
      kByCaller, numbered({0, 0}, 1)));
}

TEST_CASE("progress: what callers advance has no descriptor to sleep on") {
  std::vector<std::string> told(2);
  require_all_ok(run_ranks(
      2,
      [&](const Rank& rank) -> dt_status {
        int32_t fd = -7;
        if (dt_work_fd(rank.world, &fd) != DT_ERR_UNSUPPORTED || fd != -7) return DT_ERR_INTERNAL;
        told[static_cast<size_t>(rank.rank)] = dt_last_error();
        return dt_barrier(rank.world, nullptr, nullptr);
      },
      kByCaller));
  for (const std::string& each : told) {
    INFO(each);
    CHECK(contains(each,
                   "communicator \"world\" has no descriptor to wait on: with host.progress "
                   "= caller nothing completes while nobody calls; use dt_work_wait, or "
                   "host.progress = thread"));
  }
}

TEST_CASE("progress: callers are not enough for several hosts, and every rank is told") {
  const auto outcomes = run_ranks(
      2, [](const Rank&) { return DT_OK; }, kByCaller, on_own_host);
  for (size_t r = 0; r < outcomes.size(); ++r) {
    INFO(outcomes[r].message);
    CHECK(outcomes[r].status == DT_ERR_CONFIG);
    CHECK(contains(outcomes[r].message, "rank " + std::to_string(r) + " ("));
    CHECK(contains(outcomes[r].message,
                   "): host.progress = caller is for the ranks of one host, and this job has 2: "
                   "data of other hosts comes at any time; use host.progress = thread"));
  }
}

}  // namespace dt_test::progress_test
