// SPDX-License-Identifier: Apache-2.0
#include "store/join.h"

#include <doctest/doctest.h>

#include "store/protocol.h"

using namespace dt;
using namespace dt::store;

namespace {

constexpr int64_t kMsNs = 1'000'000;

std::string host_of(int32_t rank) { return rank < 3 ? "hostA" : "hostB"; }

JoinRecord record_of(int32_t rank, int32_t world_size) {
  JoinRecord record;
  record.rank = rank;
  record.world_size = world_size;
  record.host_name = host_of(rank);
  record.host_id = "id " + record.host_name;
  record.pid = 12 + rank;
  return record;
}

// A table with a clock, where rank r's connection is number 100 + r.
struct Table {
  JoinTable joins;
  Answers answers;
  int32_t world_size;
  int64_t now_ns = 0;

  explicit Table(int32_t size, int64_t timeout_ms = -1)
      : joins({"a", 2, size, 77, timeout_ms}), world_size(size) {}

  static uint64_t client(int32_t rank) { return 100 + static_cast<uint64_t>(rank); }

  Hello hello_of(int32_t rank) const {
    Hello hello;
    hello.protocol = kProtocolVersion;
    hello.job_id = "a";
    hello.attempt = 2;
    hello.member = {rank, host_of(rank), 12 + rank};
    hello.world_size = world_size;
    hello.nonce = client(rank);
    hello.dialled = "127.0.0.1:4711";
    return hello;
  }
  Status hello(int32_t rank) {
    std::optional<uint64_t> superseded;
    return joins.admit(hello_of(rank), client(rank), &superseded);
  }
  void join(int32_t rank, int64_t timeout_ms = -1) {
    join(record_of(rank, world_size), timeout_ms);
  }
  void join(const JoinRecord& record, int64_t timeout_ms = -1) {
    if (Status status = hello(record.rank); !status.ok()) FAIL(status.message());
    joins.join({client(record.rank), 1}, record, Patience::starting(now_ns, timeout_ms), now_ns,
               &answers);
  }
  // Everybody joins, and the verdicts are forgotten.
  void join_all() {
    for (int32_t rank = 0; rank < world_size; ++rank) join(rank);
    REQUIRE(joins.decided());
    answers.clear();
  }
  std::optional<Failure> lose(int32_t rank) {
    return joins.lost(
        client(rank),
        {"closed its connection to the store without a goodbye: the process ended, was killed, or "
         "lost its network",
         "allreduce", 7},
        &answers);
  }
  bool goodbye(int32_t rank, int64_t timeout_ms = -1) {
    return joins.goodbye({client(rank), 2}, Patience::starting(now_ns, timeout_ms), now_ns,
                         &answers);
  }
};

}  // namespace

TEST_CASE("JoinTable: the verdict numbers hosts by lowest rank and local ranks by rank") {
  for (const int32_t world_size : {1, 2, 5, 64}) {
    Table table(world_size);
    for (int32_t rank = world_size - 1; rank >= 0; --rank) {  // the order of arrival is no matter
      CHECK(table.answers.empty());
      JoinRecord record = record_of(rank, world_size);
      record.host_id = "host " + std::to_string(rank % 3);  // ranks alternate over three hosts
      table.join(record);
    }
    REQUIRE(table.answers.size() == static_cast<size_t>(world_size));
    for (int32_t rank = 0; rank < world_size; ++rank) {
      const Answer& answer = table.answers[static_cast<size_t>(rank)];
      CHECK(answer.ticket == Ticket{Table::client(rank), 1});
      Verdict verdict;
      REQUIRE(answer.shared != nullptr);
      CHECK(answer.shared == table.answers[0].shared);  // the hosts are kept once
      REQUIRE(decode(answer.payload + *answer.shared, &verdict));
      CHECK(verdict.attempt == 2);
      CHECK(verdict.session == 77);
      CHECK(verdict.world_size == world_size);
      CHECK(verdict.node_rank == rank % 3);
      CHECK(verdict.node_count == std::min(world_size, 3));
      CHECK(verdict.local_rank == rank / 3);
      CHECK(verdict.local_size == (world_size - rank % 3 + 2) / 3);
      REQUIRE(verdict.locals.size() == static_cast<size_t>(verdict.local_size));
      CHECK(verdict.locals[static_cast<size_t>(verdict.local_rank)].rank == rank);
      CHECK(verdict.locals[static_cast<size_t>(verdict.local_rank)].pid == 12 + rank);
    }
    CHECK(table.joins.take_records().size() == static_cast<size_t>(world_size));
    CHECK(table.joins.take_records().empty());
  }
}

