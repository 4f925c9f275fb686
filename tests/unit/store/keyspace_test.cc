// SPDX-License-Identifier: Apache-2.0
#include "store/keyspace.h"

#include <doctest/doctest.h>

using namespace dt;
using namespace dt::store;

namespace {

constexpr int64_t kMsInNs = 1'000'000;

}  // namespace

TEST_CASE("Keyspace: a set answers exactly the waits that it completes") {
  Keyspace keys;
  Answers answers;
  keys.wait({1, 10}, {"a"}, WaitKind::kValue, {}, 0, &answers);
  keys.wait({2, 20}, {"a", "b", "a"}, WaitKind::kExists, {}, 0, &answers);
  CHECK(answers.empty());
  CHECK(keys.set("a", "1", &answers).ok());
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].ticket == Ticket{1, 10});
  CHECK(*answers[0].shared == "1");
  CHECK(keys.erase("a"));  // it was there once: that is what the wait asked
  CHECK(keys.add("b", 1, &answers).value() == 1);
  REQUIRE(answers.size() == 2);
  CHECK(answers[1].ticket == Ticket{2, 20});
  CHECK(keys.pending() == 0);
}

TEST_CASE("Keyspace: waits end by patience, cancel and the end of the client") {
  Keyspace keys;
  Answers answers;
  keys.wait({1, 1}, {"a"}, WaitKind::kValue, Patience::starting(0, 5), 0, &answers);
  keys.wait({1, 2}, {"a"}, WaitKind::kValue, {}, 0, &answers);
  keys.wait({1, 3}, {"b"}, WaitKind::kValue, Patience::starting(0, 7), 0, &answers);
  keys.wait({2, 1}, {"b"}, WaitKind::kValue, {}, 0, &answers);
  CHECK(keys.next_deadline_ns() == 5 * kMsInNs);
  keys.expire(5 * kMsInNs - 1, &answers);
  CHECK(answers.empty());
  keys.expire(5 * kMsInNs, &answers);
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].status.code() == Code::kTimeout);
  keys.cancel({1, 2});
  keys.drop(1);
  CHECK(keys.next_deadline_ns() == kNeverNs);
  CHECK(keys.pending() == 1);
  CHECK(keys.set("a", "", &answers).ok());
  CHECK(keys.set("b", "", &answers).ok());
  REQUIRE(answers.size() == 2);
  CHECK(answers[1].ticket == Ticket{2, 1});
}

TEST_CASE("Keyspace: a barrier forgets whom it lost and counts anew") {
  Keyspace keys;
  Answers answers;
  keys.barrier({1, 1}, "rank 0", "b", 2, {}, 0, &answers);
  keys.drop(1);
  keys.barrier({2, 1}, "rank 1", "b", 2, {}, 0, &answers);
  CHECK(answers.empty());
  keys.barrier({3, 1}, "rank 2", "b", 2, {}, 0, &answers);
  REQUIRE(answers.size() == 2);
  CHECK(answers[0].status.ok());
  keys.barrier({3, 2}, "rank 2", "b", 5, {}, 0, &answers);  // free again, another count
  CHECK(answers.size() == 2);
  keys.barrier({3, 3}, "rank 2", "one", 1, {}, 0, &answers);
  CHECK(answers.size() == 3);
}

TEST_CASE("Keyspace: memory, waits per client and request numbers have limits") {
  constexpr size_t kMax = 1000;
  Keyspace keys(kMax);
  Answers answers;
  CHECK(keys.set("k", std::string(600, 'v'), &answers).ok());
  const Status full = keys.set("other", std::string(90, 'v'), &answers);
  CHECK(full.code() == Code::kOutOfMemory);
  CHECK(full.message() ==
        "the store is full: 857 of 1000 bytes are used and 351 more were asked for; delete keys "
        "that are no longer needed, or raise store.memory_mb");
  CHECK(keys.set("k", std::string(743, 'w'), &answers).ok());  // replacing counts the difference
  CHECK(keys.multi_set({"k", "l"}, {"", "123456789"}, &answers).code() == Code::kOutOfMemory);
  CHECK(keys.find("k")->size() == 743);  // all or nothing
  CHECK(keys.erase("k"));
  keys.wait({1, 1}, {"x"}, WaitKind::kValue, {}, 0, &answers);
  keys.wait({1, 1}, {"y"}, WaitKind::kValue, {}, 0, &answers);
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].status.message() == "the request's number is in use on this connection");

  Keyspace wide;
  for (uint64_t id = 0; id <= Keyspace::kMaxWaitsPerClient; ++id) {
    wide.wait({1, id}, {"x"}, WaitKind::kValue, {}, 0, &answers);
  }
  REQUIRE(answers.size() == 2);
  CHECK(answers[1].status.message() ==
        "this connection has 4096 calls waiting in the store, the limit");
  wide.drop(1);
  CHECK(wide.pending() == 0);
}

