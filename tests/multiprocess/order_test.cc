// SPDX-License-Identifier: Apache-2.0
// Communicators of the same ranks, used in another order by each of them.
#include <algorithm>
#include <array>
#include <numeric>
#include <random>

#include "thread_ranks.h"

namespace dt_test::order_test {

namespace {

constexpr int64_t kWaitMs = 60'000;

/// Communicators of all ranks, with a buffer each that all of them sum.
class Sums {
 public:
  Sums(const Rank& rank, int64_t count) : rank_(rank), count_(count) {}
  ~Sums() {
    for (One& one : all_) {
      dt_work_destroy(one.work);
      dt_comm_destroy(one.comm);
    }
  }
  Sums(const Sums&) = delete;
  Sums& operator=(const Sums&) = delete;

  /// `shared`: every second buffer is memory that all ranks of a host see.
  dt_status make(size_t number, bool shared) {
    all_.resize(number);
    for (size_t i = 0; i < number; ++i) {
      One& one = all_[i];
      RANK_TRY(dt_comm_split(rank_.world, 0, 0, &one.comm));
      one.ordinary.resize(static_cast<size_t>(count_));
      one.data = one.ordinary.data();
      if (!shared || i % 2 == 1) continue;
      void* memory = nullptr;  // goes with the communicator
      RANK_TRY(dt_mem_alloc(one.comm, std::max<int64_t>(count_, 1) * 8, &memory));
      one.data = static_cast<int64_t*>(memory);
    }
    return DT_OK;
  }
  /// Returns at once.
  dt_status issue(size_t which, int64_t round) {
    One& one = all_[which];
    fill(one, which, round);
    return dt_allreduce(one.comm, one.data, one.data, count_, DT_I64, DT_SUM, nullptr, &one.work);
  }
  dt_status wait(size_t which, int64_t round) {
    One& one = all_[which];
    int32_t done = 0;
    RANK_TRY(dt_work_wait(one.work, kWaitMs, &done));
    if (done != 1) return DT_ERR_INTERNAL;
    dt_work_destroy(one.work);
    one.work = nullptr;
    return check(one, which, round);
  }
  dt_status block(size_t which, int64_t round) {
    One& one = all_[which];
    fill(one, which, round);
    RANK_TRY(dt_allreduce(one.comm, one.data, one.data, count_, DT_I64, DT_SUM, nullptr, nullptr));
    return check(one, which, round);
  }

 private:
  struct One {
    dt_comm* comm = nullptr;
    std::vector<int64_t> ordinary;
    int64_t* data = nullptr;
    dt_work* work = nullptr;
  };
  static int64_t part(int rank, size_t which, int64_t round, int64_t i) {
    return 1000 * (rank + 1) + 100 * static_cast<int64_t>(which) + 7 * round + i;
  }
  void fill(const One& one, size_t which, int64_t round) const {
    for (int64_t i = 0; i < count_; ++i) one.data[i] = part(rank_.rank, which, round, i);
  }
  dt_status check(const One& one, size_t which, int64_t round) const {
    for (int64_t i = 0; i < count_; ++i) {
      int64_t sum = 0;
      for (int r = 0; r < rank_.world_size; ++r) sum += part(r, which, round, i);
      if (one.data[i] != sum) return DT_ERR_INTERNAL;
    }
    return DT_OK;
  }