TEST_CASE("place_ranks: hints win only when those of all ranks fit together") {
  std::vector<JoinRecord> records;
  for (int32_t rank = 0; rank < 4; ++rank) {
    records.push_back(record_of(rank, 4));
    records.back().host_id = rank % 2 == 0 ? "even" : "odd";
    records.back().node_rank = rank % 2 == 0 ? 1 : 0;
    records.back().local_rank = rank < 2 ? 1 : 0;
  }
  auto places = place_ranks(records);
  CHECK(places[0].node_rank == 1);
  CHECK(places[1].node_rank == 0);
  CHECK(places[0].local_rank == 1);
  CHECK(places[2].local_rank == 0);
  records[3].node_rank = 2;   // differs within its host
  records[3].local_rank = 1;  // twice on its host
  places = place_ranks(records);
  CHECK(places[0].node_rank == 0);
  CHECK(places[1].node_rank == 1);
  CHECK(places[0].local_rank == 0);
  CHECK(places[2].local_rank == 1);
  for (JoinRecord& record : records) record.node_rank = 0;  // two hosts with one number
  CHECK(place_ranks(records)[1].node_rank == 1);
}

TEST_CASE("JoinTable: the verdict lists the ranks of a host in ascending order") {
  Table table(4);
  for (int32_t rank = 0; rank < 4; ++rank) {
    JoinRecord record = record_of(rank, 4);
    record.host_id = "one";
    record.local_rank = rank == 1 || rank == 2 ? 3 - rank : rank;
    table.join(record);
  }
  REQUIRE(table.answers.size() == 4);
  for (size_t rank = 0; rank < 4; ++rank) {
    Verdict verdict;
    REQUIRE(decode(table.answers[rank].payload + *table.answers[rank].shared, &verdict));
    CHECK(verdict.local_rank ==
          (rank == 1 || rank == 2 ? 3 - static_cast<int32_t>(rank) : static_cast<int32_t>(rank)));
    REQUIRE(verdict.locals.size() == 4);
    for (int32_t each = 0; each < 4; ++each) {
      CHECK(verdict.locals[static_cast<size_t>(each)].rank == each);
      CHECK(verdict.locals[static_cast<size_t>(each)].pid == 12 + each);
    }
  }
}

TEST_CASE("JoinTable: differing configuration fails every rank with one text") {
  Table table(4);
  for (int32_t rank = 0; rank < 4; ++rank) {
    JoinRecord record = record_of(rank, 4);
    record.equal_config = {{"reducer.bucket_cap_bytes", rank == 3 ? "1048576" : "26214400"},
                           {"same", "1"}};
    table.join(record);
  }
  REQUIRE(table.answers.size() == 4);
  for (const Answer& answer : table.answers) {
    CHECK(answer.status.code() == Code::kConfig);
    CHECK(answer.status.message() ==
          "config differs between ranks: reducer.bucket_cap_bytes is 26214400 on ranks 0-2, "
          "1048576 on rank 3 (hostB); give every rank the same values");
    CHECK(answer.status.info().rank == 3);
  }
}

TEST_CASE("compare_configs: a host is named once, though its ranks do not follow each other") {
  std::vector<JoinRecord> records;
  for (int32_t rank = 0; rank < 7; ++rank) {
    JoinRecord record = record_of(rank, 7);
    record.host_name = rank % 2 == 0 ? "hostA" : "hostB";
    record.equal_config = {{"a", rank < 3 ? "1" : "2"}};
    records.push_back(std::move(record));
  }
  CHECK(compare_configs(records).message() ==
        "config differs between ranks: a is 2 on ranks 3-6, 1 on ranks 0-2 (hostA, hostB); give "
        "every rank the same values");
}

