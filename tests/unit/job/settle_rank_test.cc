// SPDX-License-Identifier: Apache-2.0
#include "job/settle_rank.h"

#include "../contains.h"
#include "../store/fixture.h"

using dt::Code;
using dt::format;
using dt::Result;
using dt::Status;
using dt::Wait;
using dt::job::NodeProcess;
using dt::job::settle_rank;
using dt::store::test::briefly;
using StoreJob = dt::store::test::Job;
using dt::store::test::on_threads;
using dt::store::test::patiently;
using dt::test::contains;

namespace {

NodeProcess process(int32_t node_rank, int32_t local_rank, int32_t world_size) {
  return {node_rank, local_rank, world_size, format("host%d", node_rank), 10 + local_rank};
}

/// Each on a thread and a connection of its own; results in the same order.
std::vector<Result<int32_t>> settle(StoreJob& job, const std::vector<NodeProcess>& processes,
                                    const Wait& wait) {
  std::vector<Result<int32_t>> ranks(processes.size(), Result<int32_t>(-1));
  std::vector<std::shared_ptr<dt::store::Client>> clients;
  for (size_t i = 0; i < processes.size(); ++i) clients.push_back(job.connect(-1));
  on_threads(static_cast<int32_t>(processes.size()), [&](int32_t i) {
    const auto at = static_cast<size_t>(i);
    ranks[at] = settle_rank(*clients[at], processes[at], wait);
  });
  return ranks;
}

}  // namespace

TEST_CASE("settle_rank: the rank is the number of processes on lower nodes plus the local rank") {
  for (const std::vector<int32_t>& sizes :
       {std::vector<int32_t>{2, 2}, {1, 3, 2}, {3, 1}, {4}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2}}) {
    std::vector<NodeProcess> processes;
    int32_t world_size = 0;
    for (const int32_t size : sizes) world_size += size;
    for (size_t node = 0; node < sizes.size(); ++node) {
      for (int32_t local = 0; local < sizes[node]; ++local) {
        processes.push_back(process(static_cast<int32_t>(node), local, world_size));
      }
    }
    StoreJob job(world_size);
    const auto ranks = settle(job, processes, patiently());
    for (size_t i = 0; i < ranks.size(); ++i) {
      INFO(ranks[i].status().message());
      REQUIRE(ranks[i].ok());
      CHECK(ranks[i].value() == static_cast<int32_t>(i));
    }
  }
}

TEST_CASE("settle_rank: node 0 waits for nobody, and the others name who is missing") {
  StoreJob job(6);
  const auto ranks = settle(job, {process(0, 0, 6), process(0, 1, 6)}, patiently());
  CHECK(ranks[0].value() == 0);
  CHECK(ranks[1].value() == 1);
  const Status late = settle(job, {process(1, 1, 6)}, briefly(2000))[0].status();
  CHECK(late.code() == Code::kTimeout);
  CHECK(late.message() ==
        "rendezvous: 3 of 6 processes have come, and the rank of this one (node 1 local rank 1) "
        "follows from all; missing: node 1 local rank 0, node 2 local rank 0, node 2 local rank 1; "
        "look at what they printed, or raise rendezvous.timeout_ms");
}

TEST_CASE("settle_rank: a process with a wrong node rank costs the others no memory") {
  StoreJob job(4);
  auto client = job.connect(-1);
  REQUIRE(client->set("dt.places/2147483646.2147483646", "x", patiently()).ok());
  auto other = job.connect(-1);
  const Status late = settle_rank(*other, process(1, 0, 4), briefly(2000)).status();
  CHECK(late.code() == Code::kTimeout);
  CHECK(contains(late.message(), "missing: node 0 local rank 0, node 0 local rank 1, "));
  CHECK(contains(late.message(), " and others; "));
}

TEST_CASE("settle_rank: two processes of one place, a gap, and too many are refused") {
  StoreJob job(4);
  auto client = job.connect(-1);
  CHECK(settle_rank(*client, process(0, 0, 4), patiently()).ok());
  const Status twice = settle_rank(*client, {0, 0, 4, "hostB", 7}, patiently()).status();
  CHECK(twice.code() == Code::kConfig);
  CHECK(twice.message() ==
        "rendezvous: NODE_RANK=0 and LOCAL_RANK=0 are those of two processes: (host0 pid 10) and "
        "(hostB pid 7); give every node its own NODE_RANK");

  StoreJob gap(3);
  const auto local =
      settle(gap, {process(0, 0, 3), process(1, 0, 3), process(1, 2, 3)}, patiently());
  CHECK(local[0].value() == 0);
  for (const size_t i : {1u, 2u}) {
    CHECK(local[i].status().code() == Code::kConfig);
    CHECK(local[i].status().message() ==
          "rendezvous: all 3 processes have come, node 1 local rank 2 among them, but none has "
          "node 1 local rank 1; NODE_RANK and LOCAL_RANK count from 0 without a gap");
  }
  StoreJob node(2);
  CHECK(contains(
      settle(node, {process(0, 0, 2), process(2, 0, 2)}, patiently())[1].status().message(),
      "node 2 local rank 0 among them, but none has NODE_RANK=1; "));
  auto late = node.connect(-1);
  const Status third = settle_rank(*late, process(1, 0, 2), patiently()).status();
  CHECK(third.code() == Code::kConfig);
  CHECK(third.message() ==
        "rendezvous: WORLD_SIZE=2 processes have come before (host1 pid 10), which is node 1 local "
        "rank 0; WORLD_SIZE must count the processes of all nodes");
}
