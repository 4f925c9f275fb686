// SPDX-License-Identifier: Apache-2.0
// One work for all operations of a group.
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <dt/dt.hpp>
#include <stdexcept>

#include "thread_ranks.h"

namespace dt_test::group_test {

namespace {

constexpr int64_t kWaitMs = 20'000;
constexpr int64_t kCounts[] = {0, 1, 100'000};

struct Layout {
  std::vector<int> hosts;  ///< by rank
  std::string progress;
};
const Layout kLayouts[] = {{{0}, "thread"},       {{0, 0}, "thread"},    {{0, 0}, "caller"},
                           {{0, 0, 0}, "thread"}, {{0, 0, 1}, "thread"}, {{0, 1, 0, 1}, "thread"}};

/// Runs `body` on each layout of at least `least` ranks.
template <class F>
void on_layouts(size_t least, F&& body) {
  for (const Layout& layout : kLayouts) {
    if (layout.hosts.size() < least) continue;
    CAPTURE(layout.hosts.size());
    CAPTURE(layout.hosts.back());
    CAPTURE(layout.progress);
    const auto host = [&](int rank) -> Settings {
      return {{"job.host_id", "host" + std::to_string(layout.hosts[static_cast<size_t>(rank)])}};
    };
    body(static_cast<int>(layout.hosts.size()), Settings{{"host.progress", layout.progress}}, host);
  }
}

dt_status wait_for(dt_work* work) {
  int32_t done = 0;
  const dt_status status = dt_work_wait(work, kWaitMs, &done);
  return status != DT_OK || done == 1 ? status : DT_ERR_INTERNAL;
}

dt_status wait_and_destroy(dt_work* work) {
  const dt_status status = wait_for(work);
  dt_work_destroy(work);
  return status;
}

bool is_done(dt_work* work) {
  int32_t done = 0;
  return dt_work_test(work, &done) == DT_OK && done == 1;
}

/// Returns once another rank has announced `key`.
dt_status hear(const Rank& rank, const char* key) {
  int64_t bytes = 0;
  return dt_store_get(rank.job, key, kWaitMs, nullptr, 0, &bytes);
}
dt_status announce(const Rank& rank, const char* key) {
  return dt_store_set(rank.job, key, "", 0, kWaitMs);
}

/// A group of one rank: with its neighbours in the ring, and of all.
struct Exchange {
  Exchange(const Rank& rank, int64_t elements, int64_t which)
      : count(elements),
        n(rank.world_size),
        me(rank.rank),
        round(which),
        mine(static_cast<size_t>(elements)),
        theirs(static_cast<size_t>(elements), -1),
        sum(static_cast<size_t>(elements)),
        all(static_cast<size_t>(elements * n), -1) {
    for (int64_t i = 0; i < count; ++i) {
      mine[static_cast<size_t>(i)] = sum[static_cast<size_t>(i)] = value(me, i);
    }
  }
  int64_t value(int rank, int64_t i) const { return 1'000'000 * (rank + 1) + 1000 * round + i; }

  /// Sends come first, so a rank that waited for each operation would never get to its receive.
  dt_status begin(const Rank& rank, dt_work** out_sum, dt_work** out_received) {
    const int next = (me + 1) % n;
    const int before = (me + n - 1) % n;
    RANK_TRY(dt_group_begin(rank.world));
    RANK_TRY(dt_allgather(rank.world, mine.data(), all.data(), count, DT_I64, nullptr, nullptr));
    if (n > 1) {
      RANK_TRY(dt_send(rank.world, mine.data(), count, DT_I64, next, nullptr, nullptr));
      RANK_TRY(dt_recv(rank.world, theirs.data(), count, DT_I64, before, nullptr, out_received));
    }
    return dt_allreduce(rank.world, sum.data(), sum.data(), count, DT_I64, DT_SUM, nullptr,
                        out_sum);
  }

  bool is_right() const {
    const int before = (me + n - 1) % n;
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(i);
      int64_t wanted = 0;
      for (int rank = 0; rank < n; ++rank) {
        wanted += value(rank, i);
        if (all[static_cast<size_t>(rank * count + i)] != value(rank, i)) return false;
      }
      if (sum[at] != wanted) return false;
      if (n > 1 && theirs[at] != value(before, i)) return false;
    }
    return true;
  }

  int64_t count;
  int n;
  int me;
  int64_t round;
  std::vector<int64_t> mine, theirs, sum, all;
};

}  // namespace

TEST_CASE("group work: it stands for collectives, sends and receives, with and without works") {
  on_layouts(1, [](int world_size, const Settings& settings, const auto& host) {
    require_all_ok(run_ranks(
        world_size,
        [](const Rank& rank) -> dt_status {
          int64_t round = 0;
          for (const int64_t count : kCounts) {
            for (const bool own_works : {false, true}) {
              for (const bool by_stream : {false, true}) {
                Exchange exchange(rank, count, ++round);
                dt_work* sum = nullptr;
                dt_work* received = nullptr;
                dt_work* whole = nullptr;
                RANK_TRY(exchange.begin(rank, own_works ? &sum : nullptr,
                                        own_works ? &received : nullptr));
                RANK_TRY(dt_group_end(rank.world, &whole));
                RANK_TRY(by_stream ? dt_work_wait_stream(whole, nullptr) : wait_for(whole));
                if (!is_done(whole) || !exchange.is_right()) return DT_ERR_INTERNAL;
                if (own_works && !is_done(sum)) return DT_ERR_INTERNAL;
                if (received != nullptr && !is_done(received)) return DT_ERR_INTERNAL;
                for (dt_work* const each : {sum, received, whole}) dt_work_destroy(each);
              }
            }
          }
          return DT_OK;
        },
        settings, host));
  });
}

TEST_CASE("group work: many are under way at the same time, and end in any order") {
  on_layouts(2, [](int world_size, const Settings& settings, const auto& host) {
    require_all_ok(run_ranks(
        world_size,
        [](const Rank& rank) -> dt_status {
          std::vector<Exchange> exchanges;
          std::vector<dt_work*> works(8);
          exchanges.reserve(works.size());
          for (size_t i = 0; i < works.size(); ++i) {
            auto& one = exchanges.emplace_back(rank, 3000, static_cast<int64_t>(i));
            RANK_TRY(one.begin(rank, nullptr, nullptr));
            RANK_TRY(dt_group_end(rank.world, &works[i]));
          }
          for (size_t left = works.size(); left > 0; --left) {
            int32_t first = -1;
            RANK_TRY(dt_work_wait_any(works.data(), static_cast<int32_t>(left), kWaitMs, &first));
            if (first < 0) return DT_ERR_TIMEOUT;
            const auto at = static_cast<size_t>(first);
            RANK_TRY(wait_and_destroy(works[at]));
            if (!exchanges[at].is_right()) return DT_ERR_INTERNAL;
            works.erase(works.begin() + first);
            exchanges.erase(exchanges.begin() + first);
          }
          return DT_OK;
        },
        settings, host));
  });
}

TEST_CASE("group work: it is not done before the last operation, which ends the wait for it") {
  on_layouts(2, [](int world_size, const Settings& settings, const auto& host) {
    require_all_ok(run_ranks(
        world_size,
        [&](const Rank& rank) -> dt_status {
          int64_t sum = 1;
          int64_t received = 0;
          const int64_t sent = 7;
          int32_t fd = -1;  // none if only callers advance works
          const bool has_fd = dt_work_fd(rank.world, &fd) == DT_OK;
          dt_work* own = nullptr;
          dt_work* whole = nullptr;
          RANK_TRY(dt_group_begin(rank.world));
          RANK_TRY(dt_allreduce(rank.world, &sum, &sum, 1, DT_I64, DT_SUM, nullptr, &own));
          if (rank.rank == 0)
            RANK_TRY(dt_recv(rank.world, &received, 1, DT_I64, 1, nullptr, nullptr));
          RANK_TRY(dt_group_end(rank.world, &whole));
          RANK_TRY(wait_and_destroy(own));
          if (sum != rank.world_size) return DT_ERR_INTERNAL;
          if (rank.rank == 1) {
            RANK_TRY(wait_for(whole));  // without a receive in its group
            RANK_TRY(hear(rank, "not done"));
            RANK_TRY(dt_send(rank.world, &sent, 1, DT_I64, 0, nullptr, nullptr));
          }
          if (rank.rank == 0) {
            int32_t done = -1;
            RANK_TRY(dt_work_wait(whole, 20, &done));
            if (done != 0 || is_done(whole)) return DT_ERR_INTERNAL;
            RANK_TRY(announce(rank, "not done"));
            while (has_fd && !is_done(whole)) {
              pollfd watched{fd, POLLIN, 0};
              if (poll(&watched, 1, static_cast<int>(kWaitMs)) != 1) return DT_ERR_TIMEOUT;
              uint64_t ended = 0;
              if (read(fd, &ended, sizeof ended) < 0) return DT_ERR_SYSTEM;
            }
          }
          RANK_TRY(wait_and_destroy(whole));
          return rank.rank != 0 || received == sent ? DT_OK : DT_ERR_INTERNAL;
        },
        settings, host));
  });
}

TEST_CASE("group work: of a group without operations it is done at once") {
  on_layouts(1, [](int world_size, const Settings& settings, const auto& host) {
    require_all_ok(run_ranks(
        world_size,
        [](const Rank& rank) -> dt_status {
          dt_work* whole = nullptr;
          RANK_TRY(dt_group_begin(rank.world));
          RANK_TRY(dt_group_end(rank.world, &whole));
          const bool right = is_done(whole) && dt_work_wait_stream(whole, nullptr) == DT_OK &&
                             std::string(dt_work_error(whole)).empty();
          dt_work_destroy(whole);
          return right ? DT_OK : DT_ERR_INTERNAL;
        },
        settings, host));
  });
}

TEST_CASE("group work: a disagreement about one operation is its error, also as data") {
  on_layouts(2, [](int world_size, const Settings& settings, const auto& host) {
    require_all_ok(run_ranks(
        world_size,
        [](const Rank& rank) -> dt_status {
          int64_t sum = 1;
          std::vector<float> data(10);
          dt_work* own = nullptr;
          dt_work* whole = nullptr;
          RANK_TRY(dt_group_begin(rank.world));
          RANK_TRY(dt_allreduce(rank.world, &sum, &sum, 1, DT_I64, DT_SUM, nullptr, &own));
          RANK_TRY(dt_allreduce(rank.world, data.data(), data.data(), rank.rank == 0 ? 9 : 10,
                                DT_F32, DT_SUM, nullptr, nullptr));
          RANK_TRY(dt_group_end(rank.world, &whole));
          const bool failed = wait_for(whole) == DT_ERR_MISMATCH;
          const std::string said = dt_last_error();
          dt_error_info info;
          dt_error_info_init(&info);
          RANK_TRY(dt_work_error_info(whole, &info));
          const bool same = info.status == DT_ERR_MISMATCH && said == dt_work_error(whole) &&
                            contains(said, "10") && contains(said, "9");
          dt_work* other = nullptr;
          RANK_TRY(dt_work_share(whole, &other));
          dt_work_destroy(whole);
          const bool shared = dt_work_wait_stream(other, nullptr) == DT_ERR_MISMATCH;
          dt_work_destroy(other);
          RANK_TRY(wait_and_destroy(own));
          return failed && same && shared && sum == rank.world_size ? DT_OK : DT_ERR_INTERNAL;
        },
        settings, host));
  });
}

TEST_CASE("group work: it times out with its operation, and no other group begins") {
  on_layouts(2, [](int world_size, const Settings& settings, const auto& host) {
    const auto outcomes = run_ranks(
        world_size,
        [](const Rank& rank) -> dt_status {
          if (rank.rank != 0) return hear(rank, "timed out");
          int64_t value = 0;
          dt_collective receive;
          dt_collective_init(&receive);
          receive.kind = DT_KIND_RECV;
          receive.dtype = DT_I64;
          receive.peer = 1;
          receive.count = 1;
          receive.recv = &value;
          receive.timeout_ms = 50;
          dt_work* whole = nullptr;
          RANK_TRY(dt_group_begin(rank.world));
          RANK_TRY(dt_collective_launch(rank.world, &receive, nullptr));
          RANK_TRY(dt_group_end(rank.world, &whole));
          const Outcome outcome = outcome_of(wait_for(whole));
          dt_work_destroy(whole);
          const Outcome next = outcome_of(dt_group_begin(rank.world));
          const bool none_is_open = dt_group_end(rank.world, nullptr) == DT_ERR_INVALID_STATE;
          RANK_TRY(announce(rank, "timed out"));
          const bool times_out =
              outcome.status == DT_ERR_TIMEOUT && contains(outcome.message, "rank 1");
          const bool stays_broken =
              next.status == DT_ERR_TIMEOUT && next.message == outcome.message && none_is_open;
          return times_out && stays_broken ? DT_OK : DT_ERR_INTERNAL;
        },
        settings, host);
    CHECK_MESSAGE(outcomes[0].status == DT_OK, outcomes[0].message);
  });
}

TEST_CASE("group work: dropped before its end, the operations go on") {
  on_layouts(2, [](int world_size, const Settings& settings, const auto& host) {
    require_all_ok(run_ranks(
        world_size,
        [](const Rank& rank) -> dt_status {
          Exchange exchange(rank, 5000, 1);
          dt_work* whole = nullptr;
          RANK_TRY(exchange.begin(rank, nullptr, nullptr));
          RANK_TRY(dt_group_end(rank.world, &whole));
          dt_work_destroy(whole);
          RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));  // behind the allreduce
          return exchange.is_right() ? DT_OK : DT_ERR_INTERNAL;
        },
        settings, host));
  });
}

