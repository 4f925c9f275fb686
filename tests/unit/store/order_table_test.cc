// SPDX-License-Identifier: Apache-2.0
#include "store/order_table.h"

#include <doctest/doctest.h>

#include "../contains.h"
#include "store/protocol.h"

using namespace dt;
using namespace dt::store;
using dt::test::contains;

namespace {

constexpr int64_t kPatienceNs = 100;

Member member(int32_t rank) { return {rank, "node" + std::to_string(rank), 100 + rank}; }

Orders orders(int32_t size, std::vector<Order> news, const char* communicator = "world") {
  return {communicator, size, std::move(news)};
}

Order call(int64_t position, uint64_t chain, const char* text = "barrier") {
  return {position, chain, position + 10, text};
}

}  // namespace

TEST_CASE("OrderTable: ranks that call the same are never complained about") {
  OrderTable table;
  for (int64_t position = 1; position <= 5000; ++position) {
    for (int32_t rank = 0; rank < 3; ++rank) {
      table.tell(member(rank), orders(3, {call(position, static_cast<uint64_t>(position * 7))}), 0);
    }
    CHECK(table.verdicts(1'000'000, kPatienceNs).empty());
  }
}

TEST_CASE("OrderTable: the one that differs from most is to blame, whoever tells first") {
  for (int32_t odd = 0; odd < 3; ++odd) {
    CAPTURE(odd);
    OrderTable table;
    for (int32_t rank = 0; rank < 3; ++rank) {
      const bool differs = rank == odd;
      table.tell(member(rank),
                 orders(3, {call(1, 5), call(2, differs ? 6 : 7, differs ? "broadcast" : "barrier"),
                            call(3, differs ? 8 : 9)}),
                 10);
      if (rank < 2) CHECK(table.verdicts(20, kPatienceNs).empty());
    }
    const auto verdicts = table.verdicts(20, kPatienceNs);
    REQUIRE(verdicts.size() == 1);
    CHECK(verdicts[0].scope == "world");
    const ErrorInfo& info = verdicts[0].info;
    INFO(info.message);
    CHECK(info.code == Code::kMismatch);
    CHECK(info.rank == odd);
    CHECK(info.host == "node" + std::to_string(odd));
    CHECK(info.pid == 100 + odd);
    CHECK(info.sequence == 12);
    CHECK(contains(info.message, "#12 on comm \"world\": ranks disagree: rank 0 (node0, pid 100)"));
    CHECK(contains(info.message, "broadcast"));
    CHECK(contains(info.message, "and 1 more: barrier"));
    CHECK(table.verdicts(30, kPatienceNs).empty());  // once
  }
}

TEST_CASE("OrderTable: a rank that does not come is not waited for for long") {
  OrderTable table;
  table.tell(member(0), orders(3, {call(1, 5)}), 10);
  table.tell(member(2), orders(3, {call(1, 6, "reduce")}), 10);
  CHECK(table.verdicts(10 + kPatienceNs - 1, kPatienceNs).empty());
  const auto verdicts = table.verdicts(10 + kPatienceNs, kPatienceNs);
  REQUIRE(verdicts.size() == 1);
  CHECK(contains(verdicts[0].info.message,
                 "rank 0 (node0, pid 100): barrier, rank 2 (node2, pid 102): "));
}

TEST_CASE("OrderTable: the first difference counts, though a later one was heard before") {
  OrderTable table;
  table.tell(member(0), orders(2, {call(7, 1, "barrier"), call(8, 2, "reduce")}), 10);
  table.tell(member(1), orders(2, {call(8, 3, "gather")}), 10);
  table.tell(member(1), orders(2, {call(7, 4, "broadcast")}), 10);
  const auto verdicts = table.verdicts(10, kPatienceNs);
  REQUIRE(verdicts.size() == 1);
  CHECK(contains(verdicts[0].info.message, "barrier #17 on comm"));
  CHECK(contains(verdicts[0].info.message, ": broadcast;"));
}

