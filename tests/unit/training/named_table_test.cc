// SPDX-License-Identifier: Apache-2.0
#include "training/named_table.h"

#include <doctest/doctest.h>

#include <limits>

#include "contains.h"

using dt::Code;
using dt::Dtype;
using dt::ReduceOp;
using dt::backend::Kind;
using dt::test::contains;
using dt::training::NamedAnswer;
using dt::training::NamedBatch;
using dt::training::NamedCall;
using dt::training::NamedNews;
using dt::training::NamedTable;
using dt::training::plan_batches;

namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

NamedCall reduction(int64_t count, Dtype dtype = Dtype::kF32, ReduceOp op = ReduceOp::kSum) {
  NamedCall call;
  call.kind = Kind::kAllreduce;
  call.dtype = dtype;
  call.op = op;
  call.count = count;
  return call;
}

NamedAnswer::Operation operation(NamedCall call) {
  NamedAnswer::Operation made;
  made.call = std::move(call);
  return made;
}

NamedTable::Options options(int ranks) {
  NamedTable::Options made;
  made.where = "named submission on comm \"x\"";
  for (int rank = 0; rank < ranks; ++rank) {
    made.members.push_back("rank " + std::to_string(rank) + " (h" + std::to_string(rank) + ")");
    made.hosts.push_back("h" + std::to_string(rank));
    made.world_ranks.push_back(rank + 10);
  }
  made.fuse_bytes = 1000;
  made.cache = 2;
  made.stall_ms = 50;
  made.cycle_us = 1000;
  return made;
}

NamedNews fresh(const std::string& name, const NamedCall& call, uint32_t heard = 0) {
  NamedNews news;
  news.heard = heard;
  news.fresh.push_back({name, call});
  return news;
}

NamedNews known(uint32_t id, uint32_t heard) {
  NamedNews news;
  news.heard = heard;
  news.known.push_back(id);
  return news;
}

void hear(NamedTable& table, int32_t rank, const NamedNews& news, int64_t now_ns = 0) {
  REQUIRE(table.hear(rank, news, now_ns).ok());
}

}  // namespace

TEST_CASE("named: allreduces of one dtype and op share an operation up to the limit") {
  NamedCall broadcast;
  broadcast.kind = Kind::kBroadcast;
  broadcast.count = 1;
  const std::vector<NamedAnswer::Operation> operations = {
      operation(reduction(10)),
      operation(reduction(10, Dtype::kF64)),
      operation(broadcast),
      operation(reduction(15)),
      operation(reduction(1)),
      operation(broadcast),
      operation(reduction(200)),
      operation(reduction(2)),
      operation(reduction(1, Dtype::kF64, ReduceOp::kMax))};
  CHECK(plan_batches(operations, 100) ==
        std::vector<NamedBatch>{{0, 3}, {1}, {2}, {4}, {5}, {6}, {7}, {8}});
  CHECK(plan_batches(operations, 1 << 20) ==
        std::vector<NamedBatch>{{0, 3, 4, 6, 7}, {1}, {2}, {5}, {8}});
  CHECK(plan_batches(operations, 0).size() == operations.size());
  CHECK(plan_batches({}, 100).empty());
}

TEST_CASE("named: names come in the order in which the last rank submits them") {
  NamedTable table(options(2));
  CHECK(table.due_ns() == kNever);
  hear(table, 0, fresh("a", reduction(1)), 5);
  hear(table, 0, fresh("b", reduction(1)), 5);
  CHECK(table.due_ns() == kNever);
  hear(table, 1, fresh("b", reduction(1)), 7);
  CHECK(table.due_ns() == 7 + 1 * kMs);  // "a" may follow
  hear(table, 1, fresh("a", reduction(1)), 9);
  CHECK(table.due_ns() == 0);
  const auto answers = table.take();
  REQUIRE(answers.size() == 2);
  REQUIRE(answers[1].operations.size() == 2);
  CHECK(answers[1].operations[0].name == "b");
  CHECK(answers[1].operations[1].name == "a");
  CHECK(table.due_ns() == kNever);
}