TEST_CASE("group work: one that never completes goes with the communicator, in any order") {
  on_layouts(2, [](int world_size, const Settings& settings, const auto& host) {
    for (const bool comm_first : {false, true}) {
      require_all_ok(run_ranks(
          world_size,
          [&](const Rank& rank) -> dt_status {
            dt_comm* part = nullptr;
            RANK_TRY(dt_comm_split(rank.world, 0, 0, &part));
            int64_t value = 0;
            dt_work* whole = nullptr;
            RANK_TRY(dt_group_begin(part));
            RANK_TRY(dt_recv(part, &value, 1, DT_I64, (rank.rank + 1) % rank.world_size, nullptr,
                             nullptr));
            RANK_TRY(dt_group_end(part, &whole));
            if (is_done(whole)) return DT_ERR_INTERNAL;
            RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));  // all have called it
            if (comm_first) dt_comm_destroy(part);
            dt_work_destroy(whole);
            if (!comm_first) dt_comm_destroy(part);
            return dt_barrier(rank.world, nullptr, nullptr);
          },
          settings, host));
    }
  });
}

TEST_CASE("group work: a refused end gives none") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    dt_work* own = nullptr;
    RANK_TRY(dt_barrier(rank.world, nullptr, &own));
    dt_work* whole = own;
    if (dt_group_end(rank.world, &whole) != DT_ERR_INVALID_STATE) return DT_ERR_INTERNAL;
    if (!contains(dt_last_error(), "no group was begun")) return DT_ERR_INTERNAL;
    if (whole != own) return DT_ERR_INTERNAL;
    return wait_and_destroy(own);
  }));
}

