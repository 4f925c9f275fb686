// SPDX-License-Identifier: Apache-2.0
// Named submission. Ranks are threads of this process.
#include <poll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>

#include "../sanitizers.h"
#include "thread_ranks.h"

namespace dt_test::named_test {

namespace {

constexpr int64_t kWaitMs = 20'000;

using Names = std::vector<std::string>;

dt_collective allreduce(std::vector<float>& values) {
  dt_collective made;
  dt_collective_init(&made);
  made.kind = DT_KIND_ALLREDUCE;
  made.dtype = DT_F32;
  made.op = DT_SUM;
  made.count = static_cast<int64_t>(values.size());
  made.send = made.recv = values.data();
  return made;
}

/// Waits, and drops the handle.
dt_status finish(dt_work* work) {
  int32_t done = 0;
  const dt_status status = dt_work_wait(work, kWaitMs, &done);
  dt_work_destroy(work);
  return status != DT_OK || done == 1 ? status : DT_ERR_INTERNAL;
}

/// The call fails so, with all these parts in its text.
dt_status expect_failure(dt_status status, dt_status wanted, const Names& parts) {
  const std::string text = dt_last_error();
  bool same = status == wanted;
  for (const std::string& part : parts) same = same && contains(text, part);
  if (same) return DT_OK;
  MESSAGE(dt_status_name(status), " instead of ", dt_status_name(wanted), ": ", text);
  return DT_ERR_INTERNAL;
}

dt_status check(bool holds, const char* what) {
  if (holds) return DT_OK;
  MESSAGE(std::string(what));
  return DT_ERR_INTERNAL;
}

dt_named_options quick() {
  dt_named_options options;
  dt_named_options_init(&options);
  return options;
}

dt_named_statistics statistics_of(dt_named* named) {
  dt_named_statistics statistics;
  dt_named_statistics_init(&statistics);
  (void)dt_named_stats(named, &statistics);
  return statistics;
}

dt_status report_of(dt_named* named, std::string* out) {
  char text[4000];
  int64_t bytes = 0;
  RANK_TRY(dt_named_report(named, kWaitMs, text, sizeof text, &bytes));
  *out = text;
  return check(bytes == static_cast<int64_t>(out->size()) + 1, "bytes of the report");
}

/// A tensor of each kind, with its result in closed form.
struct Tensor {
  std::string name;
  dt_collective collective;
  std::vector<int64_t> send;
  std::vector<int64_t> recv;
  std::vector<int64_t> wanted;
  dt_work* work = nullptr;
};

int64_t element(int rank, size_t tensor, int64_t i) {
  return rank * 1'000'003 + static_cast<int64_t>(tensor) * 1009 + i;
}

std::vector<Tensor> tensors_of(const Rank& rank, size_t count, int step) {
  std::vector<Tensor> tensors(count);
  const int n = rank.world_size;
  for (size_t t = 0; t < count; ++t) {
    Tensor& tensor = tensors[t];
    tensor.name = "layer" + std::to_string(t) + ".weight";
    dt_collective& of = tensor.collective;
    dt_collective_init(&of);
    const dt_kind kinds[] = {DT_KIND_ALLREDUCE, DT_KIND_ALLREDUCE,      DT_KIND_BROADCAST,
                             DT_KIND_ALLGATHER, DT_KIND_REDUCE_SCATTER, DT_KIND_ALLTOALL};
    of.kind = kinds[t % 6];
    of.dtype = DT_I64;
    of.op = DT_SUM;
    of.peer = static_cast<int32_t>(t) % n;
    of.count = static_cast<int64_t>(t * 7 % 50);
    const int64_t c = of.count;
    const bool many_in = of.kind == DT_KIND_REDUCE_SCATTER || of.kind == DT_KIND_ALLTOALL;
    const bool many_out = of.kind == DT_KIND_ALLGATHER || of.kind == DT_KIND_ALLTOALL;
    for (int64_t i = 0; i < c * (many_in ? n : 1); ++i) {
      tensor.send.push_back(element(rank.rank, t, i) * step);
    }
    const int64_t sum_of_ranks = int64_t{n} * (n - 1) / 2 * 1'000'003;
    for (int64_t i = 0; i < c * (many_out ? n : 1); ++i) {
      int64_t wanted = 0;
      if (of.kind == DT_KIND_ALLREDUCE) wanted = sum_of_ranks + n * element(0, t, i);
      if (of.kind == DT_KIND_BROADCAST) wanted = element(of.peer, t, i);
      if (of.kind == DT_KIND_ALLGATHER) wanted = element(static_cast<int>(i / c), t, i % c);
      if (of.kind == DT_KIND_REDUCE_SCATTER)
        wanted = sum_of_ranks + n * element(0, t, rank.rank * c + i);
      if (of.kind == DT_KIND_ALLTOALL)
        wanted = element(static_cast<int>(i / c), t, rank.rank * c + i % c);
      tensor.wanted.push_back(wanted * step);
    }
    tensor.recv.resize(tensor.wanted.size());
    of.send = tensor.send.data();
    of.recv = tensor.recv.data();
    if (of.kind == DT_KIND_BROADCAST) {  // the root's input is its result
      if (of.peer == rank.rank) tensor.recv = tensor.send;
      of.send = of.recv = tensor.recv.data();
    }
  }
  return tensors;
}

/// Each rank submits `count` tensors in an order of its own, from so many threads.
dt_status run_steps(const Rank& rank, const dt_named_options& options, size_t count, int threads,
                    dt_named_statistics* statistics = nullptr) {
  dt_named* named = nullptr;
  RANK_TRY(dt_named_create(rank.world, &options, &named));
  std::mt19937 random(static_cast<unsigned>(rank.rank) + 1);
  for (int step = 1; step <= 3; ++step) {
    auto tensors = tensors_of(rank, count, step);
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    std::atomic<int> status{DT_OK};
    const auto submit = [&](int thread) {
      for (size_t i = static_cast<size_t>(thread); i < count; i += static_cast<size_t>(threads)) {
        Tensor& tensor = tensors[order[i]];
        const dt_status each =
            dt_named_submit(named, tensor.name.c_str(), &tensor.collective, &tensor.work);
        if (each != DT_OK) status = each;
      }
    };
    std::vector<std::thread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(submit, thread);
    submit(0);
    for (std::thread& other : others) other.join();
    RANK_TRY(static_cast<dt_status>(status.load()));
    for (Tensor& tensor : tensors) {
      RANK_TRY(finish(tensor.work));
      RANK_TRY(check(tensor.recv == tensor.wanted, tensor.name.c_str()));
    }
  }
  if (statistics != nullptr) *statistics = statistics_of(named);
  dt_named_destroy(named);
  return DT_OK;
}

/// Messages that a job logs.
class Log {
 public:
  static void take(void* self, dt_log_level, const char* message) {
    auto* log = static_cast<Log*>(self);
    const std::scoped_lock lock(log->mutex_);
    log->lines_.emplace_back(message);
  }
  size_t count(const std::string& part) {
    const std::scoped_lock lock(mutex_);
    return static_cast<size_t>(std::count_if(
        lines_.begin(), lines_.end(), [&](const auto& line) { return contains(line, part); }));
  }

