// SPDX-License-Identifier: Apache-2.0
// What a server answers to connections that are no well-behaved clients.
#include <sys/socket.h>
#include <unistd.h>

#include "fixture.h"
#include "net/address.h"
#include "store/protocol.h"

using namespace dt;
using namespace dt::store;
using namespace dt::store::test;

namespace {

// A blocking socket that speaks, or does not speak, the protocol.
struct Stranger {
  int fd;
  FrameParser parser{kMaxPayloadBytes};

  explicit Stranger(const Job& job) : fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const net::Address address =
        net::resolve_now("127.0.0.1", job.server->port(), false).value()[0];
    REQUIRE(connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0);
  }
  ~Stranger() {
    if (fd >= 0) close(fd);
  }
  void say(const std::string& bytes) {
    REQUIRE(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  }
  void say(const Request& request, uint64_t id) {
    say(encode_frame(request.type, id, encode_request(request)));
  }
  void say_hello(const Job& job, int32_t rank) {
    Request request;
    request.type = FrameType::kHello;
    request.hello.protocol = kProtocolVersion;
    request.hello.job_id = "a";
    request.hello.attempt = 2;
    request.hello.member = {rank, "hostS", 99};
    request.hello.world_size = job.options.world_size;
    say(request, 1);
  }
  // False at the end of the stream.
  bool hear(Frame* frame) {
    for (;;) {
      if (parser.next(frame)) return true;
      char buffer[65536];
      const ssize_t bytes = read(fd, buffer, sizeof buffer);
      if (bytes <= 0) return false;
      parser.feed(buffer, static_cast<size_t>(bytes));
    }
  }
  // The error frame that ends this connection.
  ErrorInfo hear_refusal() {
    Frame frame;
    ErrorInfo info;
    REQUIRE(hear(&frame));
    CHECK(frame.type == FrameType::kError);
    CHECK(frame.id == 0);
    REQUIRE(decode(frame.payload, &info));
    CHECK_FALSE(hear(&frame));
    return info;
  }
  void reset() {
    const linger now{1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(std::exchange(fd, -1));
  }
};

}  // namespace

TEST_CASE("server: refuses what does not begin with a hello, and says why") {
  Job job(2);
  Stranger http(job);
  http.say("GET / HTTP/1.1\r\n\r\n");
  CHECK(http.hear_refusal().message ==
        "the bytes are not dt's store protocol; something else uses this port");
  Stranger hasty(job);
  hasty.say(encode_frame(FrameType::kPing, 1, ""));
  CHECK(hasty.hear_refusal().message == "the first frame of a connection must be a hello");
  Stranger future(job);
  std::string bytes = encode_frame(FrameType::kHello, 1, "");
  bytes[4] = 2;
  future.say(bytes);
  CHECK(future.hear_refusal().code == Code::kVersion);
  Stranger large(job);
  large.say(encode_frame(FrameType::kHello, 1, std::string(kMaxHelloBytes + 1, 'x')));
  CHECK(large.hear_refusal().message == "a frame of 16385 bytes is over the limit of 16384 bytes");
  Stranger empty(job);
  empty.say(encode_frame(FrameType::kHello, 1, ""));
  CHECK(empty.hear_refusal().code == Code::kInvalidArgument);
  CHECK(job.connect(0)->ping(patiently()).ok());
}

TEST_CASE("server: hello and requests may come byte by byte, or all at once") {
  Job job(2);
  Stranger stranger(job);
  Request set;
  set.type = FrameType::kSet;
  set.keys = {"k"};
  set.values = {"v"};
  Request hello;
  hello.type = FrameType::kHello;
  hello.hello.protocol = kProtocolVersion;
  hello.hello.member.rank = -1;
  const std::string bytes = encode_frame(hello.type, 1, encode_request(hello)) +
                            encode_frame(set.type, 2, encode_request(set)) +
                            encode_frame(FrameType::kPing, 3, "");
  for (const char byte : bytes) stranger.say(std::string(1, byte));
  Frame frame;
  for (uint64_t id = 1; id <= 3; ++id) {
    REQUIRE(stranger.hear(&frame));
    CHECK(frame.type == FrameType::kReply);
    CHECK(frame.id == id);
  }
  CHECK(job.connect(0)->get("k", patiently()).value() == "v");
}

TEST_CASE("server: a malformed request is an error, a broken stream ends the connection") {
  Job job(2);
  Stranger stranger(job);
  stranger.say_hello(job, 1);
  Frame frame;
  REQUIRE(stranger.hear(&frame));
  CHECK(frame.type == FrameType::kReply);
  stranger.say(encode_frame(FrameType::kSet, 5, "garbage"));
  REQUIRE(stranger.hear(&frame));
  CHECK(frame.type == FrameType::kError);
  CHECK(frame.id == 5);
  stranger.say(encode_frame(FrameType::kReply, 6, ""));
  REQUIRE(stranger.hear(&frame));
  CHECK(frame.id == 6);
  stranger.say_hello(job, 1);  // a second one
  REQUIRE(stranger.hear(&frame));
  CHECK(frame.type == FrameType::kError);
  stranger.say("garbage that is no frame");
  CHECK(stranger.hear_refusal().code == Code::kInvalidArgument);
}

TEST_CASE("server: the limit of connections is told") {
  Job job(4, [](ServerOptions* options) { options->max_connections = 2; });
  const auto first = job.connect(0);
  const auto second = job.connect(1);
  Stranger third(job);
  CHECK(third.hear_refusal().message ==
        "the store has 2 connections, its limit; raise it or start fewer ranks");
  const Status status =
      Client::connect(job.loop.get(), job.client_options(2), briefly(200)).status();
  CHECK(status.code() == Code::kTimeout);
  CHECK(status.message().find("the last: the store has 2 connections, its limit") !=
        std::string::npos);
}

TEST_CASE("server: a client that asks for far more than it reads is slowed down, not fed") {
  Job job(2);
  const auto client = job.connect(0);
  REQUIRE(client->set("big", std::string(1 << 20, 'b'), patiently()).ok());
  Stranger greedy(job);
  greedy.say_hello(job, -1);
  Request get;
  get.type = FrameType::kGet;
  get.keys = {"big"};
  std::string questions;
  constexpr uint64_t kQuestions = 64;
  for (uint64_t id = 2; id < 2 + kQuestions; ++id) {
    questions += encode_frame(get.type, id, encode_request(get));
  }
  greedy.say(questions);
  CHECK(client->ping(patiently()).ok());
  Frame frame;
  REQUIRE(greedy.hear(&frame));
  for (uint64_t id = 2; id < 2 + kQuestions; ++id) {
    REQUIRE(greedy.hear(&frame));
    CHECK(frame.id == id);
    CHECK(frame.payload.size() == 1 << 20);
  }
}

TEST_CASE("server: resets under load are deaths with a reason, and kill nobody") {
  Job job(2);
  const auto client = job.connect(0);
  REQUIRE(client->set("big", std::string(4 << 20, 'b'), patiently()).ok());
  Request get;
  get.type = FrameType::kGet;
  get.keys = {"big"};
  for (int round = 0; round < 30; ++round) {
    Stranger stranger(job);
    stranger.say_hello(job, -1);
    for (uint64_t id = 2; id < 8; ++id) stranger.say(get, id);
    Frame frame;
    REQUIRE(stranger.hear(&frame));
    stranger.reset();
  }
  CHECK(client->ping(patiently()).ok());

  Stranger rank(job);
  rank.say_hello(job, 1);
  Request join;
  join.type = FrameType::kJoin;
  join.join = job.record(1);
  rank.say(join, 2);
  REQUIRE(client->join(job.record(0), patiently()).ok());
  Failures failures;
  failures.watch(client.get());
  rank.reset();
  CHECK(failures.wait_first().info.message.find(
            "rank 1 (hostS pid 99) lost its connection to the store (Connection reset by peer) "
            "without a goodbye: ") == 0);
}

TEST_CASE("join: a rank that dies while all others wait is named to them at once") {
  Job job(3);
  {
    Stranger dying(job);
    dying.say_hello(job, 1);
    Request join;
    join.type = FrameType::kJoin;
    join.join = job.record(1);
    dying.say(join, 2);
    dying.say(encode_frame(FrameType::kPing, 3, ""));
    Frame frame;
    REQUIRE(dying.hear(&frame));
    REQUIRE(dying.hear(&frame));
    CHECK(frame.id == 3);  // the server has the join
  }
  // The slot is free when the server has seen the end; until then a second rank 1 is refused.
  const Deadline deadline = Deadline::after_ms(kPatienceMs);
  while (!Client::connect(job.loop.get(), job.client_options(1), patiently()).ok()) {
    REQUIRE_FALSE(deadline.passed());
  }
  Status statuses[2];
  on_threads(2, [&](int32_t i) {
    const int32_t rank = 2 * i;
    statuses[i] = job.connect(rank)->join(job.record(rank), patiently()).status();
  });
  // Whoever asks second may learn it after the first one has gone with the news: the same text.
  for (const Status& status : statuses) {
    CHECK(status.code() == Code::kPeerLost);
    CHECK(status.message() ==
          "join: rank 1 (hostS pid 99) died after joining, before all ranks were there; look at "
          "its log, then start a new attempt");
  }
}
