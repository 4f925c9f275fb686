// SPDX-License-Identifier: Apache-2.0
#include "store/protocol.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "store/text.h"

using namespace dt;
using namespace dt::store;

namespace {

Request multi_set_request() {
  Request request;
  request.type = FrameType::kMultiSet;
  request.keys = {"a", std::string("\0b", 2)};
  request.values = {"", std::string(1000, 'v')};
  return request;
}

std::string frame_of(const Request& request, uint64_t id) {
  return encode_frame(request.type, id, encode_request(request));
}

Status parse_status(std::string bytes, size_t limit = 1000) {
  FrameParser parser(limit);
  parser.feed(bytes.data(), bytes.size());
  Frame frame;
  CHECK_FALSE(parser.next(&frame));
  return parser.status();
}

}  // namespace

TEST_CASE("FrameParser: the same frames come out however the bytes are split") {
  const std::string stream = frame_of(multi_set_request(), 7) +
                             encode_frame(FrameType::kPing, UINT64_MAX, "") +
                             encode_frame(FrameType::kReply, 1, std::string(300, 'p'));
  for (const size_t step :
       {size_t{1}, size_t{2}, size_t{19}, size_t{20}, size_t{21}, stream.size()}) {
    FrameParser parser(kMaxPayloadBytes);
    std::vector<Frame> frames;
    for (size_t at = 0; at < stream.size(); at += step) {
      parser.feed(stream.data() + at, std::min(step, stream.size() - at));
      Frame frame;
      while (parser.next(&frame)) frames.push_back(frame);
    }
    REQUIRE(frames.size() == 3);
    CHECK(parser.status().ok());
    CHECK(frames[0].id == 7);
    const Result<Request> decoded = decode_request(frames[0]);
    REQUIRE(decoded.ok());
    CHECK(decoded.value().keys == multi_set_request().keys);
    CHECK(decoded.value().values == multi_set_request().values);
    CHECK(frames[1].type == FrameType::kPing);
    CHECK(frames[1].id == UINT64_MAX);
    CHECK(frames[2].payload == std::string(300, 'p'));
  }
}

TEST_CASE("FrameParser: says what is wrong with a stream, as early as it can") {
  CHECK(parse_status("G").message() ==
        "the bytes are not dt's store protocol; something else uses this port");
  CHECK(parse_status("dtSx").code() == Code::kInvalidArgument);
  std::string bytes = encode_frame(FrameType::kPing, 1, "");
  bytes[4] = 9;
  CHECK(parse_status(bytes).code() == Code::kVersion);
  CHECK(parse_status(bytes).message() ==
        "the frame has version 9, this side speaks 1; use the same release of dt everywhere");
  bytes = encode_frame(FrameType::kPing, 1, "");
  bytes[5] = 50;
  CHECK(parse_status(bytes).message() == "a frame of unknown type 50 with flags 0");
  bytes = encode_frame(FrameType::kPing, 1, "");
  bytes[6] = 1;
  CHECK(parse_status(bytes).message() == "a frame of unknown type 16 with flags 1");
  // The header alone is enough: nobody waits for the bytes of an oversized frame.
  CHECK(parse_status(encode_frame(FrameType::kSet, 1, std::string(1001, 'x')).substr(0, 20))
            .message() == "a frame of 1001 bytes is over the limit of 1000 bytes");
  CHECK(parse_status("dt").ok());
  CHECK(parse_status("").ok());
}

TEST_CASE("decode_request: refuses every truncation and every extension of every request") {
  std::vector<Request> requests;
  for (int type = 1; type <= 17; ++type) {
    Request request = multi_set_request();
    request.type = static_cast<FrameType>(type);
    request.values.resize(request.keys.size());
    request.expected = "e";
    request.number = 3;
    request.timeout_ms = 5;
    request.text = "why";
    request.hello.member.host = "h";
    request.join.equal_config = {{"k", "v"}};
    request.failure.info.message = "m";
    requests.push_back(request);
  }
  for (const Request& request : requests) {
    const std::string payload = encode_request(request);
    CHECK(decode_request({request.type, 1, payload}).ok());
    CHECK_FALSE(decode_request({request.type, 1, payload + "x"}).ok());
    for (size_t length = 0; length < payload.size(); ++length) {
      CHECK_FALSE(decode_request({request.type, 1, payload.substr(0, length)}).ok());
    }
  }
  CHECK_FALSE(decode_request({FrameType::kReply, 1, ""}).ok());
}