 private:
  std::mutex mutex_;
  Names lines_;
};

}  // namespace

TEST_CASE("named: tensors of all kinds, in an order of each rank's own") {
  for (const int world_size : {1, 2, 3, 4, 8}) {
    CAPTURE(world_size);
    require_all_ok(run_ranks(world_size, [](const Rank& rank) -> dt_status {
      dt_named_statistics statistics;
      RANK_TRY(run_steps(rank, quick(), 120, 1, &statistics));
      RANK_TRY(check(statistics.tensors == 3 * 120, "tensors"));
      RANK_TRY(check(statistics.cache_hits == 2 * 120, "cache hits"));
      return check(statistics.operations <= statistics.tensors, "operations");
    }));
  }
}

TEST_CASE("named: from several threads, and with every setting of the options") {
  for (const int32_t cache : {0, 1, 7, 1024}) {
    for (const int64_t fuse_bytes : {int64_t{0}, int64_t{500}, int64_t{64} << 20}) {
      CAPTURE(cache);
      CAPTURE(fuse_bytes);
      require_all_ok(run_ranks(3, [&](const Rank& rank) -> dt_status {
        dt_named_options options = quick();
        options.cache = cache;
        options.fuse_bytes = fuse_bytes;
        options.cycle_us = cache == 0 ? 0 : 500;
        options.stall_ms = 0;
        dt_named_statistics statistics;
        RANK_TRY(run_steps(rank, options, 60, 3, &statistics));
        return check(fuse_bytes != 0 || statistics.fused_tensors == 0, "fused");
      }));
    }
  }
}

TEST_CASE("named: over hosts, and where no thread makes progress") {
  require_all_ok(run_ranks(
      4, [](const Rank& rank) { return run_steps(rank, quick(), 60, 2); }, {},
      numbered({0, 0, 1, 1}, 3)));
  require_all_ok(run_ranks(3, [](const Rank& rank) { return run_steps(rank, quick(), 60, 1); },
                           {{"host.progress", "caller"}}));
}

TEST_CASE("named: the eventfd of the communicator counts works") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    int32_t fd = -1;
    RANK_TRY(dt_work_fd(rank.world, &fd));
    dt_named* named = nullptr;
    const dt_named_options options = quick();
    RANK_TRY(dt_named_create(rank.world, &options, &named));
    for (int i = 0; i < 50; ++i) {
      std::vector<float> values(3, 1);
      const dt_collective one = allreduce(values);
      dt_work* work = nullptr;
      RANK_TRY(dt_named_submit(named, "w", &one, &work));
      for (int32_t done = 0; done == 0;) {
        pollfd entry{fd, POLLIN, 0};
        RANK_TRY(check(poll(&entry, 1, kWaitMs) == 1, "the eventfd becomes readable"));
        eventfd_t count = 0;
        (void)eventfd_read(fd, &count);
        RANK_TRY(dt_work_test(work, &done));
      }
      RANK_TRY(finish(work));
    }
    dt_named_destroy(named);
    return DT_OK;
  }));
}

