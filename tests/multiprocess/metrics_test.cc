// SPDX-License-Identifier: Apache-2.0
// What dt_job_stats and dt_job_peer_stats say of whole jobs.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>

#include "thread_ranks.h"

namespace dt_test::metrics_test {

namespace {

constexpr int64_t kNsPerMs = 1'000'000;

struct Stats : dt_stats {
  dt_kind_stats kinds[DT_KIND_REDUCE_SCATTERV + 1];
};

Stats stats_of(dt_job* job) {
  Stats stats;
  dt_stats_init(&stats);
  if (dt_job_stats(job, &stats) != DT_OK) stats.restarts = -1;
  for (int kind = 0; kind <= DT_KIND_REDUCE_SCATTERV; ++kind) {
    const dt_status status = dt_job_kind_stats(job, static_cast<dt_kind>(kind), &stats.kinds[kind]);
    if (status != DT_OK) stats.restarts = -1;
  }
  return stats;
}

dt_peer_stats waited_for(dt_job* job, int rank) {
  dt_peer_stats peer = {-1, -1};
  (void)dt_job_peer_stats(job, rank, &peer);
  return peer;
}

/// What was counted between the two.
dt_kind_stats difference(const Stats& before, const Stats& after, dt_kind which) {
  dt_kind_stats kind = after.kinds[which];
  kind.operations -= before.kinds[which].operations;
  kind.failures -= before.kinds[which].failures;
  kind.bytes -= before.kinds[which].bytes;
  kind.bus_bytes -= before.kinds[which].bus_bytes;
  kind.busy_ns -= before.kinds[which].busy_ns;
  return kind;
}

struct Expected {
  dt_kind kind;
  int64_t operations;
  int64_t bytes;
  int64_t bus_bytes;
};

/// By rank, since only the main thread may check.
struct Seen {
  explicit Seen(int world_size) : before(world_size), after(world_size) {}
  std::vector<Stats> before;
  std::vector<Stats> after;
};

/// A rank that is late.
void pass(dt_job* job, int64_t ms) {
  int64_t bytes = 0;
  (void)dt_store_get(job, "never", ms, nullptr, 0, &bytes);
}

/// Rank 1 comes later than the others, each time by more than whatever else holds them up, until
/// rank 0 has waited `enough_ns` for it, and for others not half as long. With a work handle in
/// every second round.
dt_status hold_up(const Rank& rank, int64_t enough_ns) {
  constexpr int kRoundsMax = 60;
  for (int round = 0; round < kRoundsMax; ++round) {
    if (rank.rank == 1) pass(rank.job, 25 + 5 * round);
    dt_work* work = nullptr;
    RANK_TRY(dt_barrier(rank.world, nullptr, round % 2 == 0 ? nullptr : &work));
    if (work != nullptr) {
      RANK_TRY(dt_work_wait(work, -1, nullptr));
      dt_work_destroy(work);
    }
    int64_t others = 0;
    for (int peer = 2; peer < rank.world_size; ++peer) {
      others += waited_for(rank.job, peer).waited_ns;
    }
    const int64_t held_up = waited_for(rank.job, 1).waited_ns;
    int32_t enough = held_up >= enough_ns && held_up > 2 * others ? 1 : 0;
    RANK_TRY(dt_broadcast(rank.world, &enough, 1, DT_I32, 0, nullptr, nullptr));
    if (enough != 0) return DT_OK;
  }
  return DT_ERR_TIMEOUT;
}

/// `calls` operations of each kind on `comm`, of which the caller is rank `me` of `size`.
dt_status call_all(dt_comm* comm, int me, int size, int64_t count, int calls) {
  std::vector<float> small(static_cast<size_t>(count), 1.0F);
  std::vector<float> large(static_cast<size_t>(count * size), 1.0F);
  for (int i = 0; i < calls; ++i) {
    RANK_TRY(
        dt_allreduce(comm, small.data(), small.data(), count, DT_F32, DT_SUM, nullptr, nullptr));
    RANK_TRY(
        dt_reduce(comm, small.data(), small.data(), count, DT_F32, DT_SUM, 0, nullptr, nullptr));
    RANK_TRY(dt_broadcast(comm, small.data(), count, DT_F32, 0, nullptr, nullptr));
    RANK_TRY(dt_allgather(comm, small.data(), large.data(), count, DT_F32, nullptr, nullptr));
    RANK_TRY(dt_reduce_scatter(comm, large.data(), small.data(), count, DT_F32, DT_SUM, nullptr,
                               nullptr));
    RANK_TRY(dt_barrier(comm, nullptr, nullptr));
    const std::vector<int64_t> counts(static_cast<size_t>(size), count);
    const std::vector<float> all(large.size(), 1.0F);
    RANK_TRY(dt_alltoall(comm, all.data(), large.data(), count, DT_F32, nullptr, nullptr));
    RANK_TRY(dt_gather(comm, small.data(), large.data(), count, DT_F32, 0, nullptr, nullptr));
    RANK_TRY(dt_scatter(comm, all.data(), small.data(), count, DT_F32, 0, nullptr, nullptr));
    RANK_TRY(dt_alltoallv(comm, all.data(), counts.data(), nullptr, large.data(), counts.data(),
                          nullptr, DT_F32, nullptr, nullptr));
    RANK_TRY(dt_allgatherv(comm, small.data(), large.data(), counts.data(), nullptr, DT_F32,
                           nullptr, nullptr));
    if (size == 1) continue;  // nobody to send to
    dt_work* work = nullptr;  // in a circle
    RANK_TRY(dt_send(comm, small.data(), count, DT_F32, (me + 1) % size, nullptr, &work));
    RANK_TRY(dt_recv(comm, large.data(), count, DT_F32, (me + size - 1) % size, nullptr, nullptr));
    RANK_TRY(dt_work_wait(work, -1, nullptr));
    dt_work_destroy(work);
  }
  return DT_OK;
}

void check_counts(const Seen& seen, const std::vector<Expected>& all) {
  for (size_t rank = 0; rank < seen.after.size(); ++rank) {
    CAPTURE(rank);
    CHECK(seen.after[rank].restarts == 0);
    CHECK(seen.after[rank].uncounted == 0);
    for (const Expected& expected : all) {
      CAPTURE(expected.kind);
      const dt_kind_stats kind = difference(seen.before[rank], seen.after[rank], expected.kind);
      CHECK(kind.operations == expected.operations);
      CHECK(kind.failures == 0);
      CHECK(kind.bytes == expected.bytes);
      CHECK(kind.bus_bytes == expected.bus_bytes);
      CHECK(kind.busy_ns > 0);
      CHECK(kind.busbw_gbs >= 0);
    }
  }
}

std::vector<Expected> expected_of(int size, int64_t count, int calls) {
  const int64_t bytes = 4 * count * calls;
  std::vector<Expected> all = {{DT_KIND_ALLREDUCE, calls, bytes, 2 * bytes / size * (size - 1)},
                               {DT_KIND_REDUCE, calls, bytes, bytes},
                               {DT_KIND_BROADCAST, calls, bytes, bytes},
                               {DT_KIND_ALLGATHER, calls, bytes * size, bytes * (size - 1)},
                               {DT_KIND_REDUCE_SCATTER, calls, bytes * size, bytes * (size - 1)},
                               {DT_KIND_BARRIER, calls, 0, 0},
                               {DT_KIND_ALLTOALL, calls, bytes * size, bytes * (size - 1)},
                               {DT_KIND_GATHER, calls, bytes * size, bytes * (size - 1)},
                               {DT_KIND_SCATTER, calls, bytes * size, bytes * (size - 1)},
                               {DT_KIND_ALLTOALLV, calls, bytes * size, bytes * (size - 1)},
                               {DT_KIND_ALLGATHERV, calls, bytes * size, bytes * (size - 1)}};
  if (size > 1) {
    all.push_back({DT_KIND_SEND, calls, bytes, bytes});
    all.push_back({DT_KIND_RECV, calls, bytes, bytes});
  }
  return all;
}

}  // namespace

TEST_CASE("operations and bytes of each kind are those of the program, and no others") {
  constexpr int kCalls = 3;
  for (const int size : {1, 2, 3, 4}) {
    for (const int64_t count : {int64_t{12}, int64_t{12000}}) {
      CAPTURE(size);
      CAPTURE(count);
      Seen seen(size);
      require_all_ok(run_ranks(size, [&](const Rank& rank) {
        seen.before[rank.rank] = stats_of(rank.job);
        RANK_TRY(call_all(rank.world, rank.rank, size, count, kCalls));
        seen.after[rank.rank] = stats_of(rank.job);
        return DT_OK;
      }));
      check_counts(seen, expected_of(size, count, kCalls));
    }
  }
}

TEST_CASE("the same over two hosts") {
  constexpr int kRanks = 3;
  constexpr int kCalls = 2;
  Seen seen(kRanks);
  require_all_ok(run_ranks(
      kRanks,
      [&](const Rank& rank) {
        seen.before[rank.rank] = stats_of(rank.job);
        RANK_TRY(call_all(rank.world, rank.rank, kRanks, 1200, kCalls));
        seen.after[rank.rank] = stats_of(rank.job);
        return DT_OK;
      },
      {},
      [](int rank) {
        return Settings{{"job.host_id", rank == 0 ? "a" : "b"}};
      }));
  check_counts(seen, expected_of(kRanks, 1200, kCalls));
}

TEST_CASE("a communicator's bus bytes follow from its own size") {
  constexpr int kRanks = 4;
  Seen seen(kRanks);
  require_all_ok(run_ranks(kRanks, [&](const Rank& rank) {
    dt_comm* pair = nullptr;
    RANK_TRY(dt_comm_split(rank.world, rank.rank / 2, 0, &pair));
    seen.before[rank.rank] = stats_of(rank.job);
    RANK_TRY(call_all(pair, rank.rank % 2, 2, 300, 1));
    seen.after[rank.rank] = stats_of(rank.job);
    dt_comm_destroy(pair);
    return DT_OK;
  }));
  check_counts(seen, expected_of(2, 300, 1));
}

TEST_CASE("with record.entries = 0 nothing is counted but what costs nothing") {
  std::vector<Stats> after(2);
  require_all_ok(run_ranks(2,
                           [&](const Rank& rank) {
                             RANK_TRY(call_all(rank.world, rank.rank, 2, 10, 1));
                             after[rank.rank] = stats_of(rank.job);
                             return DT_OK;
                           },
                           {{"record.entries", "0"}}));
  for (const Stats& stats : after) {
    CHECK(stats.restarts == 0);
    for (const dt_kind_stats& kind : stats.kinds) CHECK(kind.operations == 0);
  }
}

TEST_CASE("an operation that fails is counted as a failure") {
  std::vector<Stats> after(2);
  const auto outcomes = run_ranks(2, [&](const Rank& rank) {
    float value = 1;
    const dt_status status =
        dt_allreduce(rank.world, &value, &value, rank.rank, DT_F32, DT_SUM, nullptr, nullptr);
    after[rank.rank] = stats_of(rank.job);
    return status;
  });
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    CHECK(outcomes[rank].status == DT_ERR_MISMATCH);
    CHECK(after[rank].kinds[DT_KIND_ALLREDUCE].operations == 1);
    CHECK(after[rank].kinds[DT_KIND_ALLREDUCE].failures == 1);
  }
}

