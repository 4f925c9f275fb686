// SPDX-License-Identifier: Apache-2.0
// What PyTorch's servers answer. The conversations of 1.13 were recorded.
#include "store/torch_service.h"

#include <doctest/doctest.h>

#include <initializer_list>

#include "store/protocol.h"
#include "torch_bytes.h"

using namespace dt;
using namespace dt::store;
using dt::store::test::bytes;

namespace {

// Clients of one service, by number. Each hears what it is sent.
struct Talk {
  Keyspace keys;
  TorchService service{&keys};
  std::map<uint64_t, TorchParser> parsers;
  std::map<uint64_t, std::string> heard;

  void deliver(const Answers& answers) {
    for (const Answer& answer : answers) {
      heard[answer.ticket.first] += TorchService::reply_to_wait(answer);
    }
    for (const Answer& event : service.take_events()) heard[event.ticket.first] += *event.shared;
  }
  // False: the connection would be closed.
  bool say(uint64_t client, const std::string& stream) {
    TorchParser& parser = parsers[client];
    parser.feed(stream.data(), stream.size());
    TorchRequest request;
    while (parser.next(&request)) {
      Answers answers;
      const auto reply = service.handle(client, parser.dialect(), request, &answers);
      heard[client] += reply.ok() ? reply.value().whole() : std::string();
      deliver(answers);
      if (!reply.ok()) return false;
    }
    return parser.status().ok();
  }
  std::string hear(uint64_t client) { return std::exchange(heard[client], {}); }
  std::string ask(uint64_t client, const std::string& hex) {
    REQUIRE(say(client, bytes(hex)));
    return hear(client);
  }
};

std::string new_client(TorchOp op, std::vector<std::string> texts, int64_t number = 0) {
  return encode_torch({op, std::move(texts), number}, TorchDialect::kNew);
}
const std::string kHandshake = bytes("00 cef7853c");

}  // namespace

TEST_CASE("torch service: the recorded conversation of 1.13") {
  Talk talk;
  CHECK(talk.ask(1, "03 0500000000000000 696e69742f 0100000000000000") ==
        bytes("0100000000000000"));
  CHECK(talk.ask(1, "00 0300000000000000 2f6b31 0200000000000000 7631").empty());
  CHECK(talk.ask(1, "05 0100000000000000 0300000000000000 2f6b31") == bytes("00"));
  CHECK(talk.ask(1, "02 0300000000000000 2f6b31") == bytes("0200000000000000 7631"));
  CHECK(talk.ask(1, "03 0400000000000000 2f637472 0500000000000000") == bytes("0500000000000000"));
  CHECK(talk.ask(1, "03 0400000000000000 2f637472 f9ffffffffffffff") == bytes("feffffffffffffff"));
  CHECK(talk.ask(1, "02 0400000000000000 2f637472") == bytes("0200000000000000 2d32"));  // "-2"
  const std::string cs = "01 0300000000000000 2f6373 ";
  CHECK(talk.ask(1, cs + "0000000000000000 0100000000000000 61") == bytes("0100000000000000 61"));
  CHECK(talk.ask(1, cs + "0100000000000000 61 0100000000000000 62") ==
        bytes("0100000000000000 62"));
  CHECK(talk.ask(1, cs + "0100000000000000 78 0100000000000000 79") ==
        bytes("0100000000000000 62"));
  CHECK(
      talk.ask(1, "01 0600000000000000 2f6e6f6b6579 0300000000000000 657870 0100000000000000 79") ==
      bytes("0300000000000000 657870"));
  CHECK(talk.ask(1, "06") == bytes("0400000000000000"));
  CHECK(talk.ask(1, "08 0300000000000000 2f6b31") == bytes("0100000000000000"));
  CHECK(talk.ask(1, "08 0300000000000000 2f6b31") == bytes("0000000000000000"));
  CHECK(talk.ask(1, "05 0200000000000000 0400000000000000 2f637472 0300000000000000 2f6373") ==
        bytes("00"));
  CHECK(talk.ask(1, "04 0100000000000000 0300000000000000 2f6373") == bytes("00"));
  CHECK(talk.ask(1, "04 0200000000000000 0300000000000000 2f6373 0300000000000000 2f7a7a") ==
        bytes("01"));
  CHECK(talk.ask(1, "04 0000000000000000") == bytes("00"));
  CHECK(talk.ask(1, "05 0000000000000000") == bytes("00"));
}