  const Rank& rank_;
  const int64_t count_;
  std::vector<One> all_;
};

struct Layout {
  std::vector<int> hosts;  ///< by rank
  std::string progress;
};
const Layout kLayouts[] = {{{0, 0}, "thread"},       {{0, 0}, "caller"}, {{0, 0, 0, 0}, "thread"},
                           {{0, 0, 0, 0}, "caller"}, {{0, 1}, "thread"}, {{0, 0, 1, 1}, "thread"}};

constexpr int64_t kCounts[] = {1, 3'000, 50'000};

/// With threads that advance works and, on one host, without. Local ranks have another order than
/// ranks.
void on_each_layout(const std::function<dt_status(const Rank&, int64_t count)>& body) {
  for (const Layout& layout : kLayouts) {
    const std::vector<int>& hosts = layout.hosts;
    CAPTURE(layout.progress);
    CAPTURE(hosts.size());
    CAPTURE(hosts.back());
    require_all_ok(run_ranks(
        static_cast<int>(hosts.size()),
        [&](const Rank& rank) -> dt_status {
          for (const int64_t count : kCounts) RANK_TRY(body(rank, count));
          return DT_OK;
        },
        {{"host.progress", layout.progress}},
        numbered(hosts, static_cast<unsigned>(hosts.size()))));
  }
}

}  // namespace

TEST_CASE("order: works of two communicators complete, issued in opposite order") {
  on_each_layout([](const Rank& rank, int64_t count) -> dt_status {
    Sums sums(rank, count);
    RANK_TRY(sums.make(2, true));
    const size_t first = static_cast<size_t>(rank.rank % 2);
    for (int64_t round = 0; round < 5; ++round) {
      RANK_TRY(sums.issue(first, round));
      RANK_TRY(sums.issue(1 - first, round));
      // In the order of the calls, or the other way around.
      const size_t begin = round % 2 == 0 ? first : 1 - first;
      RANK_TRY(sums.wait(begin, round));
      RANK_TRY(sums.wait(1 - begin, round));
    }
    return DT_OK;
  });
}

TEST_CASE("order: a blocking call completes while a work of the other communicator is under way") {
  on_each_layout([](const Rank& rank, int64_t count) -> dt_status {
    Sums sums(rank, count);
    RANK_TRY(sums.make(2, true));
    const size_t first = static_cast<size_t>(rank.rank % 2);
    for (int64_t round = 0; round < 5; ++round) {
      RANK_TRY(sums.issue(first, round));
      RANK_TRY(sums.block(1 - first, round));
      RANK_TRY(sums.wait(first, round));
    }
    return DT_OK;
  });
}

TEST_CASE("order: blocking calls of two threads complete, whichever comes first") {
  on_each_layout([](const Rank& rank, int64_t count) -> dt_status {
    Sums sums(rank, count);
    RANK_TRY(sums.make(2, true));
    std::array<dt_status, 2> statuses{};
    const auto drive = [&](size_t which) {
      for (int64_t round = 0; round < 5 && statuses[which] == DT_OK; ++round)
        statuses[which] = sums.block(which, round);
    };
    const size_t first = static_cast<size_t>(rank.rank % 2);
    std::thread beside([&] { drive(first); });
    drive(1 - first);
    beside.join();
    RANK_TRY(statuses[0]);
    return statuses[1];
  });
}

TEST_CASE("order: many communicators, issued and awaited in an order of chance on each rank") {
  constexpr size_t kNumber = 5;
  on_each_layout([](const Rank& rank, int64_t count) -> dt_status {
    Sums sums(rank, count);
    RANK_TRY(sums.make(kNumber, true));
    std::mt19937 random(static_cast<uint32_t>(rank.rank + 1));
    std::array<size_t, kNumber> order;
    std::iota(order.begin(), order.end(), size_t{0});
    for (int64_t round = 0; round < 10; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      for (const size_t which : order) RANK_TRY(sums.issue(which, round));
      std::shuffle(order.begin(), order.end(), random);
      for (const size_t which : order) RANK_TRY(sums.wait(which, round));
    }
    return DT_OK;
  });
}

TEST_CASE("order: blocking calls of one thread in opposite order end by naming who is missing") {
  const auto outcomes = run_ranks(2,
                                  [](const Rank& rank) -> dt_status {
                                    Sums sums(rank, 100);
                                    RANK_TRY(sums.make(2, false));
                                    RANK_TRY(dt_barrier(rank.world, nullptr, nullptr));
                                    const size_t first = static_cast<size_t>(rank.rank);
                                    RANK_TRY(sums.block(first, 0));
                                    return sums.block(1 - first, 0);
                                  },
                                  {{"collective.timeout_ms", "1000"}});
  for (size_t r = 0; r < outcomes.size(); ++r) {
    INFO(outcomes[r].message);
    CHECK(outcomes[r].status == DT_ERR_TIMEOUT);
    CHECK(contains(outcomes[r].message, "allreduce #1 on comm "));
    CHECK(contains(outcomes[r].message, "rank " + std::to_string(1 - r) + " ("));
    CHECK(contains(outcomes[r].message, "has not arrived"));
  }
}

}  // namespace dt_test::order_test