TEST_CASE("who waits for a slow rank counts the time for it") {
  std::vector<dt_peer_stats> own(3);
  require_all_ok(run_ranks(3, [&](const Rank& rank) {
    RANK_TRY(hold_up(rank, 60 * kNsPerMs));
    own[rank.rank] = waited_for(rank.job, rank.rank);
    return DT_OK;
  }));
  for (const dt_peer_stats& peer : own) CHECK(peer.waits == 0);
}

TEST_CASE("the same between hosts") {
  require_all_ok(run_ranks(
      2, [&](const Rank& rank) { return hold_up(rank, 60 * kNsPerMs); }, {},
      [](int rank) {
        return Settings{{"job.host_id", rank == 0 ? "a" : "b"}};
      }));
}

TEST_CASE("a stall is counted once, however often somebody looks") {
  constexpr int64_t kFewerThanLooks = 5;  // the machine may hold up another operation, too
  std::atomic<dt_job*> inside{nullptr};
  int64_t before = 0;
  int64_t seen = 0;
  int64_t later = 0;
  require_all_ok(run_ranks(2,
                           [&](const Rank& rank) {
                             if (rank.rank == 0) inside = rank.job;
                             RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
                             if (rank.rank == 1) {
                               seen = before = stats_of(inside).stalls;
                               constexpr int kLooksMax = 500;
                               for (int look = 0; look < kLooksMax && seen == before; ++look) {
                                 pass(rank.job, 20);
                                 seen = stats_of(inside).stalls;
                               }
                               pass(rank.job, 400);  // some twenty more looks of the I/O thread
                               later = stats_of(inside).stalls;
                             }
                             return dt_barrier(rank.world, nullptr, nullptr);
                           },
                           {{"heartbeat.interval_ms", "20"}, {"watchdog.stall_warn_ms", "100"}}));
  CHECK(seen > before);
  CHECK(later - before <= kFewerThanLooks);
}

