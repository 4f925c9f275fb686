// SPDX-License-Identifier: Apache-2.0
// The parts of nccl_overhead, over a GPU and an NCCL made of threads and dt's host communicator.
#include "ways.h"

#include <doctest/doctest.h>

#include "../multiprocess/thread_ranks.h"
#include "allocations.h"
#include "fake_cuda.h"
#include "fake_nccl.h"

using namespace dt::test;

namespace {

constexpr int64_t kCount = 1000;

dt_status worked(const dt::Status& status) {
  if (!status.ok()) MESSAGE(status.message());
  return status.ok() ? DT_OK : DT_ERR_INTERNAL;
}

/// What the benchmark does with one size.
dt::Status overhead_of(Session* session) {
  Sum sum;
  sum.send = static_cast<const float*>(session->memory(kCount * 4));
  sum.recv = static_cast<float*>(session->memory(kCount * 4));
  sum.count = kCount;
  DT_TRY_VALUE(const auto library, dt::nccl::Library::open(DT_FAKE_NCCL));
  DT_TRY_VALUE(const auto waits, RawNccl::create(session, library, "waits", true));
  DT_TRY_VALUE(const auto polls, RawNccl::create(session, library, "polls", false));
  std::vector<Way> ways = {dt_way(session, &sum), polls->way(&sum), waits->way(&sum)};
  DT_TRY(verify(session, &ways, sum));
  DT_TRY(measure(&ways, {2, 5}));
  for (const Way& way : ways) {
    CAPTURE(way.name);
    REQUIRE(way.called_us.size() == 5);
    REQUIRE(way.done_us.size() == 5);
    for (size_t i = 0; i < 5; ++i) {
      CHECK(way.called_us[i] >= 0);
      CHECK(way.ordered_us[i] >= way.called_us[i]);
      CHECK(way.done_us[i] >= way.ordered_us[i]);
    }
  }
  const std::string text = way_lines(sum, ways);
  CHECK(dt_test::contains(text, "      4000  dt "));
  CHECK(dt_test::contains(text, "      4000  polls "));
  CHECK(dt_test::contains(text, "      4000  waits "));
  Way quick;
  quick.called_us = {2.5, 2.5, 9};
  CHECK(goal_line(quick) ==
        "goal: a call takes 2.50 us and allocates 0 times; less than 3 and 0: reached\n");
  quick.allocations = 1;
  CHECK(dt_test::contains(goal_line(quick), "allocates 1 times; less than 3 and 0: missed"));
  // A wrong sum is seen.
  ways = {waits->way(&sum)};
  ways[0].finish = [session, &sum] {
    const float spoiled = -7;
    DT_TRY(session->finish());
    session->write(sum.recv + 3, &spoiled, 4);
    return dt::Status();
  };
  const dt::Status wrong = verify(session, &ways, sum);
  CHECK(dt_test::contains(wrong.message(), "waits: element 3 is -7, not "));
  DT_TRY(polls->end());
  return waits->end();
}

}  // namespace

TEST_CASE("dt and NCCL in both modes are verified and measured in turns") {
  FakeNccl* const fake = fake_nccl(DT_FAKE_NCCL);
  REQUIRE(fake != nullptr);
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    fake->reset();
    fake->set_enqueue(FakeCuda::enqueue);
    fake->set_polls(3);
    dt_test::require_all_ok(dt_test::run_ranks(ranks, [](const dt_test::Rank& rank) {
      Session session(rank.job, rank.world, std::make_shared<FakeCuda>(rank.rank));
      return worked(overhead_of(&session));
    }));
    CHECK(fake->misuses().empty());
    CHECK(fake->communicators() == 0);
    CHECK(fake->calls("ncclCommAbort") == 0);
  }
}

TEST_CASE("a call with a handle allocates nothing after a while") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    dt_test::require_all_ok(dt_test::run_ranks(ranks, [](const dt_test::Rank& rank) {
      std::vector<float> data(kCount, 1);
      int64_t most = 0;
      for (int i = 0; i < 120; ++i) {
        dt_work* work = nullptr;
        const int64_t before = allocations();
        RANK_TRY(dt_allreduce(rank.world, data.data(), data.data(), kCount, DT_F32, DT_MAX, nullptr,
                              &work));
        const int64_t called = allocations();
        RANK_TRY(dt_work_wait(work, -1, nullptr));
        const int64_t waited = allocations();
        dt_work_destroy(work);
        if (i >= 20) most = std::max(most, called - before + allocations() - waited);
      }
      CHECK(most == 0);
      return DT_OK;
    }));
  }
}

TEST_CASE("an error of NCCL is an error with its call, and the communicator is aborted") {
  FakeNccl* const fake = fake_nccl(DT_FAKE_NCCL);
  fake->reset();
  fake->set_enqueue(FakeCuda::enqueue);
  fake->order(
      {"ncclAllReduce", FakeNccl::Fault::kAnswer, dt::nccl::Answer::kInternalError, -1, 0, -1});
  dt_test::require_all_ok(dt_test::run_ranks(1, [](const dt_test::Rank& rank) {
    Session session(rank.job, rank.world, std::make_shared<FakeCuda>());
    const Sum sum{static_cast<const float*>(session.memory(8)),
                  static_cast<float*>(session.memory(8)), 2};
    const auto library = dt::nccl::Library::open(DT_FAKE_NCCL);
    auto raw = RawNccl::create(&session, library.value(), "raw", true);
    RANK_TRY(worked(raw.status()));
    std::vector<Way> ways = {raw.value()->way(&sum)};
    CHECK(dt_test::contains(measure(&ways, {0, 1}).message(), "ncclAllReduce"));
    return DT_OK;
  }));
  CHECK(fake->communicators() == 0);
  fake->reset();
}

TEST_CASE("allocations are those of the calling thread") {
  const int64_t before = allocations();
  const auto memory = std::make_unique<std::vector<int>>(100);
  CHECK(allocations() == before + 2);
  std::thread([] { CHECK(allocations() < 100); }).join();
}

TEST_CASE("figures of a series") {
  CHECK(figures({}).median == 0);
  const Figures one = figures({7});
  CHECK(one.median == 7);
  CHECK(one.p99 == 7);
  std::vector<double> values;
  for (int i = 200; i > 0; --i) values.push_back(i);
  const Figures many = figures(values);
  CHECK(many.median == 100);
  CHECK(many.p99 == 198);
  CHECK(many.min == 1);
  CHECK(many.max == 200);
}