TEST_CASE("named: a thousand tensors become few operations") {
  require_all_ok(run_ranks(4, [](const Rank& rank) -> dt_status {
    dt_named* named = nullptr;
    dt_named_options options = quick();
    options.cycle_us = 1'000'000;  // until all are there
    RANK_TRY(dt_named_create(rank.world, &options, &named));
    std::vector<std::vector<float>> values(1000, std::vector<float>(100));
    std::vector<size_t> order(values.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(rank.rank)));
    std::vector<dt_work*> works;
    for (const size_t at : order) {
      std::fill(values[at].begin(), values[at].end(), static_cast<float>(at) + 1);
      const dt_collective collective = allreduce(values[at]);
      RANK_TRY(dt_named_submit(named, ("t" + std::to_string(at)).c_str(), &collective,
                               &works.emplace_back()));
    }
    for (dt_work* work : works) RANK_TRY(finish(work));
    for (size_t at = 0; at < values.size(); ++at) {
      RANK_TRY(check(values[at][99] == 4 * (static_cast<float>(at) + 1), "a sum"));
    }
    const dt_named_statistics statistics = statistics_of(named);
    RANK_TRY(check(statistics.fused_bytes > 0, "bytes"));
    RANK_TRY(check(statistics.operations < 500, "operations"));
    dt_named_destroy(named);
    return DT_OK;
  }));
}