TEST_CASE("steps of all reducers are counted together") {
  constexpr int kSteps = 3;
  constexpr int64_t kCount = 500;
  std::vector<Stats> after(2);
  std::vector<dt_reducer_statistics> own(2);
  require_all_ok(run_ranks(2, [&](const Rank& rank) {
    dt_param param{};
    param.count = kCount;
    param.dtype = DT_F32;
    std::vector<float> gradient(kCount, 1.0F);
    for (int which = 0; which < 2; ++which) {
      dt_reducer* reducer = nullptr;
      RANK_TRY(dt_reducer_create(rank.world, &param, 1, nullptr, &reducer));
      for (int step = 0; step < kSteps; ++step) {
        RANK_TRY(dt_reducer_ready(reducer, 0, gradient.data(), nullptr));
        RANK_TRY(dt_reducer_finish(reducer, nullptr));
      }
      dt_reducer_statistics statistics;
      dt_reducer_statistics_init(&statistics);
      RANK_TRY(dt_reducer_stats(reducer, &statistics));
      own[rank.rank].total_communication_ns += statistics.total_communication_ns;
      own[rank.rank].total_exposed_ns += statistics.total_exposed_ns;
      dt_reducer_destroy(reducer);
    }
    after[rank.rank] = stats_of(rank.job);
    return DT_OK;
  }));
  for (size_t rank = 0; rank < after.size(); ++rank) {
    CHECK(after[rank].steps == 2 * kSteps);
    CHECK(after[rank].step_bytes == 2 * kSteps * kCount * 4);
    CHECK(after[rank].communication_ns == own[rank].total_communication_ns);
    CHECK(after[rank].exposed_ns == own[rank].total_exposed_ns);
    CHECK(after[rank].hidden_share >= 0);
    CHECK(after[rank].hidden_share <= 1);
  }
}

namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// What a scraper gets from 127.0.0.1; empty where nobody listens.
std::string scrape(int port) {
  constexpr int kPatienceMs = 30'000;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::string request = "GET /metrics HTTP/1.1\r\n\r\n";
  std::string text;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      send(fd, request.data(), request.size(), MSG_NOSIGNAL) > 0) {
    char buffer[4096];
    pollfd readable{fd, POLLIN, 0};
    ssize_t bytes = 1;
    while (bytes > 0 && poll(&readable, 1, kPatienceMs) == 1) {
      bytes = recv(fd, buffer, sizeof buffer, 0);
      if (bytes > 0) text.append(buffer, static_cast<size_t>(bytes));
    }
  }
  close(fd);
  return text;
}

/// Of one job: its log.
struct Sink {
  static void take(void* self, dt_log_level, const char* message) {
    auto& sink = *static_cast<Sink*>(self);
    const std::lock_guard lock(sink.mutex);
    sink.lines.emplace_back(message);
  }
  std::string line_with(const std::string& part) {
    const std::lock_guard lock(mutex);
    for (const std::string& line : lines) {
      if (dt_test::contains(line, part)) return line;
    }
    return {};
  }
  std::mutex mutex;
  std::vector<std::string> lines;
};

}  // namespace

TEST_CASE("the files of ranks on one host, and their ports, hold what dt_job_stats says") {
  char folder[] = "/tmp/dt-metrics-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  require_all_ok(
      run_ranks(2, [&](const Rank& rank) { return call_all(rank.world, rank.rank, 2, 100, 3); },
                {{"metrics.file", std::string(folder) + "/dt.prom"}}));
  for (const char* rank : {"0", "1"}) {
    const std::string text = content_of(std::string(folder) + "/dt." + rank + ".prom");
    const std::string labels = std::string("{job=\"test\",rank=\"") + rank + "\"";
    CAPTURE(text);
    for (const char* line : {
             "dt_operations_total%,kind=\"allreduce\"} 3\n",
             "dt_operation_bytes_total%,kind=\"allgather\"} 2400\n",
             "dt_operation_bus_bytes_total%,kind=\"allreduce\"} 1200\n",
             "dt_world_size%} 2\n",
             "dt_restarts_total%} 0\n",
         }) {
      std::string wanted = line;
      wanted.replace(wanted.find('%'), 1, labels);
      CHECK(dt_test::contains(text, wanted));
    }
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("a job answers at its port until it ends, and where it cannot it goes on") {
  Sink sink;
  const auto start = [&](const std::string& port, dt_job** job) {
    dt_config* config =
        dt_test::rank_config(0, 1, 0, {{"metrics.port", port}, {"log.level", "info"}});
    REQUIRE(config != nullptr);
    REQUIRE_OK(dt_config_set_log_sink(config, &Sink::take, &sink));
    REQUIRE_OK(dt_init(config, job));
    dt_config_destroy(config);
  };
  dt_job* job = nullptr;
  start("-1", &job);
  const std::string line = sink.line_with("the metrics of rank 0 (");
  CAPTURE(line);
  const size_t at = line.find(") are at http://127.0.0.1:");
  REQUIRE(at != line.npos);
  const int port = atoi(line.c_str() + at + strlen(") are at http://127.0.0.1:"));
  const std::string answer = scrape(port);
  CHECK(dt_test::contains(answer, "HTTP/1.1 200 OK\r\n"));
  CHECK(dt_test::contains(answer, "\r\n\r\n# HELP dt_job_info Always 1.\n"));
  CHECK(dt_test::contains(answer, "dt_world_size{job=\"test\",rank=\"0\"} 1\n"));

  dt_job* second = nullptr;
  start(std::to_string(port), &second);
  CHECK(dt_test::contains(sink.line_with("no metrics of rank 0 ("),
                          "cannot listen on 127.0.0.1:" + std::to_string(port) +
                              ": Address already in use; another process listens there: choose "
                              "another port, or 0 for a free one (metrics.port; there -1 "
                              "asks for a free one)"));
  REQUIRE_OK(dt_finalize(second, -1));
  dt_job_destroy(second);
  CHECK(!scrape(port).empty());
  REQUIRE_OK(dt_finalize(job, -1));
  dt_job_destroy(job);
}

}  // namespace dt_test::metrics_test
