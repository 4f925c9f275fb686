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

/// A group of these names, whose part i has i + 1 elements.
NamedNews group(const std::vector<std::string>& names) {
  NamedNews news;
  for (size_t i = 0; i < names.size(); ++i) {
    NamedCall call = reduction(static_cast<int64_t>(i) + 1);
    call.group_size = static_cast<int32_t>(names.size());
    call.group_index = static_cast<int32_t>(i);
    call.group = names[0];
    news.fresh.push_back({names[i], call});
  }
  return news;
}

using Names = std::vector<std::string>;

Names released(const NamedAnswer& answer) {
  Names names;
  for (const auto& each : answer.operations) names.push_back(each.name);
  return names;
}

/// With this code.
Names failed(const NamedAnswer& answer, Code code) {
  Names names;
  for (const auto& each : answer.failures) {
    if (each.status.code() == code) names.push_back(each.name);
  }
  return names;
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

TEST_CASE("named: a rank that has the name no more cannot say that it is overdue") {
  NamedTable table(options(2));
  NamedNews overdue;
  overdue.overdue.push_back("a");
  for (const int32_t rank : {0, 1}) hear(table, rank, fresh("a", reduction(1)));
  CHECK(released(table.take()[1]) == Names{"a"});
  // Rank 0 has carried it out and submits it again; rank 1 wrote this while the answer was coming.
  hear(table, 0, fresh("a", reduction(1), 1));
  hear(table, 1, overdue);
  CHECK(table.due_ns() == kNever);
  hear(table, 0, overdue);
  CHECK(table.take()[1].broken.code() == Code::kTimeout);
}

TEST_CASE("named: a group is released once all ranks have all of it, in its order") {
  NamedTable table(options(2));
  hear(table, 0, group({"b", "a"}));
  hear(table, 1, fresh("c", reduction(1)));
  CHECK(table.due_ns() == kNever);
  hear(table, 1, group({"b", "a"}));
  const auto answers = table.take();
  CHECK(released(answers[1]) == Names{"b", "a"});
  CHECK(answers[1].failures.empty());
}

TEST_CASE("named: where a name of a group differs all of it fails, and the next group goes") {
  NamedTable table(options(3));
  for (const int32_t rank : {0, 2}) hear(table, rank, group({"a", "b", "c"}));
  NamedNews other = group({"a", "b", "c"});
  other.fresh[1].call.count = 9;
  hear(table, 1, other);
  const auto answers = table.take();
  for (const NamedAnswer& answer : answers) {
    CHECK(answer.operations.empty());
    CHECK(failed(answer, Code::kMismatch) == Names{"b", "a", "c"});
    CHECK(contains(answer.failures[2].status.message(),
                   "\"c\" is in the group of \"a\", of which another failed"));
  }
  for (const int32_t rank : {1, 0, 2}) hear(table, rank, group({"a", "b", "c"}));
  CHECK(released(table.take()[0]) == Names{"a", "b", "c"});
}

TEST_CASE("named: a group on one rank that another submits one by one leaves nothing behind") {
  NamedTable table(options(2));
  hear(table, 1, fresh("a", reduction(1)));
  hear(table, 0, group({"a", "b"}));
  CHECK(failed(table.take()[0], Code::kMismatch) == Names{"a"});
  // Rank 0 goes on with another group of that name, which has nothing to do with this "b".
  hear(table, 0, group({"a", "c"}));
  hear(table, 1, fresh("b", reduction(2)));
  CHECK(failed(table.take()[1], Code::kMismatch) == Names{"b"});
  hear(table, 1, group({"a", "c"}));
  CHECK(released(table.take()[0]) == Names{"a", "c"});
  for (const int32_t rank : {0, 1}) hear(table, rank, group({"a", "b"}));
  const auto answers = table.take();
  CHECK(released(answers[0]) == Names{"a", "b"});
  CHECK(answers[0].failures.empty());
}

TEST_CASE("named: what ranks have in groups of different names fails in both") {
  NamedTable table(options(2));
  hear(table, 0, group({"a", "x"}));
  hear(table, 1, group({"b", "x"}));
  CHECK(failed(table.take()[0], Code::kMismatch) == Names{"x"});
  // "a" and "b" fail once both ranks have them, and so does all that comes with them.
  hear(table, 0, fresh("b", reduction(1)));
  CHECK(failed(table.take()[1], Code::kMismatch) == Names{"b"});
  hear(table, 1, group({"a", "x"}));
  const auto first = table.take();
  CHECK(failed(first[0], Code::kMismatch) == Names{"a"});
  CHECK(first[0].operations.empty());
  hear(table, 0, fresh("x", reduction(2)));
  CHECK(failed(table.take()[1], Code::kMismatch) == Names{"x"});
  for (const int32_t rank : {0, 1}) hear(table, rank, group({"a", "x"}));
  CHECK(released(table.take()[1]) == Names{"a", "x"});
}

TEST_CASE("named: ranks that join give zeros, also to groups") {
  NamedTable table(options(3));
  NamedNews joins;
  joins.joins = true;
  hear(table, 0, group({"a", "b"}));
  hear(table, 2, group({"a", "b"}));
  hear(table, 1, joins);
  CHECK(released(table.take()[1]) == Names{"a", "b"});
  // A joined rank gives zeros, which would change a maximum: the operation fails, and its group.
  for (const int32_t rank : {0, 2}) {
    NamedNews news = group({"a", "b", "c"});
    news.fresh[1].call.op = ReduceOp::kMax;
    hear(table, rank, news);
  }
  const auto answers = table.take();
  CHECK(failed(answers[2], Code::kUnsupported) == Names{"b", "a", "c"});
  CHECK(contains(answers[2].failures[0].status.message(), "rank 1 (h1) has joined"));
  hear(table, 0, joins);
  CHECK(table.due_ns() == kNever);
  hear(table, 2, joins);
  for (const NamedAnswer& answer : table.take()) CHECK(answer.joined == 2);
  // From then on they count again.
  for (const int32_t rank : {0, 2}) hear(table, rank, fresh("a", reduction(1)));
  CHECK(table.due_ns() == kNever);
  hear(table, 1, fresh("a", reduction(1)));
  CHECK(released(table.take()[0]) == Names{"a"});
}

TEST_CASE("named: ranks that differ are named, also behind one that has joined") {
  NamedTable table(options(3));
  NamedNews joins;
  joins.joins = true;
  hear(table, 0, joins);
  hear(table, 1, fresh("a", reduction(1)));
  hear(table, 2, fresh("a", reduction(2)));
  const auto answers = table.take();
  CHECK(failed(answers[1], Code::kMismatch) == Names{"a"});
  const dt::ErrorInfo info = answers[1].failures[0].status.info();
  CHECK(info.rank == 12);
  CHECK(info.host == "h2");
}

TEST_CASE("named: what waits when a rank leaves is aborted, and so is what comes later") {
  NamedTable table(options(2));
  NamedNews leaves;
  leaves.leaves = true;
  // Of this group "a" is held, and the ranks differ in the other.
  hear(table, 0, group({"a", "b"}));
  hear(table, 1, group({"a", "c"}));
  hear(table, 1, leaves);
  CHECK(table.has_left(1));
  CHECK_FALSE(table.all_left());
  auto answers = table.take();
  CHECK(answers[1].may_end);
  CHECK_FALSE(answers[0].may_end);
  CHECK(failed(answers[0], Code::kAborted) == Names{"b", "a"});
  CHECK(failed(answers[1], Code::kAborted) == Names{"c", "a"});
  CHECK(answers[0].failures[0].status.info().rank == 11);
  CHECK(contains(answers[0].failures[0].status.message(), "rank 1 (h1) destroyed its part"));
  hear(table, 0, fresh("d", reduction(1)));
  answers = table.take();
  CHECK(failed(answers[0], Code::kAborted) == Names{"d"});
  CHECK(answers[1].empty());
  hear(table, 0, leaves);
  CHECK(table.all_left());
}

TEST_CASE("named: a rank that leaves while others have joined ends all") {
  NamedTable table(options(2));
  NamedNews joins;
  joins.joins = true;
  NamedNews leaves;
  leaves.leaves = true;
  hear(table, 0, joins);
  hear(table, 1, leaves);
  CHECK(table.take()[0].broken.code() == Code::kAborted);
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