TEST_CASE("Keyspace: guests fill their own share only") {
  Keyspace keys(2000, 1000);
  Answers answers;
  CHECK(keys.set("torch/a", std::string(700, 'v'), &answers).ok());
  CHECK(keys.set("torch/b", "", &answers).message() ==
        "the share of PyTorch's clients in the store is full: 963 of 1000 bytes are used and 263 "
        "more were asked for; delete keys that are no longer needed, or raise store.memory_mb");
  CHECK(keys.reserve(38).code() == Code::kOutOfMemory);
  keys.wait({1, 1}, {"torch/b"}, WaitKind::kNoticed, {}, 0, &answers);
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].status.code() == Code::kOutOfMemory);
  keys.wait({1, 2}, {"torch/b"}, WaitKind::kValue, {}, 0, &answers);  // a member
  CHECK(answers.size() == 1);
  CHECK(keys.multi_set({"a", "torch/b"}, {"", ""}, &answers).code() == Code::kOutOfMemory);
  CHECK(keys.set("a", "", &answers).ok());
  CHECK(keys.erase("torch/a"));
  CHECK(keys.set("torch/b", "", &answers).ok());
  CHECK(answers.size() == 2);
}

TEST_CASE("Keyspace: a value is kept once for all who are told it, and counted until then") {
  Keyspace keys;
  Answers answers;
  keys.wait({1, 1}, {"k"}, WaitKind::kValue, {}, 0, &answers);
  keys.wait({2, 1}, {"k"}, WaitKind::kValue, {}, 0, &answers);
  CHECK(keys.set("k", "value", &answers).ok());
  keys.wait({3, 1}, {"k"}, WaitKind::kValue, {}, 0, &answers);
  REQUIRE(answers.size() == 3);
  for (const Answer& answer : answers) CHECK(answer.shared.get() == keys.find("k"));
  CHECK(keys.loose_bytes(Owner::kMembers) == 0);
  CHECK(keys.set("k", "other", &answers).ok());
  CHECK(*answers[0].shared == "value");
  CHECK(keys.loose_bytes(Owner::kMembers) == 5);
  CHECK(keys.loose_bytes(Owner::kGuests) == 0);
  answers.clear();
  CHECK(keys.loose_bytes(Owner::kMembers) == 0);
  const SharedText last = keys.share("k");
  CHECK(keys.erase("k"));
  CHECK(keys.loose_bytes(Owner::kMembers) == 5);
}

TEST_CASE("Keyspace: add refuses what is no number and what does not fit") {
  Keyspace keys;
  Answers answers;
  for (const char* text : {"", " 1", "1 ", "0x1", "9223372036854775808"}) {
    CHECK(keys.set("k", text, &answers).ok());
    CHECK(keys.add("k", 1, &answers).status().code() == Code::kInvalidArgument);
    CHECK(*keys.find("k") == text);
  }
  CHECK(keys.set("k", "9223372036854775807", &answers).ok());
  CHECK(keys.add("k", 1, &answers).status().message() ==
        "add to key \"k\": the sum does not fit into 64 bits");
  CHECK(keys.add("k", -1, &answers).value() == INT64_MAX - 1);
}

TEST_CASE("keyspace: a notice counts as a key's coming for those who asked for that") {
  Keyspace keys;
  Answers answers;
  keys.wait({1, 1}, {"q"}, WaitKind::kNoticed, {}, 0, &answers);
  keys.wait({2, 1}, {"q", "x"}, WaitKind::kNoticed, {}, 0, &answers);
  keys.wait({3, 1}, {"q"}, WaitKind::kNoticed, {}, 0, &answers);
  keys.wait({4, 1}, {"q"}, WaitKind::kExists, {}, 0, &answers);
  keys.notice("q", 2, &answers);  // 1, and a half of 2
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].ticket == Ticket{1, 1});
  REQUIRE(keys.set("x", "", &answers).ok());
  CHECK(answers.size() == 2);
  keys.notice("q", 9, &answers);
  CHECK(answers.size() == 3);
  CHECK(keys.pending() == 1);
  CHECK(keys.find("q") == nullptr);
  keys.notice("nobody", 1, &answers);
  CHECK(answers.size() == 3);
}

TEST_CASE("keyspace: each change of a value is told before it happens") {
  Keyspace keys;
  Answers answers;
  std::vector<std::string> told;
  keys.set_on_change(
      [&](const std::string& key, const std::string* before, const std::string* after) {
        told.push_back(key + ":" + (before != nullptr ? *before : "-") + ">" +
                       (after != nullptr ? *after : "-"));
      });
  REQUIRE(keys.set("a", "1", &answers).ok());
  REQUIRE(keys.add("a", 1, &answers).ok());
  REQUIRE(keys.compare_set("a", "7", "8", &answers).ok());
  REQUIRE(keys.compare_set("a", "2", "3", &answers).ok());
  CHECK(keys.erase("a"));
  CHECK_FALSE(keys.erase("a"));
  CHECK(told == std::vector<std::string>{"a:->1", "a:1>2", "a:2>3", "a:3>-"});
  CHECK(keys.count("") == 0);
}
