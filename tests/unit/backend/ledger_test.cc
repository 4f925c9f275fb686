// SPDX-License-Identifier: Apache-2.0
#include "backend/device/ledger.h"

#include <doctest/doctest.h>

#include <map>

using namespace dt;
using namespace dt::backend;
using collective::Collective;
using collective::Kind;

namespace {

Collective allreduce(int64_t count, const char* name = "") {
  Collective collective;
  collective.kind = Kind::kAllreduce;
  collective.dtype = Dtype::kF32;
  collective.count = count;
  collective.name = name;
  return collective;
}

}  // namespace

TEST_CASE("Ledger: tells each collective once, in order, as a message would") {
  Ledger ledger("world", 2);
  CHECK(ledger.take().empty());
  ledger.add(allreduce(10, "bucket 1"), 3);
  Collective barrier;
  ledger.add(barrier, 5);
  const auto news = ledger.take();
  REQUIRE(news.size() == 2);
  CHECK(news[0].position == 1);
  CHECK(news[0].sequence == 3);
  CHECK(news[0].call() == "allreduce f32 sum x 10 \"bucket 1\"");
  CHECK(news[1].position == 2);
  CHECK(news[1].call() == "barrier");
  CHECK(news[0].chain != news[1].chain);
  CHECK(ledger.take().empty());
  const auto last = ledger.take(true);
  REQUIRE(last.size() == 1);
  CHECK(last[0].position == 2);
  CHECK(last[0].chain == news[1].chain);
  CHECK(ledger.take().empty());
}

TEST_CASE("Ledger: blocks of different sizes are no difference") {
  for (const Kind kind : {Kind::kAlltoallv, Kind::kGatherv, Kind::kScatterv, Kind::kAllgatherv}) {
    uint64_t chains[2];
    for (const int rank : {0, 1}) {
      Collective collective = allreduce(10 + rank);
      collective.kind = kind;
      chains[rank] = Ledger("world", 2).add(collective, 1).chain;
    }
    CHECK(chains[0] == chains[1]);
  }
}

TEST_CASE("Ledger: any difference, and any other order, is another chain from there on") {
  Collective other_dtype = allreduce(10);
  other_dtype.dtype = Dtype::kI32;
  Collective other_op = allreduce(10);
  other_op.op = ReduceOp::kMax;
  Collective rooted = allreduce(10);
  rooted.kind = Kind::kBroadcast;
  Collective other_root = rooted;
  other_root.root = 1;
  std::map<uint64_t, int> chains;
  for (const Collective& first : {allreduce(10), allreduce(11), allreduce(10, "a"), other_dtype,
                                  other_op, rooted, other_root}) {
    Ledger ledger("world", 2);
    ++chains[ledger.add(first, 1).chain];
    ++chains[ledger.add(allreduce(10), 2).chain];
  }
  CHECK(chains.size() == 14);
}

TEST_CASE("Ledger: ranks that take at other times have positions in common") {
  Ledger often("world", 2);
  Ledger seldom("world", 2);
  std::map<int64_t, uint64_t> told;
  const auto add = [&](int64_t i) {
    often.add(allreduce(i), i);
    seldom.add(allreduce(i), i);
    if (i % 7 == 0) {
      for (const auto& each : often.take()) told[each.position] = each.chain;
    }
  };
  for (int64_t i = 1; i <= 1000; ++i) add(i);
  const auto news = seldom.take();
  // 15 at multiples of 64 up to 936, then the last 64 whole.
  REQUIRE(news.size() == 14 + 64);
  for (size_t i = 0; i < news.size(); ++i) {
    const int64_t wanted =
        i < 14 ? 64 * (static_cast<int64_t>(i) + 1) : 937 + static_cast<int64_t>(i) - 14;
    CHECK(news[i].position == wanted);
    CHECK((news[i].sequence > 0) == (i >= 14));
    if (told.count(wanted) == 1) CHECK(told[wanted] == news[i].chain);
  }
  // So many that also of the positions only the last are told.
  for (int64_t i = 1001; i <= 101'000; ++i) add(i);
  const auto late = seldom.take();
  CHECK(late.size() <= 256 + 64);
  CHECK(late.front().position > 101'000 - 64 * 256);
  for (const auto& each : late) {
    if (told.count(each.position) == 1) CHECK(told[each.position] == each.chain);
  }
}

TEST_CASE("OrderBook: gives away the ledger of a communicator that has ended once more") {
  OrderBook book;
  auto first = std::make_shared<Ledger>("world", 2);
  const auto second = std::make_shared<Ledger>("world/0.0", 2);
  book.enlist(first);
  book.enlist(second);
  CHECK(book.ledgers().size() == 2);
  first->add(allreduce(10), 1);
  first = nullptr;
  const auto told = book.ledgers();
  REQUIRE(told.size() == 2);
  CHECK(told[0]->take().size() == 1);
  REQUIRE(book.ledgers().size() == 1);
  CHECK(book.ledgers()[0] == second);
}