TEST_CASE("OrderTable: what is too long ago is still a difference") {
  OrderTable table;
  table.tell(member(0), orders(2, {{64, 1, 0, ""}}), 10);
  table.tell(member(1), orders(2, {{64, 2, 0, ""}}), 10);
  const auto verdicts = table.verdicts(10, kPatienceNs);
  REQUIRE(verdicts.size() == 1);
  CHECK(contains(verdicts[0].info.message, "collective 64 on comm \"world\": ranks disagree: "));
  CHECK(contains(verdicts[0].info.message, "operations that are too long ago to be told"));
  CHECK(verdicts[0].info.sequence == -1);
}

TEST_CASE("OrderTable: the same call after others is told apart") {
  OrderTable table;
  table.tell(member(0), orders(2, {call(300, 1)}), 10);
  table.tell(member(1), orders(2, {call(300, 2)}), 10);
  const auto verdicts = table.verdicts(10, kPatienceNs);
  REQUIRE(verdicts.size() == 1);
  CHECK(contains(verdicts[0].info.message, "barrier, after other operations than the others"));
}

TEST_CASE(
    "OrderTable: a rank that contradicts itself disagrees with nobody; its first word counts") {
  OrderTable table;
  table.tell(member(1), orders(3, {call(7, 1), call(7, 2), call(7, 3)}), 10);
  CHECK(table.verdicts(1'000, kPatienceNs).empty());
  table.tell(member(0), orders(3, {call(7, 2, "broadcast")}), 2'000);
  table.tell(member(1), orders(3, {call(7, 2, "broadcast")}), 2'000);
  table.tell(member(2), orders(3, {call(7, 2, "broadcast")}), 2'000);
  const auto verdicts = table.verdicts(3'000, kPatienceNs);
  REQUIRE(verdicts.size() == 1);
  CHECK(verdicts[0].info.rank == 1);
  CHECK(contains(verdicts[0].info.message, "rank 0 (node0, pid 100) and 1 more: broadcast, "));
  CHECK(contains(verdicts[0].info.message, "rank 1 (node1, pid 101): barrier"));
}

TEST_CASE("OrderTable: an operation that waits for a rank which has left fails at once") {
  OrderTable table;
  table.tell(member(0), orders(2, {call(1, 5), call(2, 6)}), 10);
  table.tell(member(1), orders(2, {call(1, 5), call(2, 6)}), 10);
  table.leave(1);
  CHECK(table.verdicts(1'000'000, kPatienceNs).empty());
  table.tell(member(0), orders(2, {call(3, 7, "allreduce f32 sum x 4")}), 2'000'000);
  const auto verdicts = table.verdicts(2'000'000, kPatienceNs);
  REQUIRE(verdicts.size() == 1);
  CHECK(verdicts[0].scope == "world");
  const ErrorInfo& info = verdicts[0].info;
  CHECK(info.code == Code::kPeerLost);
  CHECK(info.rank == 1);
  CHECK(info.operation == "allreduce");
  CHECK(info.sequence == 13);
  CHECK(
      info.message ==
      "allreduce #13 on comm \"world\": rank 1 (node1 pid 101) has left the job with dt_finalize, "
      "and this operation needs it; let every rank make its part of each operation before it calls "
      "dt_finalize");
  table.tell(member(0), orders(2, {call(4, 8)}), 3'000'000);
  CHECK(table.verdicts(3'000'000, kPatienceNs).empty());
  // One that called nothing there says so as it leaves.
  table.tell(member(1), orders(2, {}, "part"), 4'000'000);
  table.tell(member(0), orders(2, {call(1, 5)}, "part"), 4'000'000);
  const auto later = table.verdicts(4'000'000, kPatienceNs);
  REQUIRE(later.size() == 1);
  CHECK(later[0].scope == "part");
  CHECK(contains(later[0].info.message, "rank 1 (node1 pid 101) has left the job"));
}

TEST_CASE("OrderTable: communicators are apart, and neither they nor points fill the memory") {
  OrderTable table;
  table.tell(member(0), orders(2, {call(1, 1)}, "world/0.0"), 10);
  table.tell(member(1), orders(2, {call(1, 2)}, "world/0.1"), 10);
  CHECK(table.verdicts(1'000, kPatienceNs).empty());
  for (int i = 0; i < 3000; ++i) {
    table.tell(member(0), orders(2, {call(1, 1)}, ("comm " + std::to_string(i)).c_str()), 20 + i);
    table.tell(member(0), orders(2, {call(i + 1, 1)}, "often"), 20 + i);
  }
  table.tell(member(1), orders(2, {call(1, 2)}, "often"), 10'000);  // forgotten
  CHECK(table.verdicts(20'000, kPatienceNs).empty());
  table.tell(member(1), orders(2, {call(2999, 2)}, "often"), 10'000);
  CHECK(table.verdicts(20'000, kPatienceNs).size() == 1);
}

TEST_CASE("Orders: survive the way through a frame; what makes no sense is refused") {
  Request request;
  request.type = FrameType::kOrders;
  request.orders = orders(3, {call(1, 5), {64, 6, 0, ""}}, "world/1.0");
  const auto decoded = decode_request({FrameType::kOrders, 0, encode_request(request)});
  REQUIRE(decoded.ok());
  const Orders& got = decoded.value().orders;
  CHECK(got.communicator == "world/1.0");
  CHECK(got.size == 3);
  REQUIRE(got.news.size() == 2);
  CHECK(got.news[0].position == 1);
  CHECK(got.news[0].chain == 5);
  CHECK(got.news[0].sequence == 11);
  CHECK(got.news[0].call == "barrier");
  CHECK(got.news[1].call.empty());
  for (const Orders& wrong :
       {orders(0, {call(1, 1)}), orders(2, {call(0, 1)}), orders(2, std::vector<Order>(2000))}) {
    request.orders = wrong;
    CHECK_FALSE(decode_request({FrameType::kOrders, 0, encode_request(request)}).ok());
  }
}

TEST_CASE("OrderTable: who has not called an operation is known by its number") {
  const std::vector<Member> job = {member(0), member(1), member(2)};
  OrderTable table;
  const auto knows = [&](const auto& found) { return found.has_value() && !found->ranks.empty(); };
  CHECK_FALSE(table.laggards("world", 0, "barrier", 12, job).has_value());
  for (int32_t rank = 0; rank < 3; ++rank) {
    std::vector<Order> news = {call(1, 5)};
    if (rank < 2) news.push_back(call(2, 6));
    table.tell(member(rank), orders(3, std::move(news)), 10 + rank);
  }
  const auto behind = table.laggards("world", 0, "barrier", 12, job);
  REQUIRE(behind.has_value());
  REQUIRE(behind->ranks.size() == 1);
  CHECK(behind->ranks[0].rank == 2);
  CHECK(behind->since_ns == 10);
  CHECK_FALSE(behind->nobody);
  // Numbers differ between ranks where they send and receive.
  CHECK_FALSE(knows(table.laggards("world", 0, "send", 12, job)));
  CHECK_FALSE(knows(table.laggards("world", 2, "barrier", 12, job)));
  // No rank has told of this number.
  const auto unknown = table.laggards("world", 0, "barrier", 13, job);
  REQUIRE(unknown.has_value());
  CHECK(unknown->ranks.empty());
  CHECK_FALSE(unknown->nobody);
  table.tell(member(2), orders(3, {call(2, 6)}), 20);
  const auto nobody = table.laggards("world", 0, "barrier", 12, job);
  REQUIRE(nobody.has_value());
  CHECK(nobody->ranks.empty());
  CHECK(nobody->nobody);
  // A rank that has called nothing yet may be behind.
  table.tell(member(0), orders(2, {call(1, 5)}, "part"), 10);
  CHECK_FALSE(table.laggards("part", 0, "barrier", 11, job)->nobody);
  CHECK(table.laggards("part", 0, "barrier", 11, job)->ranks.empty());
  table.tell(member(0), orders(3, {call(1, 5)}, "whole"), 10);
  CHECK(table.laggards("whole", 0, "barrier", 11, job)->ranks.size() == 2);
  // Where ranks disagree that is the verdict.
  table.tell(member(0), orders(2, {call(1, 5)}, "other"), 10);
  table.tell(member(1), orders(2, {call(1, 6)}, "other"), 10);
  CHECK_FALSE(table.laggards("other", 0, "barrier", 11, job).has_value());
}
