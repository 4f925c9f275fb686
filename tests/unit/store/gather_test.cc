// SPDX-License-Identifier: Apache-2.0
#include "store/gather.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "store/fixture.h"

using namespace dt;
using namespace dt::store;
using namespace dt::store::test;

namespace {

constexpr int64_t kMillisecondNs = 1'000'000;
const char* const kName = "dt_comm_shrink of comm \"world\"";

/// Ranks 0 to 3 of a job, of which some have ended.
struct Hall {
  std::vector<Member> members{
      {0, "hostA", 10}, {1, "hostA", 11}, {2, "hostB", 12}, {3, "hostB", 13}};
  std::set<int32_t> ended;
  uint64_t session = 40;
  GatherTable table{{4,
                     [this](int32_t rank) -> const Member* {
                       const bool there = rank >= 0 && rank < 4 && ended.count(rank) == 0;
                       return there ? &members[static_cast<size_t>(rank)] : nullptr;
                     },
                     [this] { return ++session; }}};
  Answers answers;

  void come(int32_t rank, const std::vector<int32_t>& of = {0, 1, 2, 3}, int64_t timeout_ms = -1,
            const std::string& says = "") {
    table.come({static_cast<uint64_t>(100 + rank), 1}, rank,
               {kName, of, says.empty() ? "s" + std::to_string(rank) : says},
               Patience::starting(0, timeout_ms), 0, &answers);
  }
  void end(int32_t rank) {
    ended.insert(rank);
    table.review(&answers);
  }
};

GatherVerdict verdict_of(const Answer& answer) {
  REQUIRE(answer.status.ok());
  REQUIRE(answer.shared != nullptr);
  GatherVerdict verdict;
  REQUIRE(decode(*answer.shared, &verdict));
  return verdict;
}

using Present = std::vector<std::pair<int32_t, std::string>>;

}  // namespace

TEST_CASE("GatherTable: it ends when all that live have come, with one answer in their order") {
  Hall hall;
  hall.ended = {1};
  const std::vector<int32_t> of{3, 0, 2, 1};
  hall.come(0, of);
  hall.come(2, of);
  CHECK(hall.answers.empty());
  hall.come(3, of);
  REQUIRE(hall.answers.size() == 3);
  for (const Answer& answer : hall.answers) {
    const GatherVerdict verdict = verdict_of(answer);
    CHECK(verdict.present == Present{{3, "s3"}, {0, "s0"}, {2, "s2"}});
    CHECK(verdict.session == 41);
    CHECK(verdict.number == 1);
  }
  const auto partings = hall.table.take_partings();
  REQUIRE(partings.size() == 1);
  CHECK(partings[0].present == std::vector<int32_t>{3, 0, 2});
  CHECK(partings[0].absent == std::vector<int32_t>{1});
  // The name is free again, and the next one is another.
  hall.answers.clear();
  for (const int32_t rank : {0, 2, 3}) hall.come(rank, of);
  REQUIRE(hall.answers.size() == 3);
  CHECK(verdict_of(hall.answers[0]).number == 2);
  CHECK(verdict_of(hall.answers[0]).session == 42);
}

TEST_CASE("GatherTable: who ends meanwhile is not waited for, nor counted where it had come") {
  Hall hall;
  hall.come(0);
  hall.come(1);
  hall.end(1);
  hall.come(2);
  CHECK(hall.answers.empty());
  hall.end(3);
  REQUIRE(hall.answers.size() == 2);
  CHECK(verdict_of(hall.answers[0]).present == Present{{0, "s0"}, {2, "s2"}});
  hall.end(0);
  CHECK(hall.answers.size() == 2);
}

TEST_CASE("GatherTable: one that lives and does not come ends it for all, and is named") {
  Hall hall;
  hall.come(0, {0, 1, 2, 3}, 500);
  hall.come(3);
  hall.end(1);
  CHECK(hall.table.next_deadline_ns() == 500 * kMillisecondNs);
  hall.table.expire(500 * kMillisecondNs - 1, &hall.answers);
  CHECK(hall.answers.empty());
  hall.table.expire(500 * kMillisecondNs, &hall.answers);
  REQUIRE(hall.answers.size() == 2);
  for (const Answer& answer : hall.answers) {
    CHECK(answer.status.code() == Code::kTimeout);
    CHECK(answer.status.info().operation == kGatherOperation);
    CHECK(answer.status.info().rank == 2);
    CHECK(answer.status.info().host == "hostB");
    CHECK(answer.status.info().pid == 12);
    CHECK(answer.status.message() ==
          std::string(kName) +
              ": 2 of 3 living ranks came within 0.5 s; missing: rank 2 (hostB pid 12); look at "
              "what they do: each rank that lives has to call it, or to end");
  }
  CHECK(hall.table.next_deadline_ns() == kNeverNs);
  hall.answers.clear();
  for (const int32_t rank : {2, 0, 3}) hall.come(rank);  // it can be tried again
  CHECK(hall.answers.size() == 3);
  CHECK(verdict_of(hall.answers[0]).present.size() == 3);
}

TEST_CASE("GatherTable: a call without patience is answered at once") {
  Hall hall;
  hall.come(0, {0, 1}, 0);
  REQUIRE(hall.answers.size() == 1);
  CHECK(hall.answers[0].status.code() == Code::kTimeout);
}

TEST_CASE("GatherTable: who gives up has not come") {
  Hall hall;
  hall.come(0, {0, 1});
  hall.table.cancel({100, 1});
  hall.come(1, {0, 1});
  CHECK(hall.answers.empty());
  hall.come(0, {0, 1});
  CHECK(hall.answers.size() == 2);
}

