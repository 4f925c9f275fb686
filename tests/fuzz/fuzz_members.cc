// SPDX-License-Identifier: Apache-2.0
// Several members of one job, each of which may lie: the tables behind the store's parsers. The
// input is a script; each step of it lets one connection send a request that a client could send,
// with values out of small pools, so that members meet at the same ranks, keys, communicators and
// positions; or bytes that are none, or hang up. Two of the connections are channels of a relay.
// A real server over real sockets; a witness, whose ping follows each step, keeps the steps in
// order. Properties: no crash; the witness is answered all the time, and rightly; what members are
// told can be read.
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "net/address.h"
#include "net/loop.h"
#include "store/messages.h"
#include "store/protocol.h"
#include "store/server.h"
#include "store/uplink.h"

namespace {

using namespace dt::store;

constexpr int32_t kWorldSize = 3;
constexpr size_t kPlain = 4;    // connections of their own
constexpr size_t kRelayed = 2;  // channels of a relay
constexpr size_t kStepsMost = 48;
constexpr int kAnswerS = 10;  // of the witness, before the server counts as hanging

void require_members(bool holds, const char* what) {
  if (holds) return;
  (void)std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

dt::net::Loop* members_loop() {
  // Never ended: what libuv and the sanitizers keep for its thread goes with the process.
  static dt::net::Loop* const loop = std::move(dt::net::Loop::start()).value().release();
  return loop;
}

/// Numbers and words out of the input; when it is used up, zeros.
class Script {
 public:
  explicit Script(std::string_view rest) : rest_(rest) {}

  bool over() const { return rest_.empty(); }
  size_t below(size_t limit) {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    return byte % limit;
  }
  std::string bytes() {
    const std::string taken(rest_.substr(0, below(256)));
    rest_.remove_prefix(std::min(taken.size(), rest_.size()));
    return taken;
  }
  template <class T, size_t n>
  T one_of(const T (&pool)[n]) {
    return pool[below(n)];
  }

  int32_t rank() { return one_of<int32_t>({0, 1, 2, -1, 3, -2, INT32_MAX}); }
  int32_t size() { return one_of<int32_t>({kWorldSize, 2, 1, 4, 65536}); }
  int64_t number() { return one_of<int64_t>({1, 2, 3, 0, -1, 4096, INT64_MAX, INT64_MIN}); }
  /// Long enough never to be over, or at once.
  int64_t timeout_ms() { return one_of<int64_t>({-1, 0, 3'600'000, INT64_MAX, INT64_MIN}); }
  std::string name() {
    switch (below(6)) {
      case 0: return "a";
      case 1: return "b";
      case 2: return "world";
      case 3: return join_record_key(rank());
      case 4: return "";
      default: return bytes();
    }
  }
  std::vector<int32_t> ranks() {
    std::vector<int32_t> all(below(5));
    for (int32_t& each : all) each = rank();
    return all;
  }
  std::vector<std::string> names() {
    std::vector<std::string> all(below(4));
    for (std::string& each : all) each = name();
    return all;
  }

 private:
  std::string_view rest_;
};

Hello hello_of(int32_t rank) {
  Hello hello;
  hello.protocol = kProtocolVersion;
  hello.job_id = "a";
  hello.attempt = 0;
  hello.member = {rank, "h" + std::to_string(rank % 2), int64_t{100} + rank};
  hello.world_size = kWorldSize;
  return hello;
}

dt::ErrorInfo info_of(Script* script) {
  dt::ErrorInfo info;
  info.code = script->one_of({dt::Code::kPeerLost, dt::Code::kMismatch, dt::Code::kTimeout,
                              dt::Code::kAborted, dt::Code::kOk});
  info.rank = script->rank();
  info.host = script->one_of({"h0", "h1", ""});
  info.pid = int64_t{100} + info.rank;
  if (script->below(2) == 1) info.operation = "barrier";
  info.sequence = script->number();
  info.message = script->bytes();
  return info;
}

/// A request of any kind; fields that its kind does not have are not sent.
Request request_of(Script* script) {
  Request request;
  request.type = static_cast<FrameType>(script->below(34));
  request.id = script->below(8);
  switch (request.type) {
    case FrameType::kHello:
      request.hello = hello_of(script->rank());
      request.hello.nonce = script->below(3);
      if (script->below(8) == 7) request.hello.world_size = script->size();
      break;
    case FrameType::kJoin: {
      JoinRecord& record = request.join;
      record.rank = script->rank();
      record.world_size = script->below(8) == 7 ? script->size() : kWorldSize;
      record.host_name = script->one_of({"h0", "h1"});
      record.host_id = record.host_name;
      record.pid = int64_t{100} + record.rank;
      record.local_rank = static_cast<int32_t>(script->below(5)) - 1;
      record.node_rank = static_cast<int32_t>(script->below(4)) - 1;
      if (script->below(4) == 3) record.equal_config.emplace_back(script->name(), script->name());
      if (script->below(4) == 3) record.payload = script->bytes();
      request.timeout_ms = script->timeout_ms();
      break;
    }
    case FrameType::kOrders:
      request.orders.communicator = script->name();
      request.orders.size = script->size();
      for (size_t left = script->below(5); left > 0; --left) {
        Order order;
        order.position = script->number();
        order.chain = script->below(3);
        order.sequence = script->number();
        order.call = script->one_of({"barrier", "allreduce f32 sum x 1", ""});
        request.orders.news.push_back(std::move(order));
      }
      break;
    case FrameType::kBeat:
      request.activity.inside = script->below(2) == 1;
      request.activity.stalled = script->below(2) == 1;
      request.activity.communicator = script->name();
      request.activity.operation = script->name();
      request.activity.sequence = script->number();
      request.activity.age_ms = script->number();
      request.activity.members = script->ranks();
      if (script->below(4) == 3) request.activity.refused = script->bytes();
      break;
    case FrameType::kReportFailure:
      request.failure.info = info_of(script);
      request.failure.scope = script->name();
      request.failure.silent = script->below(2) == 1;
      break;
    case FrameType::kBusy: request.busy = {script->rank(), script->name(), script->number()}; break;
    default:
      request.keys = script->names();
      if (request.keys.empty()) request.keys.push_back(script->name());
      request.values = request.keys;
      if (script->below(2) == 1) request.expected = script->name();
      request.number = script->number();
      request.timeout_ms = script->timeout_ms();
      request.ranks = script->ranks();
      request.text = script->name();
      break;
  }
  return request;
}

class Wire {
 public:
  explicit Wire(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const dt::net::Address address = dt::net::resolve_now("127.0.0.1", port, false).value()[0];
    require_members(
        connect(fd_, reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0,
        "a connection");
    const timeval limit{kAnswerS, 0};
    require_members(setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0,
                    "SO_RCVTIMEO");
  }
  ~Wire() {
    // Without a farewell, so that thousands of ports do not stay taken.
    const linger now{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd_);
  }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  /// The server may have hung up.
  void say(const std::string& bytes) {
    if (!begun_ && !bytes.empty()) {
      begun_ = true;
      // Whoever begins otherwise is answered as PyTorch's clients are.
      frames_ = bytes.rfind(encode_header(FrameType::kPing, 0, 0).substr(0, 4), 0) == 0;
    }
    (void)send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  /// Reads what is there, without waiting.
  void listen() {
    char buffer[16384];
    for (;;) {
      const ssize_t got = recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
      if (got <= 0) return;
      if (!frames_) continue;
      parser_.feed(buffer, static_cast<size_t>(got));
      for (Frame frame; parser_.next(&frame);) check(frame);
      require_members(parser_.status().ok(), "frames of the server are whole");
    }
  }
  Frame answer_to(uint64_t id) {
    for (Frame frame;;) {
      while (parser_.next(&frame)) {
        if (frame.id == id) return frame;
        check(frame);
      }
      char buffer[16384];
      const ssize_t got = recv(fd_, buffer, sizeof buffer, 0);
      require_members(got > 0,
                      "the witness is answered in time");  // it hangs, or turned the witness away
      parser_.feed(buffer, static_cast<size_t>(got));
    }
  }

 private:
  static void check(const Frame& frame) {
    dt::ErrorInfo info;
    Failure failure;
    Busy busy;
    Departed departed;
    switch (frame.type) {
      case FrameType::kError:
        return require_members(decode(frame.payload, &info), "an error can be read");
      case FrameType::kFailure:
        return require_members(decode(frame.payload, &failure), "a failure can be read");
      case FrameType::kBusy:
        return require_members(decode(frame.payload, &busy), "news of a busy rank can be read");
      case FrameType::kDeparted:
        return require_members(decode(frame.payload, &departed), "news of leavers can be read");
      default: return;
    }
  }

  const int fd_;
  FrameParser parser_{kMaxPayloadBytes};
  bool begun_ = false;
  bool frames_ = false;
};

class Play {
 public:
  Play() {
    ServerOptions options;
    options.job_id = "a";
    options.world_size = kWorldSize;
    options.torch_compat = true;
    options.heartbeat_ms = 3'600'000;
    options.heartbeat_timeout_ms = 7'200'000;
    server_ = std::move(Server::start(members_loop(), options)).value();
    witness_ = std::make_unique<Wire>(server_->port());
    Request request;
    request.type = FrameType::kHello;
    request.hello = hello_of(-1);
    require_members(ask(std::move(request)).type == FrameType::kReply, "the witness is let in");
  }

  void step(Script* script) {
    const size_t who = script->below(kPlain + kRelayed);
    switch (script->below(16)) {
      case 0: hang_up(who); break;
      case 1: say(who, script->bytes()); break;
      case 2: {
        const auto type = static_cast<FrameType>(script->below(80));
        say(who, encode_frame(type, script->below(8), script->bytes()));
        break;
      }
      default: {
        const Request request = request_of(script);
        say(who, encode_frame(request.type, request.id, encode_request(request)));
        break;
      }
    }
    Request ping;
    require_members(ask(std::move(ping)).type == FrameType::kReply, "a ping is answered");
    for (const auto& wire : wires_) {
      if (wire != nullptr) wire->listen();
    }
  }

  void end() {
    Request request;
    request.type = FrameType::kMultiSet;
    request.keys = {"witness"};
    request.values = {"saw it"};
    require_members(ask(request).type == FrameType::kReply, "the witness may set a value");
    request.type = FrameType::kCompareSet;
    request.expected = "saw it";
    const Frame answer = ask(std::move(request));
    require_members(
        answer.type == FrameType::kReply && answer.payload.find("saw it") != std::string::npos,
        "the witness's value is there");
  }

 private:
  Frame ask(Request request) {
    const uint64_t id = ++last_id_;
    witness_->say(encode_frame(request.type, id, encode_request(request)));
    return witness_->answer_to(id);
  }
  void say(size_t who, const std::string& bytes) {
    if (who < kPlain) {
      if (wires_[who] == nullptr) wires_[who] = std::make_unique<Wire>(server_->port());
      return wires_[who]->say(bytes);
    }
    auto& relay = wires_[kPlain];
    if (relay == nullptr) {
      relay = std::make_unique<Wire>(server_->port());
      relay->say(
          encode_frame(FrameType::kUplink, 1, encode(UplinkHello{kProtocolVersion, "a", 0, "h1"})));
      last_channel_ = 0;
      channels_ = {};
    }
    uint64_t& channel = channels_[who - kPlain];
    if (channel == 0) {
      channel = ++last_channel_;
      relay->say(encode_frame(FrameType::kOpen, channel, ""));
    }
    relay->say(encode_frame(FrameType::kData, channel, bytes));
  }
  void hang_up(size_t who) {
    if (who < kPlain) {
      wires_[who] = nullptr;
    } else if (uint64_t& channel = channels_[who - kPlain]; channel != 0) {
      wires_[kPlain]->say(
          encode_frame(FrameType::kClose, std::exchange(channel, 0), std::string(1, 0)));
    } else {
      wires_[kPlain] = nullptr;
      channels_ = {};
    }
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<Wire> witness_;
  uint64_t last_id_ = 100;
  std::array<std::unique_ptr<Wire>, kPlain + 1> wires_;  // the last is the relay's
  std::array<uint64_t, kRelayed> channels_{};            // 0: not open
  uint64_t last_channel_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  // libFuzzer's SIGALRM, which comes every few seconds, would interrupt connect() and recv(). It is
  // delivered after the input, and every wait in it has a limit.
  sigset_t alarm, before;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &alarm, &before);
  {
    Script script(std::string_view(reinterpret_cast<const char*>(data), bytes));
    Play play;
    for (size_t steps = 0; steps < kStepsMost && !script.over(); ++steps) play.step(&script);
    play.end();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return 0;
}