TEST_CASE("group work: after dt_finalize a group ends with an error, also if all of it was done") {
  for (const bool gives_work : {false, true}) {
    for (const bool empty : {false, true}) {
      CAPTURE(gives_work);
      CAPTURE(empty);
      on_layouts(1, [&](int world_size, const Settings& settings, const auto& host) {
        require_all_ok(run_ranks(
            world_size,
            [&](const Rank& rank) -> dt_status {
              RANK_TRY(dt_group_begin(rank.world));
              float value = 1;
              if (!empty && world_size == 1) {  // else it need not be done yet
                RANK_TRY(
                    dt_allreduce(rank.world, &value, &value, 1, DT_F32, DT_SUM, nullptr, nullptr));
              }
              RANK_TRY(dt_finalize(rank.job, kWaitMs));
              dt_work* whole = nullptr;
              const dt_status late = dt_group_end(rank.world, gives_work ? &whole : nullptr);
              if (late != DT_ERR_INVALID_STATE || whole != nullptr) return DT_ERR_INTERNAL;
              if (!contains(dt_last_error(), "dt_finalize")) return DT_ERR_INTERNAL;
              const dt_status again = dt_group_end(rank.world, nullptr);
              if (again != DT_ERR_INVALID_STATE) return DT_ERR_INTERNAL;
              return contains(dt_last_error(), "no group was begun") ? DT_OK : DT_ERR_INTERNAL;
            },
            settings, host));
      });
    }
  }
}