TEST_CASE("GatherTable: refuses what makes no sense, and keeps nothing of it") {
  Hall hall;
  const auto refused = [&](int32_t rank, const std::vector<int32_t>& of, const std::string& why,
                           const std::string& says = "") {
    hall.answers.clear();
    hall.come(rank, of, -1, says);
    REQUIRE(hall.answers.size() == 1);
    INFO(hall.answers[0].status.message());
    CHECK(!hall.answers[0].status.ok());
    CHECK(hall.answers[0].status.message().find(why) != std::string::npos);
  };
  refused(0, {}, "its 0 members are no ranks of a job of 4");
  refused(0, {0, 4}, "its 2 members are no ranks of a job of 4");
  refused(0, {-1, 0}, "are no ranks");
  refused(0, {0, 1, 1}, "its 3 members are no ranks");
  refused(0, {1, 2}, "rank 0 is not among its members");
  refused(0, {0, 1}, "over the limit", std::string(GatherTable::kMaxSaysBytes + 1, 'x'));
  refused(-1, {0, 1}, "only ranks that take part in the job");
  hall.ended = {3};
  refused(3, {0, 3}, "only ranks that take part in the job");
  hall.come(0, {0, 1});
  refused(0, {0, 1}, "rank 0 is still inside");
  refused(1, {1, 0}, "rank 1 and rank 0 name different members of it");
  CHECK(hall.table.next_deadline_ns() == kNeverNs);
}

TEST_CASE("survivors gather after a death, forgive it, and the job goes on for them") {
  Job job(3);
  auto clients = job.join_all();
  Failures failures;
  failures.watch(clients[0].get());
  clients[1] = nullptr;  // a death
  CHECK(failures.wait_first().info.rank == 1);
  CHECK(clients[0]->set("a", "1", patiently()).code() == Code::kPeerLost);
  std::vector<Result<GatherVerdict>> met(3, Status(Code::kInternal, "not called"));
  on_threads(3, [&](int32_t rank) {
    if (rank == 1) return;
    met[static_cast<size_t>(rank)] =
        clients[static_cast<size_t>(rank)]->gather(kName, {0, 1, 2}, "", patiently());
  });
  for (const int32_t rank : {0, 2}) {
    const auto& mine = met[static_cast<size_t>(rank)];
    REQUIRE(mine.ok());
    CHECK(mine.value().present == Present{{0, ""}, {2, ""}});
    CHECK(mine.value().session == met[0].value().session);
    const auto& client = clients[static_cast<size_t>(rank)];
    CHECK(client->set("a", "1", patiently()).code() == Code::kPeerLost);
    client->forgive({1});
    CHECK(client->set("a", "1", patiently()).ok());
  }
  Status left[3];
  on_threads(3, [&](int32_t rank) {
    if (rank != 1) left[rank] = clients[static_cast<size_t>(rank)]->goodbye(patiently());
  });
  CHECK(left[0].ok());
  CHECK(left[2].ok());
}

TEST_CASE("what a rank has seen itself ends its calls, whatever the store tells of later") {
  Job job(3);
  auto clients = job.join_all();
  Failures failures;
  failures.watch(clients[0].get());
  Result<std::string> got(Status(Code::kInternal, "not called"));
  std::thread caller([&] { got = clients[0]->get("never", patiently()); });
  ErrorInfo seen;
  seen.code = Code::kPeerLost;
  seen.rank = 2;
  seen.message = "rank 2 is gone";
  CHECK(job.loop->run([&] { clients[0]->know(seen); }));
  clients[1] = nullptr;  // a death of which the store tells
  CHECK(failures.wait_first().info.rank == 1);
  caller.join();
  CHECK(got.status().info().rank == 2);
  CHECK(clients[0]->set("a", "1", patiently()).info().rank == 2);
  clients[0]->forgive({2});
  CHECK(clients[0]->set("a", "1", patiently()).info().rank == 1);
  clients[0]->forgive({1});
  CHECK(clients[0]->set("a", "1", patiently()).ok());
}

TEST_CASE("a death while others gather ends nobody's call") {
  Job job(3);
  auto clients = job.join_all();
  Failures failures;
  failures.watch(clients[0].get());
  Result<GatherVerdict> met(Status(Code::kInternal, "not called"));
  std::thread caller([&] { met = clients[0]->gather(kName, {0, 1, 2}, "here", patiently()); });
  clients[1] = nullptr;
  CHECK(failures.wait_first().info.rank == 1);
  clients[2] = nullptr;
  caller.join();
  REQUIRE(met.ok());
  CHECK(met.value().present == Present{{0, "here"}});
}

TEST_CASE("after an abort nobody gathers") {
  Job job(2);
  auto clients = job.join_all();
  Failures failures;
  failures.watch(clients[0].get());
  CHECK(clients[1]->abort("enough", patiently()).ok());
  (void)failures.wait_first();
  const auto met = clients[0]->gather(kName, {0, 1}, "", patiently());
  CHECK(met.status().code() == Code::kAborted);
  CHECK(met.status().message().find("aborted the job: enough") != std::string::npos);
}

TEST_CASE("without the store survivors are told that nothing can be agreed") {
  Job job(2);
  auto clients = job.join_all();
  Failures failures;
  failures.watch(clients[1].get());
  job.server = nullptr;
  (void)failures.wait_first();
  const auto met = clients[1]->gather(kName, {0, 1}, "", patiently());
  CHECK(met.status().code() == Code::kPeerLost);
  CHECK(met.status().info().rank == 0);
  CHECK(met.status().message().find(
            "the ranks that are left can agree on nothing without the store, which a rank served; "
            "under dt run its own process does, and a job outlives each of its ranks") !=
        std::string::npos);
}