TEST_CASE("compare_configs: a key that some ranks lack, and several keys") {
  std::vector<JoinRecord> records = {record_of(0, 3), record_of(1, 3), record_of(2, 3)};
  CHECK(compare_configs(records).ok());
  records[1].equal_config = {{"b", "x"}, {"a", "1"}};
  records[2].equal_config = {{"a", "2"}};
  CHECK(compare_configs(records).message() ==
        "config differs between ranks: a is not set on rank 0, 1 on rank 1 (hostA), 2 on rank 2 "
        "(hostA); b is not set on ranks 0, 2, x on rank 1 (hostA); give every rank the same "
        "values");
}

TEST_CASE("JoinTable: who is missing is said after a while, and again after twice as long") {
  JoinSetup setup{"a", 2, 2, 77};
  setup.warn_ms = 30'000;
  Table table(2);
  table.joins = JoinTable(setup);
  CHECK(table.joins.late(40'000 * kMsNs).empty());
  table.now_ns = 1'000 * kMsNs;
  table.join(0);
  CHECK(table.joins.next_deadline_ns() == 31'000 * kMsNs);
  CHECK(table.joins.late(30'999 * kMsNs).empty());
  CHECK(table.joins.late(31'000 * kMsNs) ==
        "1 of 2 ranks joined within 30.0 s; missing rank 1; joined: 0 (hostA pid 12)");
  CHECK(table.joins.next_deadline_ns() == 61'000 * kMsNs);
  CHECK(table.joins.late(60'999 * kMsNs).empty());
  CHECK(table.joins.late(61'000 * kMsNs).find("within 60.0 s") != std::string::npos);
  CHECK(table.joins.next_deadline_ns() == 121'000 * kMsNs);
  table.join(1);
  CHECK(table.joins.decided());
  CHECK(table.joins.late(200'000 * kMsNs).empty());
}

TEST_CASE("JoinTable: one joiner's deadline tells all who is missing, and late ranks too") {
  Table table(4);
  table.join(0, 5000);
  table.now_ns = 1000 * kMsNs;
  table.join(2, 60'000);
  CHECK(table.joins.next_deadline_ns() == 5000 * kMsNs);
  table.joins.expire(5000 * kMsNs - 1, &table.answers);
  CHECK(table.answers.empty());
  table.joins.expire(5000 * kMsNs, &table.answers);
  REQUIRE(table.answers.size() == 2);
  for (const Answer& answer : table.answers) {
    CHECK(answer.status.code() == Code::kTimeout);
    CHECK(answer.status.message() ==
          "2 of 4 ranks joined within 5.0 s; missing ranks 1, 3; joined: 0 (hostA pid 12), 2 "
          "(hostA pid 14)");
  }
  table.join(1);
  REQUIRE(table.answers.size() == 3);
  CHECK(table.answers[2].status.message() == table.answers[0].status.message());
  CHECK(table.joins.next_deadline_ns() == kNeverNs);
}

TEST_CASE("JoinTable: the limit in the message is the whole one, not what was left at the join") {
  Table table(2);
  JoinRecord record = record_of(0, 2);
  record.limit_ms = 2000;
  table.join(record, 900);  // that is left
  table.joins.expire(900 * kMsNs, &table.answers);
  REQUIRE(table.answers.size() == 1);
  CHECK(table.answers[0].status.message() ==
        "1 of 2 ranks joined within 2.0 s; missing rank 1; joined: 0 (hostA pid 12)");
}

TEST_CASE("JoinTable: the server's own limit counts from the first join") {
  Table table(2, 3000);
  table.now_ns = 500 * kMsNs;
  table.join(1);
  CHECK(table.joins.next_deadline_ns() == 3500 * kMsNs);
  table.joins.expire(3500 * kMsNs, &table.answers);
  REQUIRE(table.answers.size() == 1);
  CHECK(table.answers[0].status.message() ==
        "1 of 2 ranks joined within 3.0 s; missing rank 0; joined: 1 (hostA pid 13)");
}

TEST_CASE("JoinTable: a death before the verdict frees the slot, or is told when all others wait") {
  Table table(3);
  table.join(0);
  table.join(1);
  CHECK_FALSE(table.lose(1).has_value());
  CHECK(table.answers.empty());
  table.join(1);  // it came back
  CHECK(table.answers.empty());
  CHECK_FALSE(table.lose(1).has_value());
  table.join(2);
  REQUIRE(table.answers.size() == 2);
  for (const Answer& answer : table.answers) {
    CHECK(answer.status.code() == Code::kPeerLost);
    CHECK(answer.status.message() ==
          "join: rank 1 (hostA pid 13) died after joining, before all ranks were there; look at "
          "its log, then start a new attempt");
    CHECK(answer.status.info().rank == 1);
    CHECK(answer.status.info().pid == 13);
  }
}

TEST_CASE(
    "JoinTable: a replacement that has only said hello is waited for, until it is lost, too") {
  Table table(3);
  table.join(0);
  table.join(1);
  CHECK_FALSE(table.lose(1).has_value());
  REQUIRE(table.hello(1).ok());
  table.join(2);
  CHECK(table.answers.empty());
  table.joins.join({Table::client(1), 1}, record_of(1, 3), {}, 0, &table.answers);
  CHECK(table.joins.decided());
  REQUIRE(table.answers.size() == 3);
  for (const Answer& answer : table.answers) CHECK(answer.status.ok());

  Table lost(3);
  lost.join(0);
  lost.join(1);
  CHECK_FALSE(lost.lose(1).has_value());
  REQUIRE(lost.hello(1).ok());
  lost.join(2);
  CHECK(lost.answers.empty());
  CHECK_FALSE(lost.lose(1).has_value());
  REQUIRE(lost.answers.size() == 2);
  for (const Answer& answer : lost.answers) {
    CHECK(answer.status.code() == Code::kPeerLost);
    CHECK(answer.status.message() ==
          "join: rank 1 (hostA pid 13) died after joining, before all ranks were there; look at "
          "its log, then start a new attempt");
  }
}

TEST_CASE(
    "JoinTable: the end of a process that has not joined fails the join, also for later ranks") {
  Table table(3);
  table.join(0);
  table.joins.process_ended({7, "hostA", 9}, "exited with code 0 after 0.3 s", &table.answers);
  CHECK(table.answers.empty());  // no rank of this job
  table.joins.process_ended({1, "hostA", 13}, "killed by SIGKILL after 0.3 s", &table.answers);
  table.joins.process_ended({0, "hostA", 12}, "exited with code 1 after 0.4 s", &table.answers);
  table.join(2);
  REQUIRE(table.answers.size() == 2);
  for (const Answer& answer : table.answers) {
    CHECK(answer.status.code() == Code::kPeerLost);
    CHECK(answer.status.message() ==
          "join: rank 1 (hostA pid 13) killed by SIGKILL after 0.3 s, before all ranks were there; "
          "look at its log, then start a new attempt");
    CHECK(answer.status.info().rank == 1);
    CHECK(answer.status.info().pid == 13);
  }
}

TEST_CASE("JoinTable: the end of a wrapper is ignored when the program it started is connected") {
  Table table(2);
  table.join(1);
  table.joins.process_ended({1, "hostA", 99}, "exited with code 0 after 0.3 s", &table.answers);
  CHECK(table.answers.empty());
  table.join(0);
  REQUIRE(table.answers.size() == 2);
  CHECK(table.answers[0].status.ok());
}

TEST_CASE("JoinTable: the end of a process after the verdict matters to the next job only") {
  Table table(2);
  table.join(0);
  table.join(1);
  REQUIRE(table.answers.size() == 2);
  table.answers.clear();
  table.joins.process_ended({1, "hostA", 13}, "exited with code 0 after 0.3 s", &table.answers);
  CHECK(table.answers.empty());
  Table next(2);
  next.joins.set_first_ended(table.joins.first_ended());
  next.join(0);
  REQUIRE(next.answers.size() == 1);
  CHECK(next.answers[0].status.code() == Code::kPeerLost);
}

TEST_CASE("JoinTable: hello is refused with both sides; the same client may say it again") {
  Table table(4);
  CHECK(table.hello(1).ok());
  Hello other = table.hello_of(1);
  other.nonce = 5;
  other.member.host = "hostC";
  std::optional<uint64_t> superseded;
  const Status duplicate = table.joins.admit(other, 5, &superseded);
  CHECK(duplicate.message() ==
        "duplicate rank 1: (hostA pid 13) has it, and (hostC pid 13) claims it too and is refused; "
        "give every process its own rank");
  CHECK_FALSE(superseded.has_value());
  CHECK(table.joins.admit(table.hello_of(1), 6, &superseded).ok());
  CHECK(superseded == Table::client(1));
  Hello old = table.hello_of(2);
  old.protocol = 9;
  const Status version = table.joins.admit(old, 7, &superseded);
  CHECK(version.code() == Code::kVersion);
  CHECK(
      version.message() ==
      dt::format("store at 127.0.0.1:4711 speaks protocol %u; rank 2 (hostA pid 14) speaks 9; use "
                 "the same release of dt everywhere",
                 dt::store::kProtocolVersion));
  Hello negative = table.hello_of(-2);
  CHECK(table.joins.admit(negative, 8, &superseded).message().find("out of range") !=
        std::string::npos);
}

TEST_CASE("JoinTable: a join must fit its hello, come once, and come from a rank") {
  Table table(2);
  REQUIRE(table.hello(0).ok());
  table.joins.join({Table::client(0), 1}, record_of(1, 2), {}, 0, &table.answers);
  REQUIRE(table.answers.size() == 1);
  CHECK(table.answers[0].status.message() ==
        "rank 0 (hostA pid 12) of 2 joins as rank 1 of 2; give hello and join the same values");
  table.joins.join({Table::client(0), 2}, record_of(0, 2), {}, 0, &table.answers);
  table.joins.join({Table::client(0), 3}, record_of(0, 2), {}, 0, &table.answers);
  REQUIRE(table.answers.size() == 2);
  CHECK(table.answers[1].status.message() ==
        "rank 0 (hostA pid 12) has joined already; join only once");
  table.joins.join({999, 1}, record_of(1, 2), {}, 0, &table.answers);
  CHECK(table.answers[2].status.code() == Code::kInvalidState);
  table.joins.cancel({Table::client(0), 2});  // gave up waiting: may join again
  table.joins.join({Table::client(0), 4}, record_of(0, 2), {}, 0, &table.answers);
  table.join(1);
  CHECK(table.joins.decided());
}

TEST_CASE("JoinTable: goodbye ends when all have left, and a death in it is reported") {
  Table table(3);
  CHECK(table.hello(0).ok());
  CHECK_FALSE(table.goodbye(0));  // nobody counts on it yet
  table.join_all();
  CHECK(table.goodbye(0));
  CHECK(table.goodbye(1));
  CHECK(table.answers.empty());
  CHECK_FALSE(table.goodbye(1));
  REQUIRE(table.answers.size() == 1);
  CHECK(table.answers[0].status.message() ==
        "rank 1 (hostA pid 13) is joining or has said goodbye already");
  table.answers.clear();
  CHECK_FALSE(table.lose(1).has_value());  // its end was announced
  table.goodbye(2);
  REQUIRE(table.answers.size() == 2);  // ranks 0 and 2
  for (const Answer& answer : table.answers) CHECK(answer.status.ok());

  Table dying(3);
  dying.join_all();
  dying.goodbye(0);
  const std::optional<Failure> death = dying.lose(1);
  REQUIRE(death.has_value());
  CHECK(death->info.message ==
        "rank 1 (hostA pid 13) closed its connection to the store without a goodbye: the process "
        "ended, was killed, or lost its network; look at its log, then go on with dt_comm_shrink "
        "or start the job again");
  CHECK(death->info.operation == "allreduce");
  CHECK(death->info.sequence == 7);
  CHECK(dying.answers.empty());
  dying.goodbye(2);
  REQUIRE(dying.answers.size() == 2);
  for (const Answer& answer : dying.answers) CHECK(answer.status.code() == Code::kPeerLost);
  CHECK(dying.hello(1).message() ==
        "rank 1 (hostA pid 13) has died in attempt 2; (hostA pid 13) cannot take its place: start "
        "a new attempt");
}

TEST_CASE("JoinTable: goodbye's deadline names who is still there") {
  Table table(4);
  table.join_all();
  table.goodbye(1, 2000);
  table.goodbye(2, -1);
  CHECK(table.joins.next_deadline_ns() == 2000 * kMsNs);
  table.joins.expire(2000 * kMsNs, &table.answers);
  REQUIRE(table.answers.size() == 1);
  CHECK(table.answers[0].status.code() == Code::kTimeout);
  CHECK(table.answers[0].status.message() ==
        "goodbye: 2 of 4 ranks left within 2.0 s; still there: rank 0 (hostA pid 12), rank 3 "
        "(hostB pid 15)");
  CHECK_FALSE(table.lose(1).has_value());  // it said it, all the same
}
