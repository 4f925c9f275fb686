// SPDX-License-Identifier: Apache-2.0
// The server and a relay that brings it the connections of many ranks over one.
#include "store/uplink.h"

#include <sys/socket.h>
#include <unistd.h>

#include <map>

#include "fixture.h"
#include "net/address.h"
#include "net/guard.h"

using namespace dt;
using namespace dt::store;
using namespace dt::store::test;

namespace {

/// A relay as the server sees it: a blocking socket, and what came on each channel.
struct PlainRelay {
  int fd;
  FrameParser parser{kMaxPayloadBytes};
  std::map<uint64_t, FrameParser> heard = {};
  std::map<uint64_t, bool> closed = {};
  size_t pieces = 0;  ///< kData frames so far

  explicit PlainRelay(const Job& job) : fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const net::Address address =
        net::resolve_now("127.0.0.1", job.server->port(), false).value()[0];
    const timeval patience{kPatienceMs / 1000, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    REQUIRE(connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0);
  }
  ~PlainRelay() { hang_up(); }
  PlainRelay(const PlainRelay&) = delete;
  PlainRelay& operator=(const PlainRelay&) = delete;

  void hang_up() {
    if (fd >= 0) close(std::exchange(fd, -1));
  }
  void say(const std::string& bytes) {
    REQUIRE(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  }
  void begin(const UplinkHello& hello) { say(encode_frame(FrameType::kUplink, 7, encode(hello))); }
  void begin() {
    begin({kProtocolVersion, "a", 2, "hostB"});
    Frame frame;
    REQUIRE(take(&frame));
    CHECK(frame.type == FrameType::kReply);
    CHECK(frame.id == 7);
  }
  /// The next frame of the uplink itself. False: the stream has ended.
  bool take(Frame* frame) {
    static constexpr size_t kReadBytes = 65536;
    char buffer[kReadBytes];
    while (!parser.next(frame)) {
      const ssize_t bytes = read(fd, buffer, sizeof buffer);
      if (bytes <= 0) return false;
      parser.feed(buffer, static_cast<size_t>(bytes));
    }
    return true;
  }
  /// The next frame of a channel, whatever comes on the others before.
  Frame hear(uint64_t channel) {
    Frame frame;
    for (;;) {
      auto& stream = heard.try_emplace(channel, kMaxPayloadBytes).first->second;
      if (stream.next(&frame)) return frame;
      REQUIRE(stream.status().ok());
      sort_next();
    }
  }
  void sort_next() {
    Frame frame;
    REQUIRE(take(&frame));
    if (frame.type == FrameType::kClose) {
      closed[frame.id] = true;
      return;
    }
    REQUIRE(frame.type == FrameType::kData);
    ++pieces;
    auto& stream = heard.try_emplace(frame.id, kMaxPayloadBytes).first->second;
    stream.feed(frame.payload.data(), frame.payload.size());
  }
  void wait_closed(uint64_t channel) {
    while (!closed[channel]) sort_next();
  }
  void say_on(uint64_t channel, const std::string& bytes) {
    say(encode_frame(FrameType::kData, channel, bytes));
  }
  void ask(uint64_t channel, const Request& request, uint64_t id) {
    say_on(channel, encode_frame(request.type, id, encode_request(request)));
  }
  void open(const Job& job, uint64_t channel, int32_t rank) {
    say(encode_frame(FrameType::kOpen, channel, {}));
    Request hello;
    hello.type = FrameType::kHello;
    hello.hello.protocol = kProtocolVersion;
    hello.hello.job_id = "a";
    hello.hello.attempt = 2;
    hello.hello.member = {rank, "hostB", 10 + rank};
    hello.hello.world_size = job.options.world_size;
    hello.hello.nonce = static_cast<uint64_t>(rank) + 1;
    ask(channel, hello, 1);
  }
  void join(const Job& job, uint64_t channel, int32_t rank) {
    Request request;
    request.type = FrameType::kJoin;
    request.join = job.record(rank);
    request.timeout_ms = kPatienceMs;
    ask(channel, request, 2);
  }
  void expect_verdict(uint64_t channel) {
    const Frame frame = hear(channel);
    CHECK(frame.type == FrameType::kReply);
    CHECK(frame.id == 2);
    Verdict verdict;
    CHECK(decode(frame.payload, &verdict));
  }
  void expect_welcome(uint64_t channel) {
    const Frame frame = hear(channel);
    CHECK(frame.type == FrameType::kReply);
    CHECK(frame.id == 1);
  }
  /// Why the uplink ends.
  std::string end_text() {
    Frame frame;
    ErrorInfo info;
    do {
      REQUIRE(take(&frame));
    } while (frame.type != FrameType::kError);
    REQUIRE(decode(frame.payload, &info));
    CHECK_FALSE(take(&frame));
    return info.message;
  }
};

Request request_of(FrameType type, const std::string& key) {
  Request request;
  request.type = type;
  request.keys = {key};
  request.timeout_ms = kPatienceMs;
  return request;
}

Request set_of(const std::string& key, std::string value) {
  Request request = request_of(FrameType::kSet, key);
  request.values = {std::move(value)};
  return request;
}

}  // namespace

TEST_CASE("uplink: ranks of one connection and ranks of their own meet in a join") {
  constexpr int32_t kWorld = 6;
  constexpr int32_t kRelayed = 3;  // the last ones
  Job job(kWorld, [](ServerOptions* options) { options->max_connections = 4; });
  PlainRelay relay(job);
  relay.begin();
  for (int32_t rank = kWorld - kRelayed; rank < kWorld; ++rank) {
    relay.open(job, static_cast<uint64_t>(rank), rank);
  }
  for (int32_t rank = kWorld - kRelayed; rank < kWorld; ++rank) {
    relay.expect_welcome(static_cast<uint64_t>(rank));
    relay.join(job, static_cast<uint64_t>(rank), rank);
  }
  std::vector<std::shared_ptr<Client>> clients(kWorld - kRelayed);
  on_threads(kWorld - kRelayed, [&](int32_t rank) {
    auto& client = clients[static_cast<size_t>(rank)];
    client = job.connect(rank);
    CHECK(client->join(job.record(rank), patiently()).ok());
  });
  for (int32_t rank = kWorld - kRelayed; rank < kWorld; ++rank) {
    relay.expect_verdict(static_cast<uint64_t>(rank));
  }
}

TEST_CASE("uplink: the end of a channel is the end of its rank only") {
  Job job(3);
  PlainRelay relay(job);
  relay.begin();
  relay.open(job, 1, 1);
  relay.open(job, 2, 2);
  relay.expect_welcome(1);
  relay.expect_welcome(2);
  relay.join(job, 1, 1);
  relay.join(job, 2, 2);
  const auto watcher = job.connect(0);
  Failures failures;
  failures.watch(watcher.get());
  REQUIRE(watcher->join(job.record(0), patiently()).ok());
  relay.expect_verdict(1);
  relay.expect_verdict(2);
  relay.say(encode_frame(FrameType::kClose, 1, std::string(1, '\1')));
  const Failure death = failures.wait_first();
  CHECK(death.info.rank == 1);
  CHECK(death.info.message ==
        "rank 1 (hostB pid 11) lost its connection to the store (Connection reset by peer) "
        "without a goodbye: the process ended, was killed, or lost its network; "
        "look at its log, then go on with dt_comm_shrink or start the job again");
  relay.ask(2, set_of("k", "v"), 9);
  Frame frame = relay.hear(2);
  while (frame.type != FrameType::kReply) frame = relay.hear(2);
  CHECK(frame.id == 9);
  CHECK(frame.payload.empty());
}

TEST_CASE("uplink: its end is the end of all ranks of the host, and says so") {
  Job job(3);
  PlainRelay relay(job);
  relay.begin();
  relay.open(job, 1, 1);
  relay.open(job, 2, 2);
  relay.expect_welcome(1);
  relay.expect_welcome(2);
  relay.join(job, 1, 1);
  relay.join(job, 2, 2);
  const auto watcher = job.connect(0);
  Failures failures;
  failures.watch(watcher.get());
  REQUIRE(watcher->join(job.record(0), patiently()).ok());
  relay.expect_verdict(1);
  relay.expect_verdict(2);
  relay.hang_up();
  const Failure death = failures.wait_first();
  CHECK(death.info.code == Code::kPeerLost);
  CHECK(death.info.message ==
        "rank 1 (hostB pid 11) was lost with the relay of its host \"hostB\", which closed "
        "its connection to the store: the host failed, or the relay's process ended, was killed, "
        "or lost its network; look at its log, then go on with dt_comm_shrink or start the job "
        "again");
}

TEST_CASE("uplink: a rank that does not read keeps nobody waiting, and gets all of it later") {
  constexpr size_t kLargeBytes = 3 << 20;
  Job job(3);
  PlainRelay relay(job);
  relay.begin();
  relay.open(job, 1, 1);
  relay.open(job, 2, 2);
  relay.expect_welcome(1);
  relay.expect_welcome(2);
  const auto other = job.connect(0);
  const std::string large(kLargeBytes, 'x');
  relay.ask(1, request_of(FrameType::kGet, "large"), 5);
  relay.say(encode_frame(FrameType::kPause, 1, {}));
  // Behind the answer to this one the pause was heard.
  relay.ask(2, set_of("a", "1"), 6);
  CHECK(relay.hear(2).id == 6);
  REQUIRE(other->set("large", large, patiently()).ok());
  relay.ask(2, request_of(FrameType::kGet, "large"), 7);
  const Frame answer = relay.hear(2);
  CHECK(answer.id == 7);
  CHECK(answer.payload.size() >= kLargeBytes);
  CHECK(relay.pieces > kLargeBytes / kMaxDataBytes);
  Frame early;
  CHECK_FALSE(relay.heard.at(1).next(&early));
  relay.say(encode_frame(FrameType::kResume, 1, {}));
  CHECK(relay.hear(1).payload == answer.payload);
}

TEST_CASE("uplink: a paused rank that says nothing is lost while another one of its host reads") {
  constexpr int64_t kLostAfterMs = 2000;
  Job job(3, [](ServerOptions* options) {
    options->heartbeat_ms = 50;
    options->heartbeat_timeout_ms = kLostAfterMs;
  });
  const auto other = job.connect(0);
  REQUIRE(other->set("large", std::string(kMaxValueBytes, 'x'), patiently()).ok());
  PlainRelay relay(job);
  const int small = 64 << 10;
  setsockopt(relay.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  relay.begin();
  for (const int32_t rank : {1, 2}) {
    relay.open(job, static_cast<uint64_t>(rank), rank);
    relay.join(job, static_cast<uint64_t>(rank), rank);
  }
  Failures failures;
  failures.watch(other.get());
  REQUIRE(other->join(job.record(0), patiently()).ok());
  relay.say(encode_frame(FrameType::kPause, 1, {}));
  for (const uint64_t id : {6, 7}) relay.ask(2, request_of(FrameType::kGet, "large"), id);
  const Deadline patience = Deadline::after_ms(4 * kLostAfterMs);  // before all of it is taken
  std::vector<char> buffer(64 << 10);
  while (failures.count() == 0 && !patience.passed()) {
    REQUIRE(read(relay.fd, buffer.data(), buffer.size()) > 0);
    (void)other->get("never", briefly(50));
  }
  REQUIRE(failures.count() == 1);
  CHECK(failures.wait_first().info.rank == 1);
}

TEST_CASE("uplink: while one rank takes a large answer the others get theirs, and signs of life") {
  constexpr int64_t kBeatMs = 50;
  constexpr size_t kLargeBytes = 2 * kMaxValueBytes;  // far above what the two kernels hold
  Job job(4, [](ServerOptions* options) {
    options->heartbeat_ms = kBeatMs;
    options->heartbeat_timeout_ms = 2 * kPatienceMs;
  });
  const auto other = job.connect(0);
  REQUIRE(other->set("large", std::string(kMaxValueBytes, 'x'), patiently()).ok());
  PlainRelay relay(job);
  const int small = 64 << 10;
  setsockopt(relay.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  relay.begin();
  for (const int32_t rank : {1, 2, 3}) {
    relay.open(job, static_cast<uint64_t>(rank), rank);
    relay.join(job, static_cast<uint64_t>(rank), rank);
  }
  REQUIRE(other->join(job.record(0), patiently()).ok());
  for (const uint64_t channel : {1, 2, 3}) {
    relay.expect_welcome(channel);
    relay.expect_verdict(channel);
  }
  relay.ask(1, request_of(FrameType::kGet, "later"), 5);
  Request large = request_of(FrameType::kMultiGet, "large");
  large.keys.resize(kLargeBytes / kMaxValueBytes, "large");
  relay.ask(2, large, 6);
  // The store has much to say on channel 2 before this, and has looked for silent ranks after it.
  relay.sort_next();
  REQUIRE(other->set("later", "now", patiently()).ok());
  REQUIRE(other->get("never", briefly(2 * kBeatMs)).status().code() == Code::kTimeout);
  REQUIRE(other->ping(patiently()).ok());
  Frame frame = relay.hear(1);
  while (frame.type == FrameType::kBeat) frame = relay.hear(1);
  CHECK(frame.id == 5);
  while (relay.hear(3).type != FrameType::kBeat) continue;
  CHECK(relay.pieces < kLargeBytes / kMaxDataBytes);  // of all channels
  do {
    frame = relay.hear(2);
  } while (frame.type == FrameType::kBeat);
  CHECK(frame.id == 6);
  CHECK(frame.payload.size() >= kLargeBytes);
}

TEST_CASE("uplink: a refused rank hears why, and its channel is closed") {
  Job job(2);
  PlainRelay relay(job);
  relay.begin();
  relay.open(job, 4, 9);
  const Frame refusal = relay.hear(4);
  CHECK(refusal.type == FrameType::kError);
  relay.wait_closed(4);
  relay.say_on(4, "what was on its way");
  relay.say(encode_frame(FrameType::kClose, 4, std::string(1, '\0')));
  relay.open(job, 5, -1);
  ErrorInfo info;
  REQUIRE(decode(relay.hear(5).payload, &info));
  CHECK(info.message == "a relay brings ranks only; let this client dial the store itself");
  relay.wait_closed(5);
  relay.open(job, 6, 1);
  relay.expect_welcome(6);
}

TEST_CASE("uplink: the answer to the end of a channel that the store has forgotten is ignored") {
  Job job(2, [](ServerOptions* options) { options->silence_ms = 100; });
  PlainRelay relay(job);
  relay.begin();
  relay.say(encode_frame(FrameType::kOpen, 1, {}));  // and says nothing
  relay.wait_closed(1);
  relay.say(encode_frame(FrameType::kClose, 1, std::string(1, '\0')));
  relay.open(job, 2, 1);
  relay.expect_welcome(2);
}

TEST_CASE("uplink: a relay that breaks the rules ends alone, and is told which") {
  Job job(2);
  const auto begun = [&](const std::string& bytes) {
    PlainRelay relay(job);
    relay.begin();
    relay.say(bytes);
    return relay.end_text();
  };
  const std::string open = encode_frame(FrameType::kOpen, 3, {});
  CHECK(begun(open + open) ==
        "channel 3 cannot be opened: numbers only grow, and no more than 8192 are open at a time");
  CHECK(begun(encode_frame(FrameType::kData, 1, "x")) ==
        "a frame of type 30 for channel 1, which was not opened");
  CHECK(begun(encode_frame(FrameType::kPing, 1, {})) ==
        "a frame of type 16 for channel 1, which was not opened");
  CHECK(begun(open + encode_frame(FrameType::kPause, 3, {}) +
              encode_frame(FrameType::kData, 3, "x")) ==
        "data on channel 3, which its relay has paused");
  CHECK(begun("no frame at all") ==
        "the bytes are not dt's store protocol; something else uses this port");
  CHECK(begun(encode_header(FrameType::kData, 1, kMaxDataBytes + 1)) ==
        "a frame of 262145 bytes is over the limit of 262144 bytes");
  PlainRelay nonsense(job);
  nonsense.say(encode_frame(FrameType::kUplink, 1, "x"));
  CHECK(nonsense.end_text() == "the first frame of a relay's connection makes no sense");
  PlainRelay elsewhere(job);
  elsewhere.begin({kProtocolVersion, "b", 2, "hostB"});
  CHECK(elsewhere.end_text() ==
        "the store refuses the relay of host \"hostB\": it belongs to another job; check the "
        "address");
  PlainRelay early(job);
  early.begin({kProtocolVersion, "a", 1, "hostB"});
  CHECK(early.end_text() ==
        "the store refuses the relay of host \"hostB\": it belongs to another attempt; start it "
        "anew");
  PlainRelay old(job);
  old.begin({kProtocolVersion - 1, "a", 2, "hostB"});
  CHECK(old.end_text() ==
        "the store refuses the relay of host \"hostB\": it speaks another protocol; use the same "
        "release of dt everywhere");
  CHECK(job.connect(0)->ping(patiently()).ok());
}

TEST_CASE("uplink: the limit of its channels is told") {
  constexpr uint64_t kChannels = kMaxChannels + 1;
  Job job(static_cast<int32_t>(kChannels));
  PlainRelay relay(job);
  relay.begin();
  for (uint64_t i = 1; i <= kChannels; ++i) relay.open(job, i, static_cast<int32_t>(i) - 1);
  CHECK(relay.end_text() ==
        "channel 8193 cannot be opened: numbers only grow, and no more than 8192 are open at a "
        "time");
}