TEST_CASE("torch service: a wait is answered by the last of its keys, not evaluated again") {
  Talk talk;
  const std::string wait = "05 0200000000000000 0300000000000000 2f6d31 0300000000000000 2f6d32";
  const std::string set_m1 = "00 0300000000000000 2f6d31 0000000000000000";
  CHECK(talk.ask(1, wait).empty());
  CHECK(talk.ask(2, set_m1).empty());
  CHECK(talk.ask(2, "08 0300000000000000 2f6d31") == bytes("0100000000000000"));
  CHECK(talk.hear(1).empty());
  // A request behind the wait is answered at once.
  CHECK(talk.ask(1, "06") == bytes("0000000000000000"));
  CHECK(talk.ask(2, "00 0300000000000000 2f6d32 0000000000000000").empty());
  CHECK(talk.hear(1) == bytes("00"));
  // The same key twice counts once.
  CHECK(talk.ask(3, "05 0200000000000000 0100000000000000 78 0100000000000000 78").empty());
  CHECK(talk.ask(2, "03 0100000000000000 78 0100000000000000") == bytes("0100000000000000"));
  CHECK(talk.hear(3) == bytes("00"));
  // Every way of making a key ends waits, compare_set too.
  CHECK(talk.ask(3, "05 0100000000000000 0100000000000000 79").empty());
  talk.ask(2, "01 0100000000000000 79 0000000000000000 0100000000000000 61");
  CHECK(talk.hear(3) == bytes("00"));
}

TEST_CASE("torch service: an answer may be larger than any request, and copies no large value") {
  Talk talk;
  const std::string large(40 << 20, 'a');
  const std::string other(kMaxTorchRequestBytes / 2, 'b');
  Answers none;
  REQUIRE(talk.keys.set("torch/a", large, &none).ok());
  REQUIRE(talk.keys.set("torch/b", other, &none).ok());
  REQUIRE(talk.keys.set("torch/c", "c", &none).ok());
  const auto answer = talk.service.handle(
      1, TorchDialect::kNew, {TorchOp::kMultiGet, {"/c", "/a", "/x", "/b", "/c"}}, &none);
  REQUIRE(answer.ok());
  REQUIRE(answer.value().pieces.size() == 3);
  CHECK(answer.value().pieces[0].shared == talk.keys.share("torch/a"));
  CHECK(answer.value().pieces[1].shared == talk.keys.share("torch/b"));
  std::string expected;
  for (const std::string* text : std::initializer_list<const std::string*>{
           talk.keys.find("torch/c"), &large, nullptr, &other, talk.keys.find("torch/c")}) {
    append_torch_text(&expected, text == nullptr ? std::string() : *text);
  }
  CHECK(answer.value().whole() == expected);
}

TEST_CASE("torch service: add reads the beginning of a text, and wraps") {
  Talk talk;
  REQUIRE(talk.say(1, encode_torch({TorchOp::kSet, {"/n", " 12abc"}}, TorchDialect::kOld)));
  const std::string add = encode_torch({TorchOp::kAdd, {"/n"}, 1}, TorchDialect::kOld);
  REQUIRE(talk.say(1, add));
  CHECK(talk.hear(1) == bytes("0d00000000000000"));
  CHECK(*talk.keys.find("torch/n") == "13");
  REQUIRE(talk.say(1, encode_torch({TorchOp::kSet, {"/n", "+7"}}, TorchDialect::kOld)));
  REQUIRE(talk.say(1, add));
  CHECK(talk.hear(1) == bytes("0800000000000000"));
  REQUIRE(talk.say(1, encode_torch({TorchOp::kAdd, {"/big"}, INT64_MAX}, TorchDialect::kOld)));
  REQUIRE(talk.say(1, encode_torch({TorchOp::kAdd, {"/big"}, 1}, TorchDialect::kOld)));
  CHECK(talk.hear(1) == bytes("ffffffffffffff7f 0000000000000080"));
  for (const char* text : {"", "abc", "+", "-", "+-3", "99999999999999999999"}) {
    CAPTURE(text);
    REQUIRE(talk.say(2, encode_torch({TorchOp::kSet, {"/n", text}}, TorchDialect::kOld)));
    CHECK_FALSE(talk.say(2, add));
    CHECK(*talk.keys.find("torch/n") == text);
    talk.parsers.erase(2);
  }
}