TEST_CASE("decode_request: limits") {
  Request request;
  request.type = FrameType::kErase;
  request.keys = {std::string(kMaxKeyBytes, 'k')};
  CHECK(decode_request({request.type, 1, encode_request(request)}).ok());
  request.keys = {std::string(kMaxKeyBytes + 1, 'k')};
  CHECK_FALSE(decode_request({request.type, 1, encode_request(request)}).ok());
  request.keys = {""};
  CHECK(decode_request({request.type, 1, encode_request(request)}).status().message() ==
        "a key must not be empty");
  request.type = FrameType::kWait;
  request.keys.assign(kMaxKeysPerCall + 1, "k");
  CHECK_FALSE(decode_request({request.type, 1, encode_request(request)}).ok());
  request.type = FrameType::kMultiSet;
  request.keys = {"a", "b"};
  request.values = {"1"};
  CHECK(decode_request({request.type, 1, encode_request(request)}).status().message() ==
        "multi_set needs one value for each key");
  request.type = FrameType::kBarrier;
  request.keys = {"b"};
  CHECK(decode_request({request.type, 1, encode_request(request)}).status().message() ==
        "a barrier needs a count of 1 or more");
  // A count that lies about four billion items costs nothing.
  CHECK_FALSE(decode_request({FrameType::kWait, 1, Writer().u32(UINT32_MAX).take()}).ok());
}

TEST_CASE("messages: a verdict and a record survive the wire") {
  Verdict verdict;
  verdict.attempt = 3;
  verdict.session = 0x123456789abcdef0;
  verdict.world_size = 6;
  verdict.local_rank = 1;
  verdict.local_size = 2;
  verdict.node_rank = 1;
  verdict.node_count = 2;
  verdict.hosts = {{"hostA", 0, {0, 1, 2, 5}}, {"hostB", 1, {3, 4}}};
  verdict.locals = {{3, 33, std::string("\0s", 2)}, {4, 44, ""}};
  Verdict copy;
  REQUIRE(decode(encode(verdict), &copy));
  CHECK(copy.session == verdict.session);
  REQUIRE(copy.hosts.size() == 2);
  CHECK(copy.hosts[0].ranks == verdict.hosts[0].ranks);
  CHECK(copy.hosts[1].host_name == "hostB");
  REQUIRE(copy.locals.size() == 2);
  CHECK(copy.locals[0].socket_name == verdict.locals[0].socket_name);
  CHECK(copy.locals[1].pid == 44);
  // More ranks than the world holds: refused before they cost memory.
  verdict.world_size = 3;
  CHECK_FALSE(decode(encode(verdict), &copy));
}

TEST_CASE("messages: the hosts of a verdict cost bytes per host, not per rank") {
  Verdict verdict;
  verdict.world_size = 100'000;
  verdict.hosts.resize(1);
  for (int32_t rank = 0; rank < verdict.world_size; ++rank) verdict.hosts[0].ranks.push_back(rank);
  CHECK(encode(verdict).size() < 100);
}

TEST_CASE("messages: an error that claims OK is none; a long text is cut") {
  ErrorInfo info;
  info.code = Code::kOk;
  info.message = std::string(kMaxTextBytes + 5, 'm');
  ErrorInfo copy;
  REQUIRE(decode(encode(info), &copy));
  CHECK(copy.code == Code::kInternal);
  CHECK(copy.message.size() == kMaxTextBytes);
}

TEST_CASE("text: ranks, keys and lists") {
  CHECK(rank_list({0, 1, 2, 5, 7, 8}) == "0-2, 5, 7, 8");
  CHECK(ranks_text({3}) == "rank 3");
  CHECK(ranks_text({1, 3}) == "ranks 1, 3");
  CHECK(store::quoted(std::string("a\0\"\n", 4)) == "\"a\\x00\\x22\\x0a\"");
  CHECK(store::quoted(std::string(100, 'x')) == "\"" + std::string(80, 'x') + "...\"");
  CHECK(item_list(std::vector<std::string>(18, "i")).substr(45) == "i and 2 more");
  CHECK(seconds_text(5000) == "5.0 s");
}
