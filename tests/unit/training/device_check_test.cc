// SPDX-License-Identifier: Apache-2.0
// Ranks that ask different things of NCCL, and how soon that is found. The GPU and NCCL are made of
// threads.
#include <doctest/doctest.h>

#include "device_ranks.h"

using namespace dt;
using namespace dt::test;
using backend::Collective;
using backend::Kind;

namespace {

GpuWorld checked(const char* check, int size, int64_t timeout_ms = 20'000) {
  GpuWorld world;
  world.size = size;
  world.timeout_ms = timeout_ms;
  world.check = check;
  world.heartbeat_ms = 50;
  world.ranks_may_disagree = std::string(check) != "strict";
  return world;
}

Collective allreduce(GpuRank& rank, int64_t count) {
  const auto data = std::make_shared<std::vector<float>>(static_cast<size_t>(count) * 2, 1.0f);
  rank.memory->push_back(data);
  Collective collective;
  collective.kind = Kind::kAllreduce;
  collective.dtype = Dtype::kF32;
  collective.send = data->data();
  collective.recv = data->data() + count;
  collective.count = count;
  return collective;
}

struct Difference {
  const char* text;  ///< of the odd rank's call
  void (*make)(Collective*);
};

const Difference kDifferences[] = {
    {"allreduce f32 sum x 99", [](Collective* c) { c->count = 99; }},
    {"allreduce i32 sum x 100", [](Collective* c) { c->dtype = Dtype::kI32; }},
    {"allreduce f32 max x 100", [](Collective* c) { c->op = ReduceOp::kMax; }},
    {"broadcast f32 x 100 root 1",
     [](Collective* c) {
       c->kind = Kind::kBroadcast;
       c->root = 1;
     }},
};

/// The second operation of rank 1 is another one; what the ranks then hear.
Status disagree(GpuRank& rank, const Difference& difference) {
  Collective first = allreduce(rank, 10);
  rank.expect_ok(rank.comm->run(first), "the first operation");
  Collective second = allreduce(rank, 100);
  if (rank.rank == 1) difference.make(&second);
  const auto work = rank.comm->new_work();
  rank.expect_ok(rank.comm->submit(second, work), "submit");
  (void)rank.comm->backend().wait(*work, Wait{Deadline::after_ms(20'000), nullptr});
  rank.expect(work->done(), "the operation ends");
  rank.meet();
  return work->status();
}

void expect_both_sides(const GpuRank& rank, const Status& status, const Difference& difference) {
  rank.expect(status.code() == Code::kMismatch, "MISMATCH: " + status.message());
  if (status.ok()) return;
  rank.expect(contains(status, "ranks disagree: rank 0 ("), status.message());
  rank.expect(contains(status, " and 1 more: allreduce f32 sum x 100"), status.message());
  rank.expect(contains(status, "rank 1 ("), status.message());
  rank.expect(contains(status, difference.text), status.message());
  rank.expect(contains(status, "#2 on comm \"world\""), status.message());
  rank.expect(contains(status, "make all ranks issue the same operations in the same order"),
              status.message());
  rank.expect(status.info().rank == 1, "rank 1 differs from most");
  rank.expect(status.info().pid == getpid(), "its pid");
  rank.expect(!status.info().host.empty(), "its host");
  Collective later = Collective();
  rank.expect(rank.comm->run(later).message() == status.message(), "later calls");
}

}  // namespace

TEST_CASE("watchdog.check = strict: NCCL never sees operations that differ") {
  for (const Difference& difference : kDifferences) {
    CAPTURE(difference.text);
    run_on_gpus(checked("strict", 3), [&](GpuRank& rank) {
      expect_both_sides(rank, disagree(rank, difference), difference);
    });
  }
}

TEST_CASE("watchdog.check = lazy: operations that differ are told on all ranks") {
  for (const Difference& difference : kDifferences) {
    CAPTURE(difference.text);
    run_on_gpus(checked("lazy", 3), [&](GpuRank& rank) {
      expect_both_sides(rank, disagree(rank, difference), difference);
    });
  }
}

TEST_CASE("watchdog.check = off: they are not told, and end with their time") {
  run_on_gpus(checked("off", 3, 1'000), [&](GpuRank& rank) {
    const Status status = disagree(rank, kDifferences[0]);
    rank.expect(!status.ok() && status.code() != Code::kMismatch, "no MISMATCH");
  });
}

TEST_CASE("watchdog.check: ranks that do the same are left alone, on all communicators") {
  for (const char* check : {"off", "lazy", "strict"}) {
    CAPTURE(check);
    GpuWorld world = checked(check, 4);
    world.ranks_may_disagree = false;
    run_on_gpus(world, [](GpuRank& rank) {
      auto part = rank.comm->split(rank.rank % 2, 0);
      rank.expect_ok(part.status(), "split");
      for (int i = 0; i < 150; ++i) {
        Collective one = allreduce(rank, 10 + i);
        rank.expect_ok(rank.comm->run(one), "world");
        Collective other = allreduce(rank, rank.rank % 2 == 0 ? 5 : 500);
        rank.expect_ok(part.value()->run(other), "part");
      }
      // Ranks differ in what they send.
      Collective transfer = allreduce(rank, 10 + rank.rank / 2);
      transfer.kind = rank.rank % 2 == 0 ? Kind::kSend : Kind::kRecv;
      transfer.root = rank.rank ^ 1;
      rank.expect_ok(rank.comm->run(transfer), "transfer");
      rank.expect_ok(rank.comm->begin_group(), "group");
      Collective first = allreduce(rank, 7);
      Collective second = allreduce(rank, 8);
      rank.expect_ok(rank.comm->run_or_group(first), "first of the group");
      rank.expect_ok(rank.comm->run_or_group(second), "second of the group");
      rank.expect_ok(rank.comm->end_group(), "end of the group");
      rank.expect(rank.comm->backend().drain(Wait{Deadline::after_ms(20'000), nullptr}), "drained");
      rank.meet();
    });
  }
}

TEST_CASE("watchdog.check = strict: who does not come is named when the time is up") {
  run_on_gpus(checked("strict", 3, 1'000), [](GpuRank& rank) {
    Collective first = allreduce(rank, 10);
    rank.expect_ok(rank.comm->run(first), "the first operation");
    if (rank.rank == 2) {
      (void)rank.await_broken();
      return rank.meet();
    }
    Collective second = allreduce(rank, 10);
    const Status status = rank.comm->run(second);
    rank.expect(status.code() == Code::kTimeout, "TIMEOUT: " + status.message());
    rank.expect(contains(status, "not all ranks have come to it (watchdog.check = strict)"),
                status.message());
    rank.expect(contains(status, "rank 2 ("), status.message());
    rank.meet();
  });
}