TEST_CASE("torch service: a get of an absent key closes an old client's connection only") {
  Talk talk;
  CHECK_FALSE(talk.say(1, bytes("02 0200000000000000 2f61")));
  CHECK(talk.ask(2, "00 cef7853c 03 0200000000000000 2f61") == bytes("0000000000000000"));
  CHECK(talk.ask(2, "0a 0200000000000000 0200000000000000 2f61 0200000000000000 2f62") ==
        bytes("0000000000000000 0000000000000000"));
}

TEST_CASE("torch service: a conversation of 2.5 and later") {
  Talk talk;
  CHECK(talk.ask(1, "00 cef7853c 0d 34120000") == bytes("34120000"));
  CHECK(talk.ask(1, "04 0500000000000000 696e69742f 0100000000000000") ==
        bytes("0100000000000000"));
  CHECK(talk.ask(1, "01 0300000000000000 2f6b31 0200000000000000 7631").empty());
  CHECK(talk.ask(1, "06 0100000000000000 0300000000000000 2f6b31") == bytes("00"));
  CHECK(talk.ask(1, "03 0300000000000000 2f6b31") == bytes("0200000000000000 7631"));
  // A wait that times out is cancelled; the key's coming is not told later.
  CHECK(talk.ask(1, "06 0100000000000000 0600000000000000 2f6e65766572").empty());
  CHECK(talk.ask(1, "0c") == bytes("01"));
  CHECK(talk.ask(2, "00 cef7853c 01 0600000000000000 2f6e65766572 0000000000000000").empty());
  CHECK(talk.hear(1).empty());
  // append, multi_set, multi_get, erase
  CHECK(talk.ask(1, "09 0300000000000000 2f6b31 0100000000000000 78").empty());
  CHECK(talk.ask(1,
                 "0b 0200000000000000 0200000000000000 2f61 0100000000000000 31"
                 "0200000000000000 2f62 0000000000000000")
            .empty());
  CHECK(talk.ask(1,
                 "0a 0300000000000000 0300000000000000 2f6b31 0200000000000000 2f61"
                 "0200000000000000 2f62") ==
        bytes("0300000000000000 763178 0100000000000000 31 0000000000000000"));
  CHECK(talk.ask(1, "08 0200000000000000 2f61") == bytes("0100000000000000"));
  CHECK(talk.ask(1, "07") == bytes("0400000000000000"));
  // list_keys: /b, /k1, /never, init/
  CHECK(talk.ask(1, "11") == bytes("0400000000000000 0200000000000000 2f62 0300000000000000 2f6b31"
                                   "0600000000000000 2f6e65766572 0500000000000000 696e69742f"));
}

TEST_CASE("torch service: a conversation of 2.1, whose numbers are the old ones") {
  Talk talk;
  CHECK(talk.ask(1, "03 0500000000000000 696e69742f 0100000000000000") ==
        bytes("0100000000000000"));
  CHECK(talk.ask(1, "0a 0100000000000000 0200000000000000 2f61 0100000000000000 31").empty());
  CHECK(talk.ask(1, "08 0200000000000000 2f61 0100000000000000 32").empty());
  CHECK(talk.ask(1, "09 0100000000000000 0200000000000000 2f61") == bytes("0200000000000000 3132"));
  CHECK(talk.ask(1, "05 0100000000000000 0200000000000000 2f7a").empty());
  CHECK(talk.ask(1, "0b") == bytes("01"));
  CHECK(talk.ask(1, "07 0200000000000000 2f61") == bytes("0100000000000000"));
}

