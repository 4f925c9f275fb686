// SPDX-License-Identifier: Apache-2.0
// What PyTorch's clients send: the bytes of 1.13 were recorded, those of newer ones follow from the
// numbers of their operations.
#include "store/torch_protocol.h"

#include <doctest/doctest.h>

#include "store/protocol.h"
#include "torch_bytes.h"

using namespace dt;
using namespace dt::store;
using dt::store::test::bytes;

namespace {

std::vector<TorchRequest> parse(TorchParser* parser, const std::string& stream, size_t step) {
  std::vector<TorchRequest> requests;
  TorchRequest request;
  for (size_t at = 0; at < stream.size(); at += step) {
    parser->feed(stream.data() + at, std::min(step, stream.size() - at));
    while (parser->next(&request)) requests.push_back(request);
  }
  return requests;
}

std::string refusal_of(const std::string& stream) {
  TorchParser parser;
  parse(&parser, stream, stream.size());
  return parser.status().message();
}

}  // namespace

TEST_CASE("torch parser: recorded requests of 1.13, in pieces of any size") {
  const std::string stream = bytes(
      "03 0500000000000000 696e69742f 0100000000000000"                    // add init/ 1
      "00 0300000000000000 2f6b31 0200000000000000 7631"                   // set k1 v1
      "05 0100000000000000 0300000000000000 2f6b31"                        // wait k1
      "02 0300000000000000 2f6b31"                                         // get k1
      "03 0400000000000000 2f637472 f9ffffffffffffff"                      // add ctr -7
      "01 0300000000000000 2f6373 0000000000000000 0100000000000000 61"    // "" -> "a"
      "06"                                                                 // num_keys
      "04 0200000000000000 0200000000000000 2f61 0300000000000000 2f7a7a"  // check a, zz
      "04 0000000000000000");                                              // check nothing
  for (const size_t step : {size_t{1}, size_t{3}, stream.size()}) {
    TorchParser parser;
    const std::vector<TorchRequest> requests = parse(&parser, stream, step);
    REQUIRE(parser.status().ok());
    CHECK(parser.dialect() == TorchDialect::kOld);
    REQUIRE(requests.size() == 9);
    CHECK(requests[0].op == TorchOp::kAdd);
    CHECK(requests[0].texts == std::vector<std::string>{"init/"});
    CHECK(requests[0].number == 1);
    CHECK(requests[1].op == TorchOp::kSet);
    CHECK(requests[1].texts == std::vector<std::string>{"/k1", "v1"});
    CHECK(requests[2].op == TorchOp::kWait);
    CHECK(requests[3].op == TorchOp::kGet);
    CHECK(requests[4].number == -7);
    CHECK(requests[5].op == TorchOp::kCompareSet);
    CHECK(requests[5].texts == std::vector<std::string>{"/cs", "", "a"});
    CHECK(requests[6].op == TorchOp::kCountKeys);
    CHECK(requests[7].op == TorchOp::kCheck);
    CHECK(requests[7].texts == std::vector<std::string>{"/a", "/zz"});
    CHECK(requests[8].texts.empty());
  }
}

TEST_CASE("torch parser: the first five bytes tell a new client from an old one's set") {
  const std::string handshake = bytes("00 cef7853c 0d 34120000");
  for (const size_t step : {size_t{1}, handshake.size()}) {
    TorchParser parser;
    const std::vector<TorchRequest> requests = parse(&parser, handshake + bytes("07"), step);
    REQUIRE(requests.size() == 3);
    CHECK(parser.dialect() == TorchDialect::kNew);
    CHECK(requests[0].op == TorchOp::kValidate);
    CHECK(requests[1].op == TorchOp::kPing);
    CHECK(requests[1].number == 0x1234);
    CHECK(requests[2].op == TorchOp::kCountKeys);
  }
  TorchParser old;
  REQUIRE(parse(&old, bytes("00 cef7850000000000"), 1).empty());  // nearly the same
  CHECK_FALSE(old.status().ok());                                 // but a key of 8 MB
  CHECK(old.dialect() == TorchDialect::kOld);
}

TEST_CASE("torch parser: a first byte of dt or of another protocol is no client of PyTorch") {
  CHECK(may_begin_torch('\x00'));
  CHECK(may_begin_torch('\x0b'));
  CHECK_FALSE(may_begin_torch('\x0c'));
  CHECK_FALSE(may_begin_torch('d'));
  CHECK_FALSE(may_begin_torch('G'));
}

TEST_CASE("torch parser: the two numbers that 2.1 uses otherwise") {
  const std::string add = bytes("03 0500000000000000 696e69742f 0100000000000000");
  const std::string key = bytes("0200000000000000 2f61");
  const std::string value = bytes("0100000000000000 62");
  TorchParser watch;  // the second connection of an old client
  std::vector<TorchRequest> requests = parse(&watch, bytes("07") + key + bytes("07") + key, 100);
  REQUIRE(requests.size() == 2);
  CHECK(requests[1].op == TorchOp::kWatch);
  TorchParser middle;
  requests = parse(&middle, add + bytes("07") + key + bytes("08") + key + value, 100);
  REQUIRE(requests.size() == 3);
  CHECK(middle.dialect() == TorchDialect::kMiddle);
  CHECK(requests[1].op == TorchOp::kErase);
  CHECK(requests[2].op == TorchOp::kAppend);
  TorchParser old;
  requests = parse(&old, add + bytes("08") + key, 100);
  REQUIRE(requests.size() == 2);
  CHECK(requests[1].op == TorchOp::kErase);
  CHECK(old.dialect() == TorchDialect::kOld);
  TorchParser append;
  requests = parse(&append, add + bytes("08") + key + value, 100);
  REQUIRE(requests.size() == 2);
  CHECK(requests[1].op == TorchOp::kAppend);
  CHECK(append.dialect() == TorchDialect::kMiddle);
}