TEST_CASE("named: a missing name is reported with its ranks, and then ends in time") {
  Log log;
  ServedStore store(3);
  std::vector<Outcome> outcomes(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      const auto body = [&]() -> dt_status {
        dt_config* const config = rank_config(r, 3, store.port(), {});
        RANK_TRY(dt_config_set_log_sink(config, Log::take, &log));
        dt_job* job = nullptr;
        dt_comm* world = nullptr;
        RANK_TRY(dt_init(config, &job));
        dt_config_destroy(config);
        RANK_TRY(dt_comm_world(job, &world));
        dt_named_options options = quick();
        options.stall_ms = 20;
        dt_named* named = nullptr;
        RANK_TRY(dt_named_create(world, &options, &named));
        std::vector<float> values(10, 1);
        dt_collective collective = allreduce(values);
        dt_work* work = nullptr;
        const bool has = r != 1;
        if (has) RANK_TRY(dt_named_submit(named, "layer3.weight", &collective, &work));
        // All ranks see the same in the end, also the one that is missing.
        std::string report;
        while (!contains(report, "was submitted by ranks 0 and 2 and not by rank 1 (")) {
          RANK_TRY(report_of(named, &report));
        }
        RANK_TRY(check(contains(report, "\"layer3.weight\" (allreduce f32 sum x 10)"), "name"));
        while (r == 0 && statistics_of(named).stalls == 0) {
          int32_t done = 0;
          RANK_TRY(dt_work_wait(work, 5, &done));
        }
        RANK_TRY(dt_barrier(world, nullptr, nullptr));
        if (!has) RANK_TRY(dt_named_submit(named, "layer3.weight", &collective, &work));
        RANK_TRY(finish(work));
        RANK_TRY(check(values[9] == 3, "the sum"));
        RANK_TRY(report_of(named, &report));
        RANK_TRY(check(report.empty(), "nothing waits"));
        RANK_TRY(dt_barrier(world, nullptr, nullptr));

        collective.timeout_ms = 60;
        const Names late = {"\"layer4\"", "timed out on rank ", "by rank 2 and not by ranks 0 (",
                            "1 (", "timeout_ms"};
        if (r == 2) {
          RANK_TRY(expect_failure(dt_named_submit(named, "layer4", &collective, nullptr),
                                  DT_ERR_TIMEOUT, late));
        }
        RANK_TRY(dt_barrier(world, nullptr, nullptr));
        // It is over for the others, too.
        collective.timeout_ms = kWaitMs;
        dt_status after = dt_named_submit(named, "layer5", &collective, &work);
        if (after == DT_OK) after = finish(work);
        RANK_TRY(expect_failure(after, DT_ERR_TIMEOUT, late));
        RANK_TRY(expect_failure(dt_named_submit(named, "layer6", &collective, &work),
                                DT_ERR_TIMEOUT, {"has failed before"}));
        dt_named_destroy(named);
        RANK_TRY(dt_finalize(job, 20000));
        dt_comm_destroy(world);
        dt_job_destroy(job);
        return DT_OK;
      };
      outcomes[static_cast<size_t>(r)] = outcome_of(body());
    });
  }
  for (std::thread& thread : threads) thread.join();
  require_all_ok(outcomes);
  // Once; on a slow machine maybe before rank 2 has submitted it.
  CHECK(log.count("named submission on comm \"world\": \"layer3.weight\" (allreduce f32 sum x 10) "
                  "was submitted by rank") == 1);
}

TEST_CASE("named: what differs under a name fails on all ranks, and other names go on") {
  require_all_ok(run_ranks(3, [](const Rank& rank) -> dt_status {
    dt_named* named = nullptr;
    RANK_TRY(dt_named_create(rank.world, nullptr, &named));
    for (int step = 0; step < 3; ++step) {
      std::vector<float> good(10, 1);
      std::vector<float> bad(rank.rank == 1 ? 9 : 10, 1);
      const dt_collective good_one = allreduce(good);
      const dt_collective bad_one = allreduce(bad);
      dt_work* work = nullptr;
      RANK_TRY(dt_named_submit(named, "bad", &bad_one, &work));
      RANK_TRY(dt_named_submit(named, "good", &good_one, nullptr));
      RANK_TRY(check(good[3] == 3, "the sum"));
      RANK_TRY(expect_failure(finish(work), DT_ERR_MISMATCH,
                              {"\"bad\": ranks disagree: rank 0 (",
                               "and 1 more: allreduce f32 sum x "
                               "10, rank 1 (",
                               "allreduce f32 sum x 9; submit the same"}));
    }
    dt_named_destroy(named);
    return DT_OK;
  }));
}

TEST_CASE("named: what cannot be submitted is refused") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    dt_named* named = nullptr;
    dt_named_options options = quick();
    options.cache = rank.rank + 1;
    RANK_TRY(expect_failure(dt_named_create(rank.world, &options, &named), DT_ERR_MISMATCH,
                            {"rank 0 (", "cache 1,", "rank 1 (", "cache 2,"}));
    RANK_TRY(dt_named_create(rank.world, nullptr, &named));
    std::vector<float> values(10, 1);
    dt_collective collective = allreduce(values);
    dt_work* work = nullptr;
    dt_work* other = nullptr;
    if (rank.rank == 0) {
      RANK_TRY(dt_named_submit(named, "a", &collective, &work));
      RANK_TRY(expect_failure(dt_named_submit(named, "a", &collective, &other),
                              DT_ERR_INVALID_STATE,
                              {"\"a\" was submitted before on rank 0, and is not done"}));
      const char* names[] = {"b", "a"};
      const dt_collective* both[] = {&collective, &collective};
      dt_work* works[2] = {};
      RANK_TRY(expect_failure(dt_named_submit_group(named, names, both, 2, works),
                              DT_ERR_INVALID_STATE, {"\"a\" was submitted before"}));
    }
    RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
    if (rank.rank == 1) RANK_TRY(dt_named_submit(named, "a", &collective, &work));
    RANK_TRY(finish(work));
    collective.kind = DT_KIND_REDUCE;
    RANK_TRY(expect_failure(dt_named_submit(named, "a", &collective, &work), DT_ERR_UNSUPPORTED,
                            {"\"a\" is reduce; by name go allreduce"}));
    dt_named_destroy(named);
    return DT_OK;
  }));
}