TEST_CASE("torch service: queues are first in first out, and a push wakes one who waits") {
  Talk talk;
  const auto ask = [&](uint64_t client, TorchOp op, std::vector<std::string> texts) {
    if (talk.parsers.count(client) == 0) REQUIRE(talk.say(client, kHandshake));
    REQUIRE(talk.say(client, new_client(op, std::move(texts))));
    return talk.hear(client);
  };
  CHECK(ask(1, TorchOp::kQueueLength, {"/q"}) == bytes("0000000000000000"));
  CHECK(ask(1, TorchOp::kQueuePop, {"/q"}) == bytes("0000000000000000"));
  CHECK(ask(1, TorchOp::kWait, {"/q"}).empty());
  CHECK(ask(2, TorchOp::kWait, {"/q"}).empty());
  CHECK(ask(3, TorchOp::kCheck, {"/q"}) == bytes("01"));
  ask(3, TorchOp::kQueuePush, {"/q", "one"});
  CHECK(talk.heard[1] + talk.heard[2] == bytes("00"));
  ask(3, TorchOp::kQueuePush, {"/q", "two"});
  CHECK(talk.hear(1) == bytes("00"));
  CHECK(talk.hear(2) == bytes("00"));
  CHECK(ask(3, TorchOp::kCheck, {"/q"}) == bytes("00"));
  CHECK(ask(3, TorchOp::kWait, {"/q"}) == bytes("00"));
  CHECK(ask(3, TorchOp::kQueueLength, {"/q"}) == bytes("0200000000000000"));
  CHECK(ask(1, TorchOp::kQueuePop, {"/q"}) == bytes("0200000000000000 0300000000000000 6f6e65"));
  CHECK(ask(2, TorchOp::kQueuePop, {"/q"}) == bytes("0100000000000000 0300000000000000 74776f"));
  CHECK(ask(2, TorchOp::kCheck, {"/q"}) == bytes("01"));
  CHECK(ask(2, TorchOp::kCountKeys, {}) == bytes("0000000000000000"));
}

TEST_CASE("torch service: a barrier answers all when the last has come") {
  Talk talk;
  for (uint64_t client = 1; client <= 3; ++client) REQUIRE(talk.say(client, kHandshake));
  const std::string arrive = new_client(TorchOp::kBarrier, {"/b"}, 3);
  REQUIRE(talk.say(1, arrive));
  REQUIRE(talk.say(2, arrive));
  CHECK(talk.hear(1).empty());
  CHECK(talk.hear(2).empty());
  REQUIRE(talk.say(3, arrive));
  for (uint64_t client = 1; client <= 3; ++client) CHECK(talk.hear(client) == bytes("00"));
  CHECK(*talk.keys.find("torch/b") == "3");
  // One who came and gave up counts, but hears no more than that.
  const std::string other = new_client(TorchOp::kBarrier, {"/c"}, 2);
  REQUIRE(talk.say(1, other));
  REQUIRE(talk.say(1, new_client(TorchOp::kCancelWait, {})));
  CHECK(talk.hear(1) == bytes("01"));
  REQUIRE(talk.say(2, other));
  CHECK(talk.hear(2) == bytes("00"));
  CHECK(talk.hear(1).empty());
}

