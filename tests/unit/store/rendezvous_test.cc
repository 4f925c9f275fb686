// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "fixture.h"

using namespace dt;
using namespace dt::store;
using namespace dt::store::test;

namespace {

// Joins every rank of `ranks` on a thread each; the statuses in the same order.
std::vector<Status> join_some(Job* job, const std::vector<int32_t>& ranks, const Wait& wait,
                              const std::function<void(JoinRecord*)>& change = {}) {
  std::vector<Status> statuses(ranks.size());
  std::vector<std::shared_ptr<Client>> clients;
  for (const int32_t rank : ranks) clients.push_back(job->connect(rank));
  on_threads(static_cast<int32_t>(ranks.size()), [&](int32_t i) {
    const size_t index = static_cast<size_t>(i);
    JoinRecord record = job->record(ranks[index]);
    if (change) change(&record);
    statuses[index] = clients[index]->join(record, wait).status();
  });
  return statuses;
}

}  // namespace

TEST_CASE("join: 1, 2, 8 and 64 ranks get the same world and their own place in it") {
  for (const int32_t world_size : {1, 2, 8, 64}) {
    Job job(world_size);
    std::vector<std::shared_ptr<Client>> clients;
    for (int32_t rank = 0; rank < world_size; ++rank) clients.push_back(job.connect(rank));
    std::vector<Verdict> verdicts(static_cast<size_t>(world_size));
    on_threads(world_size, [&](int32_t rank) {
      auto verdict = clients[static_cast<size_t>(rank)]->join(job.record(rank), patiently());
      if (verdict.ok()) verdicts[static_cast<size_t>(rank)] = std::move(verdict).value();
    });
    const int32_t on_host_a = (world_size + 1) / 2;
    for (int32_t rank = 0; rank < world_size; ++rank) {
      const Verdict& verdict = verdicts[static_cast<size_t>(rank)];
      const bool on_a = rank < on_host_a;
      CHECK(verdict.attempt == 2);
      CHECK(verdict.session != 0);
      CHECK(verdict.session == verdicts[0].session);
      CHECK(verdict.world_size == world_size);
      CHECK(verdict.node_count == (world_size == 1 ? 1 : 2));
      CHECK(verdict.node_rank == (on_a ? 0 : 1));
      CHECK(verdict.local_rank == (on_a ? rank : rank - on_host_a));
      CHECK(verdict.local_size == (on_a ? on_host_a : world_size - on_host_a));
      REQUIRE(verdict.hosts.size() == static_cast<size_t>(verdict.node_count));
      CHECK(verdict.hosts[0].host_name == "hostA");
      CHECK(verdict.hosts[0].ranks.size() == static_cast<size_t>(on_host_a));
      REQUIRE(verdict.locals.size() == static_cast<size_t>(verdict.local_size));
      for (const LocalRecord& local : verdict.locals) {
        CHECK(local.pid == 10 + local.rank);
        CHECK(local.socket_name == job.record(local.rank).socket_name);
      }
    }
    // The other ranks' records come by multi_get.
    std::vector<std::string> keys;
    for (int32_t rank = 0; rank < world_size; ++rank) keys.push_back(join_record_key(rank));
    const auto records = clients[0]->multi_get(keys, patiently()).value();
    for (int32_t rank = 0; rank < world_size; ++rank) {
      JoinRecord record;
      REQUIRE(decode(records[static_cast<size_t>(rank)].value_or(""), &record));
      CHECK(record.payload == "payload " + std::to_string(rank));
    }
  }
}

TEST_CASE("join: missing ranks at the deadline") {
  Job job(4);
  // The job's limit is 2 s, of which 1 s is left when they join.
  const auto limited = [](JoinRecord* record) { record->limit_ms = 2000; };
  for (const Status& status : join_some(&job, {0, 2}, briefly(1000), limited)) {
    CHECK(status.code() == Code::kTimeout);
    CHECK(status.message() ==
          "2 of 4 ranks joined within 2.0 s; missing ranks 1, 3; joined: 0 (hostA pid 10), 2 "
          "(hostB pid 12)");
  }
}

TEST_CASE("join: the server's own limit") {
  Job job(2, [](ServerOptions* options) { options->join_timeout_ms = 100; });
  CHECK(join_some(&job, {0}, patiently())[0].message() ==
        "1 of 2 ranks joined within 0.1 s; missing rank 1; joined: 0 (hostA pid 10)");
}

TEST_CASE("join: differing configuration") {
  Job job(4);
  const auto statuses = join_some(&job, {0, 1, 2, 3}, patiently(), [](JoinRecord* record) {
    record->equal_config = {
        {"reducer.bucket_cap_bytes", record->rank == 3 ? "1048576" : "26214400"}};
  });
  for (const Status& status : statuses) {
    CHECK(status.code() == Code::kConfig);
    CHECK(status.message() ==
          "config differs between ranks: reducer.bucket_cap_bytes is 26214400 on ranks 0-2, "
          "1048576 on rank 3 (hostB); give every rank the same values");
  }
}

TEST_CASE("join: an interrupt releases it, and the rank may join again") {
  Job job(2);
  const auto first = job.connect(0);
  Interrupt interrupt;
  interrupt.fire(Status(Code::kAborted, "changed my mind"));
  CHECK(first->join(job.record(0), {Deadline::never(), &interrupt}).status().message() ==
        "changed my mind");
  const auto second = job.connect(1);
  on_threads(2, [&](int32_t rank) {
    const auto& client = rank == 0 ? first : second;
    CHECK(client->join(job.record(rank), patiently()).ok());
  });
}

TEST_CASE("join: other sessions have other numbers") {
  std::set<uint64_t> sessions;
  for (int i = 0; i < 4; ++i) {
    Job job(1);
    sessions.insert(job.connect(0)->join(job.record(0), patiently()).value().session);
  }
  CHECK(sessions.size() == 4);
}
