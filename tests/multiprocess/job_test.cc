// SPDX-License-Identifier: Apache-2.0
// Jobs whose ranks are threads of this process, through the C ABI alone.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>

#include "thread_ranks.h"

namespace dt_test::job_test {

namespace {

constexpr int kWorlds[] = {1, 2, 3, 8};

/// Differs for every rank and index.
float pattern(int rank, int64_t i, int world_size) {
  return static_cast<float>(rank + world_size * (i % 1000));
}

}  // namespace

TEST_CASE("job: every rank knows its place and the world is one communicator") {
  for (const int world_size : kWorlds) {
    CAPTURE(world_size);
    std::atomic<int> seen{0};
    require_all_ok(run_ranks(world_size, [&](const Rank& rank) -> dt_status {
      dt_place place;
      dt_place_init(&place);
      RANK_TRY(dt_rank_info(rank.job, &place));
      int32_t size = 0;
      int32_t index = -1;
      RANK_TRY(dt_comm_size(rank.world, &size));
      RANK_TRY(dt_comm_rank(rank.world, &index));
      const bool right = place.rank == rank.rank && place.world_size == world_size &&
                         place.local_rank == rank.rank && place.local_size == world_size &&
                         place.node_rank == 0 && place.node_count == 1 && size == world_size &&
                         index == rank.rank && std::strcmp(place.job_id, "test") == 0 &&
                         std::strcmp(place.launcher, "config") == 0;
      if (right) ++seen;
      return DT_OK;
    }));
    CHECK(seen == world_size);
  }
}

TEST_CASE("job: collectives give the closed form on every rank") {
  for (const int world_size : kWorlds) {
    CAPTURE(world_size);
    std::atomic<int64_t> wrong{0};
    require_all_ok(run_ranks(world_size, [&](const Rank& rank) -> dt_status {
      const int n = world_size;
      for (const int64_t count :
           {int64_t{0}, int64_t{1}, int64_t{n - 1}, int64_t{4099}, int64_t{300007}}) {
        std::vector<float> send(static_cast<size_t>(count));
        std::vector<float> recv(send.size(), -1);
        for (int64_t i = 0; i < count; ++i) send[static_cast<size_t>(i)] = pattern(rank.rank, i, n);
        RANK_TRY(dt_allreduce(rank.world, send.data(), recv.data(), count, DT_F32, DT_SUM, nullptr,
                              nullptr));
        for (int64_t i = 0; i < count; ++i) {
          const float want = static_cast<float>(n * (n - 1) / 2) +
                             static_cast<float>(n) * static_cast<float>(n * (i % 1000));
          if (recv[static_cast<size_t>(i)] != want) ++wrong;
        }
        std::vector<float> all(static_cast<size_t>(count * n), -1);
        RANK_TRY(
            dt_allgather(rank.world, send.data(), all.data(), count, DT_F32, nullptr, nullptr));
        for (int r = 0; r < n; ++r) {
          for (int64_t i = 0; i < count; ++i) {
            if (all[static_cast<size_t>(r * count + i)] != pattern(r, i, n)) ++wrong;
          }
        }
        std::vector<float> part(static_cast<size_t>(count), -1);
        RANK_TRY(dt_reduce_scatter(rank.world, all.data(), part.data(), count, DT_F32, DT_MAX,
                                   nullptr, nullptr));
        for (int64_t i = 0; i < count; ++i) {
          if (part[static_cast<size_t>(i)] != pattern(rank.rank, i, n)) ++wrong;
        }
        const int root = n - 1;
        std::vector<float> root_sum(send.size(), -1);
        RANK_TRY(dt_reduce(rank.world, send.data(), rank.rank == root ? root_sum.data() : nullptr,
                           count, DT_F32, DT_SUM, root, nullptr, nullptr));
        if (rank.rank == root && root_sum != recv) ++wrong;
        std::vector<float> cast = send;
        RANK_TRY(dt_broadcast(rank.world, cast.data(), count, DT_F32, root, nullptr, nullptr));
        for (int64_t i = 0; i < count; ++i) {
          if (cast[static_cast<size_t>(i)] != pattern(root, i, n)) ++wrong;
        }
        RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
      }
      return DT_OK;
    }));
    CHECK(wrong == 0);
  }
}

TEST_CASE("job: blocks reach their places, alone and in a group with other operations") {
  // Rank r has (r + to) % 3 * unit elements for rank `to`, each of them 1000 r + 10 to.
  for (const int world_size : {1, 2, 3}) {
    CAPTURE(world_size);
    std::atomic<int64_t> wrong{0};
    require_all_ok(run_ranks(world_size, [&](const Rank& rank) -> dt_status {
      const int n = world_size;
      for (const int64_t unit : {int64_t{1}, int64_t{30'011}}) {
        std::vector<int64_t> counts;
        std::vector<int64_t> sizes;  // of each rank's block where all get the same
        std::vector<int32_t> send;
        std::vector<int32_t> wanted;
        std::vector<int32_t> wanted_of_all;
        for (int peer = 0; peer < n; ++peer) {
          counts.push_back((rank.rank + peer) % 3 * unit);
          sizes.push_back((peer + 1) * unit);
          const auto count = static_cast<size_t>(counts.back());
          send.insert(send.end(), count, 1000 * rank.rank + 10 * peer);
          wanted.insert(wanted.end(), count, 1000 * peer + 10 * rank.rank);
          wanted_of_all.insert(wanted_of_all.end(), static_cast<size_t>(sizes.back()), peer);
        }
        const int64_t own = sizes[static_cast<size_t>(rank.rank)];
        const std::vector<int32_t> mine(static_cast<size_t>(own), rank.rank);
        const std::vector<int32_t> same(static_cast<size_t>(n * unit), rank.rank);
        for (const bool grouped : {false, true}) {
          std::vector<int32_t> blocks(wanted.size(), -1);
          std::vector<int32_t> everybody(wanted_of_all.size(), -1);
          std::vector<int32_t> gathered(rank.rank == 0 ? everybody.size() : 0, -1);
          std::vector<int32_t> scattered(mine.size(), -1);
          std::vector<int32_t> equal(same.size(), -1);
          std::vector<int32_t> sum(4, rank.rank);
          if (grouped) RANK_TRY(dt_group_begin(rank.world));
          RANK_TRY(dt_alltoallv(rank.world, send.data(), counts.data(), nullptr, blocks.data(),
                                counts.data(), nullptr, DT_I32, nullptr, nullptr));
          RANK_TRY(dt_allreduce(rank.world, sum.data(), sum.data(), 4, DT_I32, DT_SUM, nullptr,
                                nullptr));
          RANK_TRY(dt_allgatherv(rank.world, mine.data(), everybody.data(), sizes.data(), nullptr,
                                 DT_I32, nullptr, nullptr));
          RANK_TRY(dt_gatherv(rank.world, mine.data(), own, gathered.data(), sizes.data(), nullptr,
                              DT_I32, 0, nullptr, nullptr));
          RANK_TRY(dt_scatterv(rank.world, wanted_of_all.data(), sizes.data(), nullptr,
                               scattered.data(), own, DT_I32, n - 1, nullptr, nullptr));
          RANK_TRY(
              dt_alltoall(rank.world, same.data(), equal.data(), unit, DT_I32, nullptr, nullptr));
          if (grouped) RANK_TRY(dt_group_end(rank.world, nullptr));
          if (blocks != wanted || everybody != wanted_of_all || scattered != mine) ++wrong;
          if (rank.rank == 0 && gathered != wanted_of_all) ++wrong;
          if (sum[3] != n * (n - 1) / 2) ++wrong;
          for (size_t i = 0; i < equal.size(); ++i) {
            if (equal[i] != static_cast<int32_t>(i / static_cast<size_t>(unit))) ++wrong;
          }
        }
      }
      return DT_OK;
    }));
    CHECK(wrong == 0);
  }
}

TEST_CASE("job: blocks lie where offsets say, in any order and with gaps that stay as they are") {
  // Of r + 1 elements each, rank 0's last, with one element before each block that is no one's.
  for (const int world_size : {1, 2, 3, 8}) {
    CAPTURE(world_size);
    std::atomic<int64_t> wrong{0};
    require_all_ok(run_ranks(world_size, [&](const Rank& rank) -> dt_status {
      const int n = world_size;
      std::vector<int64_t> counts;
      std::vector<int64_t> equal(static_cast<size_t>(n), rank.rank + 1);
      std::vector<int64_t> offsets(static_cast<size_t>(n));
      std::vector<int64_t> ends(static_cast<size_t>(n));  // of send: also in reverse
      for (int peer = 0; peer < n; ++peer) counts.push_back(peer + 1);
      int64_t end = 0;
      for (int peer = n - 1; peer >= 0; --peer) {
        offsets[static_cast<size_t>(peer)] = end + 1;
        end += 1 + counts[static_cast<size_t>(peer)];
        ends[static_cast<size_t>(peer)] = (n - 1 - peer) * (rank.rank + 2);
      }
      std::vector<int32_t> wanted(static_cast<size_t>(end), -1);
      std::vector<int32_t> send(static_cast<size_t>(n * (rank.rank + 2)), -2);
      for (int peer = 0; peer < n; ++peer) {
        const auto at = static_cast<size_t>(offsets[static_cast<size_t>(peer)]);
        std::fill_n(wanted.data() + at, peer + 1, 1000 * peer + 10 * rank.rank);
        std::fill_n(send.data() + ends[static_cast<size_t>(peer)], rank.rank + 1,
                    1000 * rank.rank + 10 * peer);
      }
      std::vector<int32_t> recv(wanted.size(), -1);
      RANK_TRY(dt_alltoallv(rank.world, send.data(), equal.data(), ends.data(), recv.data(),
                            counts.data(), offsets.data(), DT_I32, nullptr, nullptr));
      if (recv != wanted) ++wrong;
      for (int root = 0; root < n; ++root) {
        const bool at_root = rank.rank == root;
        std::vector<int32_t> whole(wanted.size(), -1);
        const int32_t* const mine = send.data() + ends[static_cast<size_t>(root)];
        RANK_TRY(dt_gatherv(rank.world, mine, rank.rank + 1, at_root ? whole.data() : nullptr,
                            counts.data(), offsets.data(), DT_I32, root, nullptr, nullptr));
        if (at_root && whole != wanted) ++wrong;
        std::vector<int32_t> part(static_cast<size_t>(rank.rank + 1), -1);
        RANK_TRY(dt_scatterv(rank.world, at_root ? whole.data() : nullptr, counts.data(),
                             offsets.data(), part.data(), rank.rank + 1, DT_I32, root, nullptr,
                             nullptr));
        if (part != std::vector<int32_t>(part.size(), 1000 * rank.rank + 10 * root)) ++wrong;
      }
      std::vector<int32_t> all(wanted.size(), -1);
      std::vector<int32_t> own(static_cast<size_t>(rank.rank + 1), rank.rank);
      RANK_TRY(dt_allgatherv(rank.world, own.data(), all.data(), counts.data(), offsets.data(),
                             DT_I32, nullptr, nullptr));
      for (size_t i = 0; i < all.size(); ++i) {
        if (all[i] != (wanted[i] < 0 ? -1 : wanted[i] / 1000)) ++wrong;
      }
      return DT_OK;
    }));
    CHECK(wrong == 0);
  }
}

TEST_CASE("job: blocks that overlap where they are received are refused, with both") {
  require_all_ok(run_ranks(3, [](const Rank& rank) -> dt_status {
    const auto refused = [](dt_status status, const char* text) {
      return status == DT_ERR_INVALID_ARGUMENT && std::strstr(dt_last_error(), text) != nullptr;
    };
    const std::vector<int64_t> counts = {2, 2, 2};
    const std::vector<int64_t> overlapping = {5, 0, 4};
    std::vector<int32_t> send(8, rank.rank);
    std::vector<int32_t> recv(8, -1);
    const int32_t* const from = send.data();
    bool right = refused(dt_alltoallv(rank.world, from, counts.data(), nullptr, recv.data(),
                                      counts.data(), overlapping.data(), DT_I32, nullptr, nullptr),
                         "dt_alltoallv: the blocks of ranks 2 and 0 overlap in recv: "
                         "recv_offsets[2] is 4 with 2 elements, recv_offsets[0] is 5 with 2; give "
                         "offsets that keep them apart");
    const char* const both =
        "overlap in recv: recv_offsets[2] is 4 with 2 elements, recv_offsets[0] is 5 with 2";
    right = right &&
            refused(dt_allgatherv(rank.world, from, recv.data(), counts.data(), overlapping.data(),
                                  DT_I32, nullptr, nullptr),
                    both) &&
            refused(dt_gatherv(rank.world, from, 2, recv.data(), counts.data(), overlapping.data(),
                               DT_I32, rank.rank, nullptr, nullptr),
                    both);
    const std::vector<int64_t> same = {0, 0, 0};
    right = right && refused(dt_allgatherv(rank.world, from, recv.data(), counts.data(),
                                           same.data(), DT_I32, nullptr, nullptr),
                             "the blocks of ranks 0 and 1 overlap");
    if (!right) return DT_ERR_INTERNAL;

    // An empty block overlaps nothing, blocks may touch, and what is sent may overlap.
    const std::vector<int64_t> some = {2, 0, 2};
    const std::vector<int64_t> inside = {2, 3, 0};
    const auto own = static_cast<size_t>(rank.rank);
    RANK_TRY(dt_allgatherv(rank.world, from, recv.data(), some.data(), inside.data(), DT_I32,
                           nullptr, nullptr));
    if (recv != std::vector<int32_t>{2, 2, 0, 0, -1, -1, -1, -1}) return DT_ERR_INTERNAL;
    RANK_TRY(dt_scatterv(rank.world, from, counts.data(), overlapping.data(), recv.data(),
                         counts[own], DT_I32, 1, nullptr, nullptr));
    return recv[1] == 1 ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("job: works complete in issue order, wake wait_any and count on the eventfd") {
  require_all_ok(run_ranks(3, [](const Rank& rank) -> dt_status {
    constexpr int kWorks = 8;
    std::vector<std::vector<int32_t>> buffers(kWorks, std::vector<int32_t>(1000, rank.rank + 1));
    dt_work* works[kWorks];
    int32_t fd = -1;
    RANK_TRY(dt_work_fd(rank.world, &fd));
    for (int i = 0; i < kWorks; ++i) {
      auto& buffer = buffers[static_cast<size_t>(i)];
      RANK_TRY(dt_allreduce(rank.world, buffer.data(), buffer.data(), 1000, DT_I32, DT_SUM, nullptr,
                            &works[i]));
    }
    int32_t index = -1;
    RANK_TRY(dt_work_wait_any(works, kWorks, 20000, &index));
    if (index != 0) return DT_ERR_INTERNAL;  // the first issued is the first done
    int32_t done = 0;
    RANK_TRY(dt_work_wait(works[kWorks - 1], 20000, &done));
    if (done != 1) return DT_ERR_INTERNAL;
    for (int i = 0; i < kWorks; ++i) {
      RANK_TRY(dt_work_test(works[i], &done));
      if (done != 1 || buffers[static_cast<size_t>(i)][999] != 6) return DT_ERR_INTERNAL;
      dt_work_destroy(works[i]);
    }
    return DT_OK;
  }));
}

TEST_CASE("job: split makes halves that reduce apart") {
  require_all_ok(run_ranks(5, [](const Rank& rank) -> dt_status {
    dt_comm* half = nullptr;
    const int32_t color = rank.rank == 4 ? -1 : rank.rank % 2;
    RANK_TRY(dt_comm_split(rank.world, color, -rank.rank, &half));
    if (color < 0) return half == nullptr ? DT_OK : DT_ERR_INTERNAL;
    int32_t index = -1;
    int32_t world_rank = -1;
    RANK_TRY(dt_comm_rank(half, &index));
    RANK_TRY(dt_comm_world_rank(half, 0, &world_rank));
    if (index != (rank.rank < 2 ? 1 : 0) || world_rank != 2 + color) return DT_ERR_INTERNAL;
    int64_t value = rank.rank;
    RANK_TRY(dt_allreduce(half, &value, &value, 1, DT_I64, DT_SUM, nullptr, nullptr));
    dt_comm_destroy(half);
    return value == 2 + 2 * color ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("job: two ranks exchange with works in any order, on memory from dt_mem_alloc") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    constexpr int64_t kCount = 100'000;
    void* memory = nullptr;
    RANK_TRY(dt_mem_alloc(rank.world, 2 * kCount * 8, &memory));
    auto* const out = static_cast<int64_t*>(memory);
    int64_t* const in = out + kCount;
    for (int64_t i = 0; i < kCount; ++i) out[i] = rank.rank + 2 * i;
    dt_work* works[2];
    const int32_t peer = 1 - rank.rank;
    RANK_TRY(dt_send(rank.world, out, kCount, DT_I64, peer, nullptr, &works[0]));
    RANK_TRY(dt_recv(rank.world, in, kCount, DT_I64, peer, nullptr, &works[1]));
    for (dt_work* work : works) {
      int32_t done = 0;
      RANK_TRY(dt_work_wait(work, 20000, &done));
      if (done != 1) return DT_ERR_INTERNAL;
      dt_work_destroy(work);
    }
    for (int64_t i = 0; i < kCount; ++i) {
      if (in[i] != peer + 2 * i) return DT_ERR_INTERNAL;
    }
    return dt_mem_free(rank.world, memory);
  }));
}

TEST_CASE("job: ranks that disagree all get MISMATCH with both sides") {
  const auto outcomes = run_ranks(3, [](const Rank& rank) -> dt_status {
    std::vector<float> data(2000);
    return dt_allreduce(rank.world, data.data(), data.data(), rank.rank == 2 ? 1001 : 1000, DT_F32,
                        DT_SUM, nullptr, nullptr);
  });
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.status == DT_ERR_MISMATCH);
    INFO(outcome.message);
    CHECK(contains(outcome.message, "allreduce"));
    CHECK(contains(outcome.message, "1000"));
    CHECK(contains(outcome.message, "1001"));
    CHECK(contains(outcome.message, "rank 2"));
  }
}

TEST_CASE("job: ranks with other thresholds are told by the join, which key and which ranks") {
  const auto body = [](const Rank&) -> dt_status { return DT_OK; };
  const auto outcomes = run_ranks(3, body, {}, [](int rank) {
    return rank == 2 ? Settings{{"host.exchange_ranks", "4"}, {"host.segments", "8"}} : Settings{};
  });
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.status != DT_OK);
    CHECK(contains(outcome.message,
                   "config differs between ranks: host.exchange_ranks is not set on ranks 0, 1, 4 "
                   "on rank 2"));
    CHECK(contains(outcome.message, "give every rank the same values"));
    CHECK_FALSE(contains(outcome.message, "host.segments"));  // as shipped
  }
  // Other ones than shipped, alike on all ranks, are taken.
  require_all_ok(run_ranks(2,
                           [](const Rank& rank) -> dt_status {
                             std::vector<float> data(50'000, static_cast<float>(rank.rank + 1));
                             RANK_TRY(dt_allreduce(rank.world, data.data(), data.data(), 50'000,
                                                   DT_F32, DT_SUM, nullptr, nullptr));
                             for (const float value : data) {
                               if (value != 3) return DT_ERR_INTERNAL;
                             }
                             return DT_OK;
                           },
                           {{"host.exchange_ranks", "1"},
                            {"host.ring_bytes", "65536"},
                            {"host.segment_bytes", "4096"}}));
}

TEST_CASE("job: an operation that one rank never enters times out and names it, everywhere") {
  const auto outcomes =
      run_ranks(3,
                [](const Rank& rank) -> dt_status {
                  if (rank.rank == 1) {
                    // waits on the store for what the others say when their operation has failed
                    return dt_store_barrier(rank.job, "after", 3, 20000);
                  }
                  int32_t value = 1;
                  const dt_status status =
                      dt_allreduce(rank.world, &value, &value, 1, DT_I32, DT_SUM, nullptr, nullptr);
                  const std::string message = dt_last_error();
                  RANK_TRY(dt_store_barrier(rank.job, "after", 3, 20000));
                  if (status != DT_ERR_TIMEOUT) return DT_ERR_INTERNAL;
                  return contains(message, "rank 1") ? DT_OK : DT_ERR_INTERNAL;
                },
                {{"collective.timeout_ms", "200"}});
  require_all_ok(outcomes);
}

TEST_CASE("job: dt_abort ends every rank's blocked call with the message and the culprit") {
  const auto outcomes = run_ranks(3, [](const Rank& rank) -> dt_status {
    if (rank.rank == 2) return dt_abort(rank.job, "loss is NaN");
    int32_t value = 1;
    return dt_allreduce(rank.world, &value, &value, 1, DT_I32, DT_SUM, nullptr, nullptr);
  });
  for (int r = 0; r < 2; ++r) {
    const Outcome& outcome = outcomes[static_cast<size_t>(r)];
    INFO(outcome.message);
    CHECK(outcome.status == DT_ERR_ABORTED);
    CHECK(contains(outcome.message, "rank 2"));
    CHECK(contains(outcome.message, "loss is NaN"));
  }
}

TEST_CASE("job: ranks that abort at the same time all succeed in it") {
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round);
    std::array<dt_status, 3> aborted = {};
    const auto outcomes = run_ranks(3, [&](const Rank& rank) -> dt_status {
      (void)dt_barrier(rank.world, nullptr, nullptr);  // another rank may be faster than its end
      aborted[static_cast<size_t>(rank.rank)] = dt_abort(rank.job, "all of us");
      return dt_barrier(rank.world, nullptr, nullptr);
    });
    for (size_t r = 0; r < aborted.size(); ++r) {
      CAPTURE(r);
      CHECK(aborted[r] == DT_OK);
      CHECK(outcomes[r].status == DT_ERR_ABORTED);
    }
  }
}

TEST_CASE(
    "job: after a disagreement the ranks go on in the communicator that dt_comm_shrink makes") {
  require_all_ok(run_ranks(3, [](const Rank& rank) -> dt_status {
    int32_t value = 1;
    int64_t wide = 1;
    const bool odd = rank.rank == 1;
    const dt_status status =
        odd ? dt_allreduce(rank.world, &wide, &wide, 1, DT_I64, DT_SUM, nullptr, nullptr)
            : dt_allreduce(rank.world, &value, &value, 1, DT_I32, DT_SUM, nullptr, nullptr);
    const std::string message = dt_last_error();
    if (status != DT_ERR_MISMATCH) return DT_ERR_INTERNAL;
    if (!contains(message, "in the same order, then go on with dt_comm_shrink")) {
      return DT_ERR_INTERNAL;
    }
    dt_comm* next = nullptr;
    RANK_TRY(dt_comm_shrink(rank.world, &next));
    value = rank.rank;
    const dt_status again = dt_allreduce(next, &value, &value, 1, DT_I32, DT_SUM, nullptr, nullptr);
    dt_comm_destroy(next);
    RANK_TRY(again);
    return value == 3 ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("job: log.level = debug says where a rank is and what it works with") {
  std::mutex mutex;
  std::vector<std::string> lines;
  struct Sink {
    std::mutex* mutex;
    std::vector<std::string>* lines;
    static void take(void* self, dt_log_level, const char* message) {
      auto* sink = static_cast<Sink*>(self);
      const std::scoped_lock lock(*sink->mutex);
      sink->lines->emplace_back(message);
    }
  } sink{&mutex, &lines};
  const auto start = [&](int rank, int size, const ServedStore& store, const char* host) {
    dt_config* const config =
        rank_config(rank, size, store.port(), {{"log.level", "debug"}, {"job.host_id", host}});
    CHECK(dt_config_set_log_sink(config, Sink::take, &sink) == DT_OK);
    dt_job* job = nullptr;
    CHECK(dt_init(config, &job) == DT_OK);
    dt_config_destroy(config);
    dt_finalize(job, 20000);
    dt_job_destroy(job);
  };
  const auto said = [&](const std::vector<std::string>& parts) {
    const std::scoped_lock lock(mutex);
    return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
      return std::all_of(parts.begin(), parts.end(),
                         [&](const std::string& part) { return contains(line, part); });
    });
  };
  const std::string version = std::string("dt ") + dt_version();
  start(0, 1, ServedStore(1), "one");
  CHECK(said({version + ": rank 0 of 1 (", "local rank 0 of 1, node 0 of 1; backend self"}));
  for (const bool apart : {false, true}) {
    lines.clear();
    const ServedStore store(2);
    std::thread other(start, 1, 2, std::cref(store), apart ? "two" : "one");
    start(0, 2, store, "one");
    other.join();
    const std::string place = apart ? "local rank 0 of 1, node 1 of 2; backend multihost"
                                    : "local rank 1 of 2, node 0 of 1; backend host";
    CAPTURE(place);
    CHECK(said({version + ": rank 1 of 2 (", place, "; store 127.0.0.1:", "; started by "}));
  }
}

TEST_CASE("warnings of the settings come also where the call then fails") {
  char path[] = "/tmp/dt-test-XXXXXX";
  const int fd = mkstemp(path);
  REQUIRE(fd >= 0);
  REQUIRE(dprintf(fd, "schema = 1000\n[run]\nfuture = 1\n") > 0);
  close(fd);
  int warnings = 0;
  const auto count = [](void* counter, dt_log_level level, const char* message) {
    if (level == DT_LOG_WARNING && contains(message, "unknown key \"run.future\"")) {
      ++*static_cast<int*>(counter);
    }
  };
  dt_config* config = nullptr;
  REQUIRE_OK(dt_config_create(path, &config));
  REQUIRE_OK(dt_config_set_log_sink(config, count, &warnings));
  REQUIRE_OK(dt_config_set(config, "job.rank", "0"));  // and no job.world_size
  dt_job* job = nullptr;
  CHECK(dt_init(config, &job) == DT_ERR_CONFIG);
  CHECK(warnings == 1);
  dt_ps_server* ps_server = nullptr;
  CHECK(dt_ps_serve(config, nullptr, &ps_server) != DT_OK);
  CHECK(warnings == 2);
  dt_ps* ps = nullptr;
  CHECK(dt_ps_connect(config, nullptr, &ps) != DT_OK);
  CHECK(warnings == 3);
  dt_store_server* server = nullptr;
  REQUIRE_OK(dt_config_set(config, "job.world_size", "2000000000"));
  CHECK(dt_store_serve(config, &server) == DT_ERR_CONFIG);
  CHECK(warnings == 4);
  REQUIRE_OK(dt_config_set(config, "heartbeat.interval_ms", "10000"));  // as long as the time-out
  CHECK(dt_init(config, &job) == DT_ERR_CONFIG);
  CHECK(warnings == 5);
  dt_config_destroy(config);
  CHECK(unlink(path) == 0);
}

TEST_CASE("job: a rank that goes without finalize is a death with its name") {
  for (const char* host : {"one", "two"}) {
    CAPTURE(host);
    ServedStore store(2);
    Outcome survivor;
    dt_error_info info;
    dt_error_info_init(&info);
    std::thread leaving([&] {
      dt_config* const config = rank_config(1, 2, store.port(), {{"job.host_id", host}});
      dt_job* job = nullptr;
      dt_comm* world = nullptr;
      dt_init(config, &job);
      dt_config_destroy(config);
      dt_comm_world(job, &world);
      dt_barrier(world, nullptr, nullptr);  // rank 0 is through dt_init, too
      dt_comm_destroy(world);
      dt_job_destroy(job);
    });
    std::thread staying([&] {
      dt_config* const config = rank_config(0, 2, store.port(), {{"job.host_id", "one"}});
      dt_job* job = nullptr;
      dt_comm* world = nullptr;
      dt_init(config, &job);
      dt_config_destroy(config);
      dt_comm_world(job, &world);
      dt_barrier(world, nullptr, nullptr);
      survivor = outcome_of(dt_barrier(world, nullptr, nullptr));
      dt_last_error_info(&info);
      dt_comm_destroy(world);
      dt_finalize(job, 20000);
      dt_job_destroy(job);
    });
    leaving.join();
    staying.join();
    INFO(survivor.message);
    CHECK(survivor.status == DT_ERR_PEER_LOST);
    CHECK(contains(survivor.message, "rank 1"));
    CHECK(info.status == DT_ERR_PEER_LOST);
    CHECK(info.rank == 1);
    CHECK(info.pid > 0);
    CHECK(info.host[0] != '\0');
    // The last one that it entered; of a rank of another host, that it entered by its last sign of
    // life.
    const bool heard = contains(survivor.message, " barrier #1");
    CHECK((heard || host != std::string("one")));
    CHECK(std::string(info.operation) == (heard ? "barrier" : ""));
    CHECK(info.sequence == (heard ? 1 : -1));
    if (!heard) CHECK(contains(survivor.message, "entered no operation"));
  }
}

TEST_CASE("job: missing ranks are named at the deadline") {
  ServedStore store(3);
  dt_config* const config = rank_config(1, 3, store.port(), {{"rendezvous.timeout_ms", "200"}});
  dt_job* job = nullptr;
  CHECK(dt_init(config, &job) == DT_ERR_TIMEOUT);
  const std::string message = dt_last_error();
  INFO(message);
  CHECK(contains(message, "1 of 3 ranks"));
  CHECK(contains(message, "0, 2"));
  CHECK(job == nullptr);
  dt_config_destroy(config);
}

TEST_CASE("job: an address that is not rank 0's is an error with its host and what it has") {
  char host[256] = "";
  REQUIRE(gethostname(host, sizeof host - 1) == 0);
  const std::string rank0 = "rank 0 (host " + std::string(host) + ") cannot serve the store on ";
  const std::string foreign =
      "store: cannot listen on 203.0.113.9:4711: Cannot assign requested address; no interface of "
      "this host "
      "has that address; it has ";
  const struct {
    Settings settings;
    std::string end;
  } rows[] = {
      {{{"job.master_addr", "203.0.113.9"}},  // TEST-NET-3: nobody's
       "; MASTER_ADDR and MASTER_PORT must name an address of rank 0's host and a free port there, "
       "the same on all ranks"},
      {{{"store.bind", "203.0.113.9"}}, "; store.bind must be an address of rank 0's host"},
  };
  for (const auto& row : rows) {
    Settings settings = row.settings;
    settings.emplace_back("job.store_served", "false");
    settings.emplace_back("security.mode", "none");
    dt_config* const config = rank_config(0, 2, 4711, settings);
    dt_job* job = nullptr;
    CHECK(dt_init(config, &job) == DT_ERR_SYSTEM);
    const std::string message = dt_last_error();
    INFO(message);
    CHECK(contains(message, rank0 + "203.0.113.9 port 4711: " + foreign));
    CHECK(contains(message, "127.0.0.1/8"));
    CHECK(contains(message, row.end));
    dt_config_destroy(config);
  }
}

TEST_CASE("job: the end of a job of one rank ends its calls of PyTorch's store") {
  dt_config* serving = nullptr;
  REQUIRE_OK(dt_config_create(nullptr, &serving));
  REQUIRE_OK(dt_config_set(serving, "store.torch_compat", "true"));
  dt_store_server* server = nullptr;
  REQUIRE_OK(dt_store_serve(serving, &server));
  dt_config_destroy(serving);
  int32_t port = 0;
  REQUIRE_OK(dt_store_server_port(server, &port));
  for (const bool aborts : {true, false}) {
    CAPTURE(aborts);
    dt_config* const config =
        rank_config(0, 1, port, {{"store.torch_address", "127.0.0.1:" + std::to_string(port)}});
    dt_job* job = nullptr;
    REQUIRE_OK(dt_init(config, &job));
    dt_config_destroy(config);
    Outcome waited;
    std::thread thread([&] {
      const char* const keys[] = {"torch/never"};
      waited = outcome_of(dt_store_wait(job, keys, 1, 20000));
    });
    const dt_status ended = aborts ? dt_abort(job, "enough") : dt_finalize(job, 20000);
    CHECK(ended == DT_OK);
    thread.join();
    INFO(waited.message);
    CHECK(waited.status == (aborts ? DT_ERR_ABORTED : DT_ERR_INVALID_STATE));
    dt_job_destroy(job);
  }
  dt_store_server_destroy(server);
}

TEST_CASE("job: config that must be equal and is not fails on all ranks with both values") {
  ServedStore store(2);
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      dt_config* const config =
          rank_config(r, 2, store.port(), {{"reducer.bucket_cap_bytes", r == 0 ? "1000" : "2000"}});
      dt_job* job = nullptr;
      outcomes[static_cast<size_t>(r)] = outcome_of(dt_init(config, &job));
      dt_config_destroy(config);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Outcome& outcome : outcomes) {
    INFO(outcome.message);
    CHECK(outcome.status == DT_ERR_CONFIG);
    CHECK(contains(outcome.message, "reducer.bucket_cap_bytes"));
    CHECK(contains(outcome.message, "1000"));
    CHECK(contains(outcome.message, "2000"));
  }
}

TEST_CASE("job: several jobs live in one process at the same time") {
  std::thread other([] {
    for (int i = 0; i < 3; ++i) {
      require_all_ok(
          run_ranks(2, [](const Rank& rank) { return dt_barrier(rank.world, nullptr, nullptr); }));
    }
  });
  for (int i = 0; i < 3; ++i) {
    require_all_ok(
        run_ranks(3, [](const Rank& rank) { return dt_barrier(rank.world, nullptr, nullptr); }));
  }
  other.join();
}

TEST_CASE("job: handles may be destroyed in any order, also the job first") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    dt_comm* comm = nullptr;
    RANK_TRY(dt_comm_world(rank.job, &comm));
    std::vector<float> data(1 << 20, 1.0f);
    dt_work* work = nullptr;
    RANK_TRY(dt_allreduce(comm, data.data(), data.data(), 1 << 20, DT_F32, DT_SUM, nullptr, &work));
    dt_comm_destroy(comm);
    int32_t done = 0;
    RANK_TRY(dt_work_wait(work, 20000, &done));
    dt_work_destroy(work);
    if (dt_barrier(comm, nullptr, nullptr) != DT_ERR_INVALID_ARGUMENT) return DT_ERR_INTERNAL;
    return data[0] == 2.0f && data.back() == 2.0f ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("job: after finalize every call says that the job has ended") {
  const auto body = [](const Rank& rank) -> dt_status {
    RANK_TRY(dt_finalize(rank.job, 20000));
    RANK_TRY(dt_finalize(rank.job, 20000));
    if (dt_abort(rank.job, "too late") != DT_ERR_INVALID_STATE) return DT_ERR_INTERNAL;
    if (dt_barrier(rank.world, nullptr, nullptr) != DT_ERR_INVALID_STATE) return DT_ERR_INTERNAL;
    if (dt_store_set(rank.job, "k", "v", 1, 100) != DT_ERR_INVALID_STATE) return DT_ERR_INTERNAL;
    if (dt_store_barrier(rank.job, "b", 1, 100) != DT_ERR_INVALID_STATE) return DT_ERR_INTERNAL;
    dt_comm* comm = nullptr;
    if (dt_comm_world(rank.job, &comm) != DT_ERR_INVALID_STATE) return DT_ERR_INTERNAL;
    return dt_finalize(rank.job, 20000);
  };
  for (const int world_size : {1, 2}) {
    CAPTURE(world_size);
    require_all_ok(run_ranks(world_size, body));
  }
}

TEST_CASE("job: the store carries values between ranks") {
  for (const int world_size : {1, 3}) {
    CAPTURE(world_size);
    require_all_ok(run_ranks(world_size, [&](const Rank& rank) -> dt_status {
      int64_t sum = 0;
      RANK_TRY(dt_store_add(rank.job, "count", rank.rank + 1, 20000, &sum));
      RANK_TRY(dt_store_barrier(rank.job, "added", 0, 20000));
      char text[8] = {};
      int64_t bytes = 0;
      RANK_TRY(dt_store_get(rank.job, "count", 20000, text, sizeof text, &bytes));
      if (std::string(text, static_cast<size_t>(bytes)) !=
          std::to_string(world_size * (world_size + 1) / 2))
        return DT_ERR_INTERNAL;
      const std::string key = "rank/" + std::to_string(rank.rank);
      RANK_TRY(dt_store_set(rank.job, key.c_str(), &rank.rank, sizeof rank.rank, 20000));
      RANK_TRY(dt_store_barrier(rank.job, "set", 0, 20000));
      const char* keys[] = {"rank/0", "rank/none"};
      int32_t value = -1;
      int64_t sizes[2];
      RANK_TRY(dt_store_multi_get(rank.job, keys, 2, 20000, &value, sizeof value, sizes, &bytes));
      if (value != 0 || sizes[0] != 4 || sizes[1] != -1 || bytes != 4) return DT_ERR_INTERNAL;
      RANK_TRY(dt_store_list(rank.job, "rank/", 20000, nullptr, 0, &bytes));
      if (bytes != 7 * world_size) return DT_ERR_INTERNAL;
      if (dt_store_get(rank.job, "never", 50, text, sizeof text, &bytes) != DT_ERR_TIMEOUT)
        return DT_ERR_INTERNAL;
      int32_t swapped = -1;
      RANK_TRY(dt_store_compare_set(rank.job, "once", nullptr, 0, "x", 1, 20000, &swapped));
      int64_t winners = 0;
      RANK_TRY(dt_store_add(rank.job, "winners", swapped, 20000, &winners));
      RANK_TRY(dt_store_barrier(rank.job, "swapped", 0, 20000));
      RANK_TRY(dt_store_add(rank.job, "winners", 0, 20000, &winners));
      return winners == 1 ? DT_OK : DT_ERR_INTERNAL;
    }));
  }
}

}  // namespace dt_test::job_test