TEST_CASE("torch parser: each operation of each dialect reads back as it was written") {
  for (const TorchDialect dialect :
       {TorchDialect::kOld, TorchDialect::kMiddle, TorchDialect::kNew}) {
    int known = 0;
    for (int op = 0; op <= static_cast<int>(TorchOp::kWatch); ++op) {
      TorchRequest request;
      request.op = static_cast<TorchOp>(op);
      if (!torch_dialect_has(dialect, request.op)) {
        CHECK(encode_torch(request, dialect).empty());
        continue;
      }
      ++known;
      switch (request.op) {
        case TorchOp::kValidate: request.number = kTorchMagic; break;
        case TorchOp::kPing: request.number = 77; break;
        case TorchOp::kAdd:
        case TorchOp::kBarrier:
          request.texts = {"/k"};
          request.number = -5;
          break;
        case TorchOp::kSet:
        case TorchOp::kAppend:
        case TorchOp::kQueuePush: request.texts = {"/k", "v"}; break;
        case TorchOp::kCompareSet: request.texts = {"/k", "", "w"}; break;
        case TorchOp::kMultiGet:
        case TorchOp::kCheck:
        case TorchOp::kWait: request.texts = {"/k", "/l", ""}; break;
        case TorchOp::kMultiSet: request.texts = {"/k", "v", "/l", ""}; break;
        case TorchOp::kGet:
        case TorchOp::kErase:
        case TorchOp::kQueuePop:
        case TorchOp::kQueueLength:
        case TorchOp::kWatch: request.texts = {"/k"}; break;
        case TorchOp::kCountKeys:
        case TorchOp::kCancelWait:
        case TorchOp::kListKeys: break;
      }
      // Something that settles the dialect comes first, as every client's connection begins.
      TorchRequest first;
      if (dialect == TorchDialect::kNew) {
        first.op = TorchOp::kValidate;
        first.number = kTorchMagic;
      } else if (dialect == TorchDialect::kMiddle) {
        first.op = TorchOp::kCancelWait;
      } else {
        first = request;
      }
      TorchParser parser;
      const std::vector<TorchRequest> requests =
          parse(&parser, encode_torch(first, dialect) + encode_torch(request, dialect), 1);
      CAPTURE(op);
      REQUIRE(requests.size() == 2);
      CHECK(requests[1].op == request.op);
      CHECK(requests[1].texts == request.texts);
      CHECK(requests[1].number == request.number);
      CHECK(parser.dialect() == dialect);
    }
    CHECK(known == (dialect == TorchDialect::kOld      ? 9
                    : dialect == TorchDialect::kMiddle ? 12
                                                       : 19));
  }
}

TEST_CASE("torch parser: what passes a limit is refused before its bytes come") {
  CHECK(refusal_of(bytes("02 0120000000000000")) ==
        "PyTorch's store protocol: a key of 8193 bytes is over the limit of 8192 bytes");
  CHECK(refusal_of(bytes("00 0100000000000000 61 0100000100000000")) ==
        "PyTorch's store protocol: a value of 16777217 bytes is over the limit of 16777216 bytes");
  CHECK(refusal_of(bytes("05 0100020000000000")) ==
        "PyTorch's store protocol: 131073 keys in one request are over the limit of 131072");
  CHECK(refusal_of(bytes("05 ffffffffffffffff")) ==
        "PyTorch's store protocol: 18446744073709551615 keys in one request are over the limit of "
        "131072");
  CHECK(refusal_of(bytes("02 ffffffffffffffff")) ==
        "PyTorch's store protocol: a key of 18446744073709551615 bytes is over the limit of 8192 "
        "bytes");
  CHECK(refusal_of(bytes("06 0c")) == "PyTorch's store protocol: there is no operation 12");
  CHECK(refusal_of(bytes("00 cef7853c 13")) ==
        "PyTorch's store protocol: there is no operation 19");
  CHECK(refusal_of(bytes("00 cef7853c 00 12345678")) ==
        "PyTorch's store protocol: the connection is validated with a wrong number");
  // Five values of 16 MiB in one request.
  std::string many = bytes("00 cef7853c 0b 0500000000000000");
  for (int i = 0; i < 5; ++i) {
    many += bytes("0100000000000000 61 0000000100000000") + std::string(kMaxValueBytes, 'x');
  }
  CHECK(refusal_of(many) ==
        "PyTorch's store protocol: a request is over the limit of 67108864 bytes");
}

TEST_CASE("torch reply: collects each shape from pieces, and no more") {
  const std::string stream = bytes("2a ffffffffffffffff 78563412 0300000000000000 616263") + "rest";
  for (const size_t step : {size_t{1}, size_t{5}, stream.size()}) {
    TorchReply reply("bnus");
    size_t taken = 0;
    for (size_t at = 0; at < stream.size() && !reply.done(); at += step) {
      taken += reply.feed(stream.data() + at, std::min(step, stream.size() - at));
    }
    REQUIRE(reply.done());
    CHECK(taken == stream.size() - 4);
    CHECK(reply.numbers == std::vector<int64_t>{42, -1, 0x12345678});
    CHECK(reply.texts == std::vector<std::string>{"abc"});
  }
  TorchReply empty("");
  CHECK(empty.done());
  TorchReply absurd("s");
  absurd.feed("\xff\xff\xff\xff\xff\xff\xff\xff", 8);
  CHECK_FALSE(absurd.status().ok());
  CHECK_FALSE(absurd.done());
}
