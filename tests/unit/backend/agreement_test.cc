// SPDX-License-Identifier: Apache-2.0
#include "backend/multihost/agreement.h"

#include <doctest/doctest.h>

#include "collective/blocks.h"

using namespace dt;
using namespace dt::backend;
using collective::Collective;
using collective::Kind;

namespace {

Roster roster(std::vector<int32_t> hosts) {
  Roster result;
  result.name = "world";
  result.rank = 1;
  result.topology = collective::Topology::of(hosts);
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    result.world_ranks.push_back(static_cast<int32_t>(rank));
  }
  for (int32_t host = 0; host < result.topology.host_count(); ++host) {
    result.host_names.push_back(format("host%d", host));
  }
  return result;
}

Statement says(int32_t rank, int64_t count, const std::string& withheld = "") {
  Collective call;
  call.kind = Kind::kAllreduce;
  call.dtype = Dtype::kF32;
  call.count = count;
  if (!withheld.empty()) call.withheld = std::make_shared<const std::string>(withheld);
  Statement statement = statement_of(call, rank, 4);
  statement.pid = 10 + rank;
  return statement;
}

}  // namespace

TEST_CASE("Agreement: equal statements become one, reasons stay apart, and both are bounded") {
  const auto one = collapse({says(0, 5), says(1, 5), says(2, 6), says(3, 5)});
  REQUIRE(one.size() == 2);
  CHECK(one[0].more == 2);
  CHECK(one[1].rank == 2);
  CHECK(collapse({says(0, 5, "a"), says(1, 5, "b"), says(2, 5)}).size() == 3);
  std::vector<Statement> many;
  for (int32_t rank = 0; rank < 100; ++rank) many.push_back(says(rank, 5, "no gradient"));
  const auto bounded = collapse(many);
  CHECK(bounded.size() == 8);
  CHECK(bounded.back().more == 92);
}

TEST_CASE("Agreement: of irregular calls counts show in the sum of what all say") {
  // Rank 1 sends rank 0 three elements, which expects as many as `expected` says.
  const auto gatherv = [](int32_t rank, int64_t expected) {
    auto blocks = std::make_shared<collective::Blocks>();
    blocks->outgoing.assign(2, {});
    blocks->incoming.assign(2, {});
    if (rank == 1) blocks->outgoing[0] = {0, 3};
    if (rank == 0) blocks->incoming[1] = {0, expected};
    Collective call;
    call.kind = Kind::kGatherv;
    call.blocks = blocks;
    return statement_of(call, rank, 2);
  };
  const Statement sender = gatherv(1, 0);
  CHECK(same_call(sender.said, gatherv(0, 3).said));
  CHECK(same_call(sender.said, gatherv(0, 4).said));
  CHECK(collapse({gatherv(0, 3), sender}).size() == 1);
  CHECK(balance_of({gatherv(0, 3), sender}) == 0);
  CHECK(balance_of({gatherv(0, 4), sender}) != 0);
  CHECK(balance_of({gatherv(0, 0), sender}) != 0);
  CHECK(verdict_over(roster({0, 1}), Kind::kGatherv, 1, {gatherv(0, 4), sender}).ok());
}

TEST_CASE("Agreement: the verdict names both sides, the minority as the culprit") {
  const Roster four = roster({0, 0, 1, 1});
  CHECK(verdict_over(four, Kind::kAllreduce, 7, {says(0, 5), says(2, 5)}).ok());
  auto first = collapse({says(0, 5), says(1, 5)});
  const auto second = collapse({says(2, 5), says(3, 9)});
  first.insert(first.end(), second.begin(), second.end());
  const Status status = verdict_over(four, Kind::kAllreduce, 7, first);
  CHECK(status.code() == Code::kMismatch);
  CHECK(
      status.message() ==
      "allreduce #7 on comm \"world\", rank 1 (host0): ranks disagree: rank 0 (host0, pid 10) and "
      "2 more: allreduce f32 sum x 5, rank 3 (host1, pid 13): allreduce f32 sum x 9; make all "
      "ranks issue the same operations in the same order, then go on with dt_comm_shrink");
  CHECK(status.info().rank == 3);
  CHECK(status.info().pid == 13);
  CHECK(status.info().host == "host1");
  CHECK(status.info().sequence == 7);
}

TEST_CASE("Agreement: reasons of all that withhold are told, and break nothing") {
  const Status status =
      verdict_over(roster({0, 1, 1}), Kind::kAllreduce, 2,
                   {says(0, 5), says(1, 5, "no gradient for #3"), says(2, 5, "none for #4")});
  CHECK(status.code() == Code::kInvalidState);
  CHECK(
      status.message() ==
      "allreduce #2 on comm \"world\", rank 1 (host1): rank 1 (host1, pid 11): no gradient for #3; "
      "rank 2 (host1, pid 12): none for #4");
}

TEST_CASE("Agreement: what a broken peer says is an error, not a crash") {
  Statement odd = says(0, 5);
  odd.rank = 77;
  CHECK(verdict_over(roster({0, 1}), Kind::kAllreduce, 1, {says(0, 5), odd}).code() ==
        Code::kInternal);
  odd = says(1, 6);
  for (char& letter : odd.name) letter = 'x';  // no end
  for (char& letter : odd.withheld) letter = 'y';
  CHECK(verdict_over(roster({0, 1}), Kind::kAllreduce, 1, {says(0, 5), odd}).code() ==
        Code::kMismatch);
}