TEST_CASE("named: a group is released together, or fails together") {
  require_all_ok(run_ranks(3, [](const Rank& rank) -> dt_status {
    dt_named* named = nullptr;
    RANK_TRY(dt_named_create(rank.world, nullptr, &named));
    const char* names[] = {"g0", "g1", "g2"};
    for (int step = 0; step < 4; ++step) {
      std::vector<float> values[] = {std::vector<float>(5, 1), std::vector<float>(6, 2),
                                     std::vector<float>(7, 3)};
      const bool differs = step == 3;
      if (differs && rank.rank == 2) values[1].resize(2);
      const dt_collective each[] = {allreduce(values[0]), allreduce(values[1]),
                                    allreduce(values[2])};
      const dt_collective* all[] = {&each[0], &each[1], &each[2]};
      dt_work* works[3] = {};
      const dt_named_statistics before = statistics_of(named);
      RANK_TRY(dt_named_submit_group(named, names, all, 3, works));
      if (differs) {
        RANK_TRY(expect_failure(finish(works[1]), DT_ERR_MISMATCH, {"\"g1\": ranks disagree"}));
        RANK_TRY(expect_failure(finish(works[0]), DT_ERR_MISMATCH,
                                {"\"g0\" is in the group of \"g0\", of which another failed",
                                 "\"g1\": ranks disagree"}));
        RANK_TRY(expect_failure(finish(works[2]), DT_ERR_MISMATCH, {"\"g2\" is in the group"}));
        continue;
      }
      for (dt_work* work : works) RANK_TRY(finish(work));
      const dt_named_statistics after = statistics_of(named);
      RANK_TRY(check(after.operations == before.operations + 1, "one operation"));
      RANK_TRY(check(after.fused_tensors == before.fused_tensors + 3, "three tensors"));
      RANK_TRY(check(values[0][4] == 3 && values[1][5] == 6 && values[2][6] == 9, "sums"));
    }
    dt_named_destroy(named);
    return DT_OK;
  }));
}

TEST_CASE("named: ranks with fewer inputs join, and give zeros") {
  for (const int world_size : {1, 2, 4}) {
    CAPTURE(world_size);
    require_all_ok(run_ranks(world_size, [](const Rank& rank) -> dt_status {
      dt_named* named = nullptr;
      RANK_TRY(dt_named_create(rank.world, nullptr, &named));
      for (int epoch = 0; epoch < 2; ++epoch) {
        // Rank r has r + 1 inputs; the last rank has joined last.
        for (int input = 0; input <= rank.rank; ++input) {
          std::vector<float> one(10, 1);
          std::vector<float> two(3, 2);
          const dt_collective first = allreduce(one);
          dt_collective second = allreduce(two);
          second.op = DT_AVG;
          dt_work* work = nullptr;
          RANK_TRY(dt_named_submit(named, "one", &first, &work));
          RANK_TRY(dt_named_submit(named, "two", &second, nullptr));
          RANK_TRY(finish(work));
          const auto left = static_cast<float>(rank.world_size - input);
          RANK_TRY(check(one[9] == left, "a sum"));
          RANK_TRY(check(two[2] == 2 * left / static_cast<float>(rank.world_size), "a mean"));
        }
        int32_t last = -1;
        do {
          RANK_TRY(dt_named_join(named, 20, &last));
          std::vector<float> value(1);
          const dt_collective more = allreduce(value);
          dt_work* work = nullptr;
          if (last < 0) {
            RANK_TRY(expect_failure(dt_named_submit(named, "more", &more, &work),
                                    DT_ERR_INVALID_STATE, {"has joined"}));
          }
        } while (last < 0);
        RANK_TRY(check(last == rank.world_size - 1, "the last rank"));
      }
      dt_named_destroy(named);
      return DT_OK;
    }));
  }
}