TEST_CASE("torch service: the recorded events of a watched key") {
  Talk talk;
  CHECK(talk.ask(9, "07 0300000000000000 2f776b") == bytes("03"));
  talk.ask(1, "00 0300000000000000 2f776b 0200000000000000 7631");
  CHECK(talk.hear(9) == bytes("01 0300000000000000 2f776b 0000000000000000 0200000000000000 7631"));
  talk.ask(1, "00 0300000000000000 2f776b 0200000000000000 7632");
  CHECK(talk.hear(9) ==
        bytes("00 0300000000000000 2f776b 0200000000000000 7631 0200000000000000 7632"));
  talk.ask(1, "08 0300000000000000 2f776b");
  CHECK(talk.hear(9) == bytes("02 0300000000000000 2f776b 0200000000000000 7632 0000000000000000"));
  // A rank of dt changes it too.
  Answers released;
  REQUIRE(talk.keys.set("torch/wk", "v", &released).ok());
  talk.deliver(released);
  CHECK(talk.hear(9) == bytes("01 0300000000000000 2f776b 0000000000000000 0100000000000000 76"));
  talk.service.drop(9);
  talk.ask(1, "08 0300000000000000 2f776b");
  CHECK(talk.hear(9).empty());
  for (int i = 0; i < 64; ++i) {
    REQUIRE(talk.say(8, encode_torch({TorchOp::kWatch, {std::to_string(i)}}, TorchDialect::kOld)));
  }
  CHECK_FALSE(talk.say(8, encode_torch({TorchOp::kWatch, {"64"}}, TorchDialect::kOld)));
}

TEST_CASE("torch service: no key of a client means one of a rank or of the store") {
  Talk talk;
  Answers released;
  REQUIRE(talk.keys.set("dt.join/0", "record", &released).ok());
  REQUIRE(talk.keys.set("secret", "of a rank", &released).ok());
  for (const char* key : {"dt.join/0", "/dt.join/0", "secret", "/secret", "", "/../secret"}) {
    CAPTURE(key);
    CHECK_FALSE(talk.say(1, encode_torch({TorchOp::kGet, {key}}, TorchDialect::kOld)));
    talk.parsers.erase(1);
    REQUIRE(talk.say(1, encode_torch({TorchOp::kSet, {key, "x"}}, TorchDialect::kOld)));
  }
  CHECK(*talk.keys.find("dt.join/0") == "record");
  CHECK(*talk.keys.find("secret") == "of a rank");
  CHECK(talk.ask(1, "06") == bytes("0600000000000000"));
  for (const char* key : {"/a", "init/", "", "//worker/attempt_0/k"}) {
    CHECK(torch_wire_key(torch_key(key)) == key);
  }
  CHECK(torch_key("/a") == "torch/a");
  CHECK(torch_key("init/") == "dt.torch/init/");
}

TEST_CASE("torch service: a client that asks for too much loses its connection, nothing else") {
  Talk talk;
  REQUIRE(talk.say(1, kHandshake));
  REQUIRE(talk.say(1, new_client(TorchOp::kSet, {"/large", std::string(kMaxValueBytes, 'x')})));
  CHECK(talk.say(1, new_client(TorchOp::kMultiGet, {"/large", "/large", "/large"})));
  CHECK(talk.hear(1).size() == 3 * (kMaxValueBytes + 8));
  // Values that are sent without a copy may be more than one request may have.
  CHECK(talk.say(1, new_client(TorchOp::kMultiGet, {"/large", "/large", "/large", "/large"})));
  CHECK(talk.hear(1).size() == 4 * (kMaxValueBytes + 8));
  CHECK_FALSE(talk.say(1, new_client(TorchOp::kAppend, {"/large", "y"})));
  CHECK(talk.keys.find("torch/large")->size() == kMaxValueBytes);
  for (size_t i = 0; i < Keyspace::kMaxWaitsPerClient; ++i) {
    REQUIRE(talk.say(1, new_client(TorchOp::kWait, {"/never"})));
  }
  CHECK_FALSE(talk.say(1, new_client(TorchOp::kWait, {"/never"})));
  Keyspace tiny(100);
  TorchService full(&tiny);
  Answers answers;
  CHECK_FALSE(full.handle(1, TorchDialect::kNew,
                          {TorchOp::kQueuePush, {"/q", std::string(100, 'x')}}, &answers)
                  .ok());
  CHECK(full.handle(1, TorchDialect::kNew, {TorchOp::kQueueLength, {"/q"}}, &answers)
            .value()
            .whole() == bytes("0000000000000000"));
}
