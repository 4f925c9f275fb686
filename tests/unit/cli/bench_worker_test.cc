// SPDX-License-Identifier: Apache-2.0
// The buffers of dt bench's worker. Those of a GPU are tested on one made of threads, over a host
// communicator, to which the GPU's memory is as good as any.
#include <doctest/doctest.h>

#include "../../multiprocess/thread_ranks.h"
#include "cli/bench/worker/buffers.h"
#include "cli/bench/worker/gpus.h"
#include "fake_cuda.h"

using namespace dt::cli::bench;
using dt::Deadline;
using dt::test::FakeCuda;
using dt_test::Rank;

namespace {

constexpr int64_t kBytes = 4096;

bench_case case_of(const Rank& rank, const Buffers& buffers, int collective, bool in_place) {
  bench_case c{};
  c.collective = collective;
  c.dtype = BENCH_F32;
  c.op = BENCH_SUM;
  c.rank = rank.rank;
  c.ranks = rank.world_size;
  c.in_place = in_place ? 1 : 0;
  c.count = bench_count(collective, c.dtype, c.ranks, kBytes);
  buffers.place(&c);
  return c;
}

dt_status worked(const dt::Status& status) {
  if (!status.ok()) MESSAGE(status.message());
  return status.ok() ? DT_OK : DT_ERR_INTERNAL;
}

/// What the worker does with one case.
dt::Status round_of(Buffers* buffers, bench_case c) {
  std::vector<int64_t> counts(static_cast<size_t>(c.ranks));
  c.counts = counts.data();
  bench_set_counts(&c);
  DT_TRY(buffers->prepare(c));
  DT_TRY(buffers->barrier());
  DT_TRY(buffers->operate(c));
  DT_TRY_VALUE(int64_t wrong, buffers->wrong(c));
  DT_TRY(buffers->combine(&wrong, DT_I64, DT_SUM));
  CHECK(wrong == 0);
  DT_TRY(buffers->rewrite(c));
  DT_TRY_VALUE(const Times times, buffers->time(c, 3, kBytes));
  CHECK(times.us >= 0);
  CHECK((times.wall_us > 0) == (c.collective != BENCH_PINGPONG || c.rank == 0));
  CHECK(times.us <= times.wall_us);
  return {};
}

dt_status all_cases(const Rank& rank, Buffers* buffers) {
  for (int collective = 0; collective < BENCH_COLLECTIVE_COUNT; ++collective) {
    for (const bool in_place : {false, true}) {
      RANK_TRY(worked(round_of(buffers, case_of(rank, *buffers, collective, in_place))));
    }
  }
  // A case that is not what it was verified for is seen.
  bench_case spoiled = case_of(rank, *buffers, BENCH_ALLREDUCE, false);
  RANK_TRY(worked(buffers->prepare(spoiled)));
  const auto wrong = buffers->wrong(spoiled);  // nothing was reduced
  RANK_TRY(worked(wrong.status()));
  CHECK(wrong.value() == spoiled.count);
  return DT_OK;
}

}  // namespace

TEST_CASE("in host memory every collective verifies and is timed") {
  for (const bool shared : {true, false}) {
    CAPTURE(shared);
    dt_test::require_all_ok(dt_test::run_ranks(2, [shared](const Rank& rank) {
      auto buffers = make_host_buffers(rank.world, kBytes, shared);
      RANK_TRY(worked(buffers.status()));
      return all_cases(rank, buffers.value().get());
    }));
  }
}

TEST_CASE("in a GPU's memory every collective verifies and is timed, and nothing is left") {
  for (const bool shared : {true, false}) {
    CAPTURE(shared);
    dt_test::require_all_ok(dt_test::run_ranks(2, [shared](const Rank& rank) {
      const auto gpu = std::make_shared<FakeCuda>(rank.rank);
      {
        auto buffers =
            make_device_buffers(rank.world, gpu, kBytes, shared, Deadline::after_ms(20'000));
        RANK_TRY(worked(buffers.status()));
        CHECK(gpu->counters().live_allocations == (shared ? 2 : 4));
        RANK_TRY(all_cases(rank, buffers.value().get()));
      }
      CHECK(gpu->counters().live_allocations == 0);
      CHECK(gpu->counters().live_streams == 0);
      CHECK(gpu->counters().live_events == 0);
      return DT_OK;
    }));
  }
}

TEST_CASE("a GPU that does not get done ends in time with an error") {
  dt_test::require_all_ok(dt_test::run_ranks(1, [](const Rank& rank) {
    const auto gpu = std::make_shared<FakeCuda>();
    auto buffers = make_device_buffers(rank.world, gpu, kBytes, false, Deadline::after_ms(0));
    RANK_TRY(worked(buffers.status()));
    gpu->set_delay_us(50'000);
    const bench_case c = case_of(rank, *buffers.value(), BENCH_ALLREDUCE, false);
    const dt::Status status = buffers.value()->prepare(c);
    CHECK(status.code() == dt::Code::kTimeout);
    CHECK(dt_test::contains(status.message(), "before --timeout"));
    buffers = dt::Status(dt::Code::kTimeout, "given up");
    gpu->free_left_behind();
    return DT_OK;
  }));
}

TEST_CASE("a call that CUDA refuses is an error") {
  dt_test::require_all_ok(dt_test::run_ranks(1, [](const Rank& rank) {
    const auto gpu = std::make_shared<FakeCuda>();
    gpu->fail("cudaEventCreateWithFlags");
    const auto buffers =
        make_device_buffers(rank.world, gpu, kBytes, false, Deadline::after_ms(20'000));
    CHECK_FALSE(buffers.ok());
    return DT_OK;
  }));
}

TEST_CASE("ranks that hold one GPU are staged, unless NCCL counts them as hosts of their own") {
  CHECK(backend_of({"GPU-1", "GPU-2"}) == "nccl");
  CHECK(backend_of({"GPU-1", "GPU-2", "GPU-1"}) == "staged");
  CHECK(backend_of({"GPU-1a", "GPU-1b"}) == "nccl");
  CHECK(backend_of({"GPU-1"}) == "nccl (one rank: a copy)");
}