TEST_CASE("named: a join that ends between two calls is given by the second") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    dt_named* named = nullptr;
    RANK_TRY(dt_named_create(rank.world, nullptr, &named));
    for (int round = 0; round < 50; ++round) {
      int32_t last = -1;
      if (rank.rank == 0) {
        RANK_TRY(dt_named_join(named, 0, &last));
        RANK_TRY(check(last == -1, "rank 1 has not joined"));
      }
      RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
      RANK_TRY(rank.rank == 1 ? dt_named_join(named, -1, &last) : DT_OK);
      RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
      RANK_TRY(rank.rank == 0 ? dt_named_join(named, 20'000, &last) : DT_OK);
      RANK_TRY(check(last == 1, "the last rank"));
    }
    dt_named_destroy(named);
    return DT_OK;
  }));
}

TEST_CASE("named: what a joined rank cannot give zeros to fails") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    dt_named* named = nullptr;
    RANK_TRY(dt_named_create(rank.world, nullptr, &named));
    int32_t last = -1;
    if (rank.rank == 1) {
      std::vector<float> values(10, 1);
      dt_collective collective = allreduce(values);
      const Names why = {"rank 0 (", "has joined, and gives zeros"};
      collective.op = DT_MAX;
      RANK_TRY(expect_failure(dt_named_submit(named, "max", &collective, nullptr),
                              DT_ERR_UNSUPPORTED, why));
      collective.kind = DT_KIND_BROADCAST;
      RANK_TRY(expect_failure(dt_named_submit(named, "broadcast", &collective, nullptr),
                              DT_ERR_UNSUPPORTED, why));
    }
    RANK_TRY(dt_named_join(named, kWaitMs, &last));
    RANK_TRY(check(last == 1, "the last rank"));
    dt_named_destroy(named);
    return DT_OK;
  }));
}

TEST_CASE("named: what waits ends where a rank destroys its handle") {
  for (const int leaver : {0, 1}) {
    for (const bool finalizes : {false, true}) {
      CAPTURE(leaver);
      CAPTURE(finalizes);
      require_all_ok(run_ranks(3, [&](const Rank& rank) -> dt_status {
        dt_named* named = nullptr;
        RANK_TRY(dt_named_create(rank.world, nullptr, &named));
        std::vector<float> values(10, 1);
        const dt_collective collective = allreduce(values);
        dt_work* work = nullptr;
        RANK_TRY(dt_named_submit(named, "all", &collective, nullptr));
        if (rank.rank != leaver) RANK_TRY(dt_named_submit(named, "some", &collective, &work));
        if (rank.rank == leaver) {
          RANK_TRY(dt_named_submit(named, "own", &collective, &work));
          if (finalizes) return DT_OK;  // with the handle open
          dt_named_destroy(named);
          return expect_failure(finish(work), DT_ERR_ABORTED, {"\"own\"", "was closed on rank"});
        }
        const std::string who = "rank " + std::to_string(leaver) + " (";
        RANK_TRY(expect_failure(finish(work), DT_ERR_ABORTED,
                                {"\"some\"", who, "make a new one on all ranks"}));
        RANK_TRY(expect_failure(dt_named_submit(named, "later", &collective, nullptr),
                                DT_ERR_ABORTED, {"\"later\"", who}));
        dt_named_destroy(named);
        return DT_OK;
      }));
    }
  }
}

TEST_CASE("named: an abort of the job ends what waits") {
  const auto outcomes = run_ranks(3, [](const Rank& rank) -> dt_status {
    dt_named* named = nullptr;
    RANK_TRY(dt_named_create(rank.world, nullptr, &named));
    std::vector<float> values(10, 1);
    const dt_collective collective = allreduce(values);
    dt_work* work = nullptr;
    if (rank.rank == 2) return dt_abort(rank.job, "because");
    RANK_TRY(dt_named_submit(named, "a", &collective, &work));
    return finish(work);
  });
  for (const int rank : {0, 1}) {
    CAPTURE(outcomes[static_cast<size_t>(rank)].message);
    CHECK(outcomes[static_cast<size_t>(rank)].status == DT_ERR_ABORTED);
    CHECK(contains(outcomes[static_cast<size_t>(rank)].message, "because"));
  }
}