TEST_CASE("group work: a thread may wait for it while others call and end groups") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    for (int64_t round = 0; round < 50; ++round) {
      Exchange exchange(rank, 100, round);
      dt_work* whole = nullptr;
      RANK_TRY(exchange.begin(rank, nullptr, nullptr));
      RANK_TRY(dt_group_end(rank.world, &whole));
      std::atomic<dt_status> ended{DT_ERR_INTERNAL};
      std::thread waiter([&] { ended = wait_for(whole); });
      const dt_status status = wait_for(whole);
      waiter.join();
      dt_work_destroy(whole);
      RANK_TRY(status);
      RANK_TRY(ended.load());
      if (!exchange.is_right()) return DT_ERR_INTERNAL;
    }
    return DT_OK;
  }));
}

TEST_CASE("group work: a reducer's hook may give it away") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    constexpr dt_param kParam = {64, "weight", DT_F32, 0};
    dt_comm* other = nullptr;
    RANK_TRY(dt_comm_split(rank.world, 0, 0, &other));
    const auto halves = [](void* data, const dt_bucket* bucket, int32_t stage,
                           dt_work** out_work) -> dt_status {
      if (stage == 1) return DT_OK;
      auto* const comm = static_cast<dt_comm*>(data);
      auto* const values = static_cast<float*>(bucket->data);
      const int64_t half = bucket->count / 2;
      RANK_TRY(dt_group_begin(comm));
      RANK_TRY(dt_allreduce(comm, values, values, half, DT_F32, DT_SUM, nullptr, nullptr));
      RANK_TRY(dt_allreduce(comm, values + half, values + half, bucket->count - half, DT_F32,
                            DT_MAX, nullptr, nullptr));
      return dt_group_end(comm, out_work);
    };
    dt_reducer* reducer = nullptr;
    RANK_TRY(dt_reducer_create(rank.world, &kParam, 1, nullptr, &reducer));
    RANK_TRY(dt_reducer_set_hook(reducer, halves, other));
    std::vector<float> gradient(64, static_cast<float>(rank.rank + 1));
    RANK_TRY(dt_reducer_ready(reducer, 0, gradient.data(), nullptr));
    RANK_TRY(dt_reducer_finish(reducer, nullptr));
    dt_reducer_destroy(reducer);
    dt_comm_destroy(other);
    return gradient[0] == 3 && gradient[31] == 3 && gradient[32] == 2 && gradient[63] == 2
               ? DT_OK
               : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("group work: in C++ a Work, and none after an exception inside the group") {
  require_all_ok(run_ranks(2, [](const Rank& rank) -> dt_status {
    dt_comm* same = nullptr;
    RANK_TRY(dt_comm_split(rank.world, 0, rank.rank, &same));
    dt::Comm comm(same);
    const int peer = 1 - rank.rank;
    std::vector<int64_t> mine = {rank.rank + 1, 2};
    std::vector<int64_t> theirs(2);
    dt::Work whole = comm.group_async([&] {
      comm.send(mine, peer);
      comm.recv(theirs, peer);
    });
    if (!whole.wait() || theirs[0] != peer + 1) return DT_ERR_INTERNAL;
    try {
      (void)comm.group_async([&] {
        comm.allreduce(mine);
        throw std::runtime_error("no more");
      });
      return DT_ERR_INTERNAL;
    } catch (const std::runtime_error&) {
      if (mine[0] != 3) return DT_ERR_INTERNAL;  // the group has ended
    }
    comm.group_begin();
    return comm.group_end_async().test() ? DT_OK : DT_ERR_INTERNAL;
  }));
}

TEST_CASE("C++: a text with a NUL and a negative count are refused") {
  const std::string longer("key\0x", 5);
  dt::Config config;
  CHECK_THROWS_WITH_AS(config.set(longer, "1"), "a text has a NUL after \"key\"; give one without",
                       dt::Error);
  CHECK_THROWS_WITH_AS(config.set("job.id", longer),
                       "a text has a NUL after \"key\"; give one without", dt::Error);
  require_all_ok(run_ranks(1, [](const Rank& rank) -> dt_status {
    dt_comm* same = nullptr;
    RANK_TRY(dt_comm_split(rank.world, 0, 0, &same));
    dt::Comm comm(same);
    try {
      (void)comm.alloc<double>(INT64_MIN / 4 + 1);  // times 8 it would be 8
      return DT_ERR_INTERNAL;
    } catch (const dt::Error& error) {
      return error.status() == DT_ERR_INVALID_ARGUMENT ? DT_OK : DT_ERR_INTERNAL;
    }
  }));
}

}  // namespace dt_test::group_test