TEST_CASE("named: a description travels once, until another takes its place") {
  NamedTable table(options(2));
  const auto both = [&](const std::string& name, uint32_t heard) {
    hear(table, 0, fresh(name, reduction(1), heard));
    hear(table, 1, fresh(name, reduction(1), heard));
    return table.take()[0];
  };
  CHECK(both("a", 0).operations[0].id == 0);
  CHECK(both("b", 1).operations[0].id == 1);
  hear(table, 0, known(0, 2));
  hear(table, 1, known(0, 2));
  const NamedAnswer again = table.take()[1];
  CHECK(again.operations[0].known);
  CHECK(again.operations[0].name == "a");
  CHECK(again.forgotten.empty());
  // "b" was not used for the longest time.
  CHECK(both("c", 3).forgotten == std::vector<uint32_t>{1});
  // Rank 1 had not heard of that yet; then it has.
  hear(table, 1, known(1, 3));
  hear(table, 0, fresh("b", reduction(1), 4));
  CHECK(table.take()[0].operations[0].name == "b");
  hear(table, 0, known(0, 5));
  hear(table, 1, fresh("z", reduction(1), 5));
  CHECK(table.hear(1, known(1, 5), 0).code() == Code::kInternal);
}

TEST_CASE("named: a description that changes on all ranks takes the place of the former") {
  NamedTable table(options(1));
  hear(table, 0, fresh("a", reduction(1)));
  CHECK(table.take()[0].operations[0].id == 0);
  hear(table, 0, fresh("a", reduction(2), 1));
  const NamedAnswer answer = table.take()[0];
  CHECK(answer.operations[0].id == 1);
  CHECK(answer.operations[0].call.count == 2);
  CHECK(answer.forgotten == std::vector<uint32_t>{0});
}

TEST_CASE("named: a stall is told once, with the ranks that are missing") {
  NamedTable table(options(4));
  CHECK(table.next_stall_ns() == kNever);
  for (const int32_t rank : {0, 3, 1}) hear(table, rank, fresh("layer3.weight", reduction(7)), kMs);
  CHECK(table.next_stall_ns() == 51 * kMs);
  CHECK(table.stalls(50 * kMs).empty());
  CHECK(table.stalls(53 * kMs) ==
        std::vector<std::string>{
            "named submission on comm \"x\": \"layer3.weight\" (allreduce f32 sum x 7) was "
            "submitted by ranks 0, 1 and 3 and not by rank 2 (h2) for 52 ms"});
  CHECK(table.stalls(99 * kMs).empty());
  CHECK(table.next_stall_ns() == kNever);
  CHECK(table.report(101 * kMs) ==
        "\"layer3.weight\" (allreduce f32 sum x 7) was submitted by ranks 0, 1 and 3 and not by "
        "rank 2 (h2) for 100 ms\n");
  NamedNews overdue;
  overdue.overdue.push_back("layer3.weight");
  hear(table, 1, overdue, 200 * kMs);
  const auto answers = table.take();
  CHECK(answers[2].broken.code() == Code::kTimeout);
  CHECK(answers[2].broken.info().rank == 12);
  CHECK(contains(answers[2].broken.message(), "timed out on rank 1 (h1): \"layer3.weight\""));
  CHECK(contains(answers[2].broken.message(), "not by rank 2 (h2)"));
}

TEST_CASE("named: messages are read as they were written, and damaged ones are refused") {
  NamedNews news = fresh("a\n\"b\"", reduction(7, Dtype::kBf16, ReduceOp::kMax), 9);
  news.fresh[0].call.group = "first";
  news.fresh[0].call.group_size = 3;
  news.fresh[0].call.group_index = 2;
  news.known = {1, 2};
  news.overdue = {"c"};
  news.joins = true;
  const std::string packed = pack(news);
  const auto read = dt::training::unpack_news(packed);
  REQUIRE(read.ok());
  CHECK(read.value().fresh[0].call == news.fresh[0].call);
  CHECK(read.value().fresh[0].name == news.fresh[0].name);
  CHECK(read.value().known == news.known);
  CHECK(pack(read.value()) == packed);

  NamedAnswer answer;
  answer.operations.push_back(operation(reduction(5)));
  answer.failures.push_back({"x", dt::Status(Code::kMismatch, "why")});
  answer.report = "lines";
  answer.joined = 3;
  const std::string answered = pack(answer);
  REQUIRE(dt::training::unpack_answer(answered).ok());
  CHECK(pack(dt::training::unpack_answer(answered).value()) == answered);
  for (size_t bytes = 0; bytes < answered.size(); ++bytes) {
    CHECK_FALSE(dt::training::unpack_answer(answered.substr(0, bytes)).ok());
  }
  for (size_t bytes = 0; bytes < packed.size(); ++bytes) {
    CHECK_FALSE(dt::training::unpack_news(packed.substr(0, bytes)).ok());
  }
  CHECK_FALSE(dt::training::unpack_news(packed + "x").ok());
}