TEST_CASE("named: what a rank that has gone withholds ends with ABORTED") {
  constexpr int kRounds = dt::test::kThreadSanitizer ? 20 : 100;
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    for (int round = 0; round < kRounds; ++round) {
      dt_named* named = nullptr;
      RANK_TRY(dt_named_create(rank.world, nullptr, &named));
      std::vector<float> values(1000, 1);
      const dt_collective collective = allreduce(values);
      dt_work* work = nullptr;
      RANK_TRY(dt_named_submit(named, "a", &collective, &work));
      // A message in two parts, of which rank 0 may take the second one only after "a".
      std::vector<float> others(8, 1);
      std::vector<dt_work*> unwanted(rank.rank == 1 ? others.size() : 0);
      for (size_t i = 0; i < unwanted.size(); ++i) {
        dt_collective other = allreduce(others);
        other.send = other.recv = &others[i];
        other.count = 1;
        const std::string name = std::string(100, 'b') + std::to_string(i);
        RANK_TRY(dt_named_submit(named, name.c_str(), &other, &unwanted[i]));
      }
      // Rank 0's list is maybe on its way to rank 1.
      if (rank.rank == 1) dt_named_destroy(named);
      const dt_status status = finish(work);
      RANK_TRY(check(status == DT_OK || status == DT_ERR_ABORTED, dt_last_error()));
      for (dt_work* const each : unwanted) dt_work_destroy(each);
      if (rank.rank == 0) dt_named_destroy(named);
    }
    return DT_OK;
  }));
}

TEST_CASE("named: the time-out of the communicator begins after its grace") {
  const Settings settings = {{"collective.timeout_ms", "50"},
                             {"collective.first_timeout_ms", std::to_string(kWaitMs)}};
  const auto submit_late = [](const Rank& rank) -> dt_status {
    dt_named* named = nullptr;
    RANK_TRY(dt_named_create(rank.world, nullptr, &named));
    std::vector<float> values(10, 1);
    std::vector<float> others(10, 1);
    const dt_collective late = allreduce(values);
    dt_collective endless = allreduce(others);
    endless.timeout_ms = -1;
    dt_work* work = nullptr;
    if (rank.rank == 1) {  // waits for twice the time-out
      int32_t done = 0;
      RANK_TRY(dt_named_submit(named, "endless", &endless, &work));
      RANK_TRY(dt_work_wait(work, 100, &done));
    }
    RANK_TRY(dt_named_submit(named, "late", &late, nullptr));
    if (rank.rank == 0) RANK_TRY(dt_named_submit(named, "endless", &endless, &work));
    RANK_TRY(finish(work));
    dt_named_destroy(named);
    return DT_OK;
  };
  require_all_ok(run_ranks(2, submit_late, settings));
}

TEST_CASE("named: the time that an operation takes is not a wait for other ranks") {
  for (const bool told_before : {false, true}) {
    CAPTURE(told_before);
    constexpr int64_t kElements = 1 << 20;
    // Together they take about a second.
    constexpr size_t kTensors = dt::test::kThreadSanitizer ? 20 : 400;
    // They outlive the job, which may still write to them where a rank returns early.
    std::vector<std::vector<double>> sent(2, std::vector<double>(kElements, 1));
    std::vector<std::vector<double>> received(2, std::vector<double>(kElements));
    std::vector<std::vector<float>> short_values(2, std::vector<float>(10, 1));
    require_all_ok(run_ranks(2, [&](const Rank& rank) -> dt_status {
      dt_named* named = nullptr;
      dt_named_options options = quick();
      options.fuse_bytes = 0;
      RANK_TRY(dt_named_create(rank.world, &options, &named));
      const auto own = static_cast<size_t>(rank.rank);
      std::vector<float>& values = short_values[own];
      dt_collective short_one = allreduce(values);
      short_one.timeout_ms = 300;
      dt_collective long_one = short_one;
      long_one.timeout_ms = -1;
      long_one.dtype = DT_F64;
      long_one.count = kElements;
      long_one.send = sent[own].data();
      long_one.recv = received[own].data();
      Names texts;
      for (size_t i = 0; i < kTensors; ++i) texts.push_back("long" + std::to_string(i));
      std::vector<const char*> names;
      for (const std::string& text : texts) names.push_back(text.c_str());
      const std::vector<const dt_collective*> all(kTensors, &long_one);
      std::vector<dt_work*> works(kTensors);
      dt_work* work = nullptr;
      // Rank 1 submits "b" during the answer with the group; rank 0 just before it, or during it.
      const bool early = told_before && rank.rank == 0;
      if (told_before) {
        if (!early) {
          RANK_TRY(dt_named_submit_group(named, names.data(), all.data(), kTensors, works.data()));
        }
        RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
      }
      if (early) RANK_TRY(dt_named_submit(named, "b", &short_one, &work));
      if (early || !told_before) {
        RANK_TRY(dt_named_submit_group(named, names.data(), all.data(), kTensors, works.data()));
      }
      while (!early && statistics_of(named).operations == 0) {
        int32_t done = 0;
        RANK_TRY(dt_work_wait(works.back(), 1, &done));
      }
      if (!early) RANK_TRY(dt_named_submit(named, "b", &short_one, &work));
      RANK_TRY(finish(work));
      RANK_TRY(check(values[9] == 2, "the sum"));
      for (dt_work* each : works) RANK_TRY(finish(each));
      dt_named_destroy(named);
      return DT_OK;
    }));
  }
}

TEST_CASE("named: destroying the handle ends a call of another thread") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    dt_named* named = nullptr;
    RANK_TRY(dt_named_create(rank.world, nullptr, &named));
    if (rank.rank == 0) {
      dt_status joined = DT_OK;
      std::string text;
      std::thread joins([&] {
        int32_t last = -1;
        joined = dt_named_join(named, kWaitMs, &last);
        text = dt_last_error();
      });
      // It is refused once the other thread is in its call.
      std::vector<float> values(10, 1);
      const dt_collective collective = allreduce(values);
      dt_status submitted = DT_OK;
      for (int i = 0; submitted == DT_OK; ++i) {
        dt_work* work = nullptr;
        submitted = dt_named_submit(named, ("a" + std::to_string(i)).c_str(), &collective, &work);
        dt_work_destroy(work);
      }
      dt_named_destroy(named);
      joins.join();
      RANK_TRY(check(submitted == DT_ERR_INVALID_STATE, "the other thread joins"));
      RANK_TRY(check(joined == DT_ERR_ABORTED, dt_status_name(joined)));
      RANK_TRY(check(contains(text, "closed"), text.c_str()));
    }
    RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
    dt_named_destroy(named);
    return DT_OK;
  }));
}

TEST_CASE("named: times without end are long times") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    dt_named_options options = quick();
    options.stall_ms = INT64_MAX;
    options.cycle_us = INT64_MAX;
    dt_named* named = nullptr;
    RANK_TRY(dt_named_create(rank.world, &options, &named));
    std::vector<float> values(10, 1);
    const dt_collective collective = allreduce(values);
    if (rank.rank == 1) RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
    dt_work* work = nullptr;
    RANK_TRY(dt_named_submit(named, "a", &collective, &work));
    if (rank.rank == 0) {
      std::string report;
      while (report.empty()) RANK_TRY(report_of(named, &report));
      RANK_TRY(check(statistics_of(named).stalls == 0, "no stall"));
      RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
    }
    RANK_TRY(finish(work));
    dt_named_destroy(named);
    return DT_OK;
  }));
}

TEST_CASE("named: handles are closed in any order, with nothing and with works open") {
  require_all_ok(run_ranks(3, [](const Rank& rank) -> dt_status {
    for (int round = 0; round < 10; ++round) {
      dt_named* named = nullptr;
      dt_comm* own = nullptr;
      RANK_TRY(dt_comm_split(rank.world, 0, rank.rank, &own));
      RANK_TRY(dt_named_create(own, nullptr, &named));
      dt_comm_destroy(own);
      std::vector<float> values(1000, 1);
      const dt_collective collective = allreduce(values);
      dt_work* work = nullptr;
      if (round % 2 == 0) RANK_TRY(dt_named_submit(named, "a", &collective, &work));
      if (round % 4 == 0) RANK_TRY(finish(work));
      dt_named_destroy(named);
      if (round % 4 == 2) {
        const dt_status status = finish(work);  // carried out, or not any more
        RANK_TRY(check(status == DT_OK || status == DT_ERR_ABORTED, dt_status_name(status)));
      }
    }
    return DT_OK;
  }));
}

}  // namespace dt_test::named_test
