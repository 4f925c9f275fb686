// SPDX-License-Identifier: Apache-2.0
// Real clients, a real relay and a real server.
#include "store/relay.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "../../sanitizers.h"
#include "fixture.h"
#include "net/address.h"
#include "store/protocol.h"

using namespace dt;
using namespace dt::store;
using namespace dt::store::test;

namespace {

constexpr char kTokenOfJob = '1';
constexpr char kOtherToken = '2';

net::Security security_of(net::SecurityMode mode, char digit) {
  net::Security security;
  security.mode = mode;
  if (mode != net::SecurityMode::kNone) {
    security.token = std::move(net::Token::from_text(std::string(64, digit))).value();
  }
  return security;
}

/// A relay with a loop of its own, as an agent has it.
struct Node {
  std::unique_ptr<net::Loop> loop = std::move(net::Loop::start()).value();
  std::unique_ptr<Relay> relay;
  Guarded<std::vector<std::string>> log;
  Event logged;

  RelayOptions options_for(const Job& job) {
    RelayOptions options;
    options.host = "127.0.0.1";
    options.port = job.server->port();
    options.job_id = "a";
    options.attempt = 2;
    options.host_name = "hostB";
    options.security = job.options.security;
    options.logger = std::make_shared<Logger>(LogLevel::kInfo, [this](LogLevel, const char* text) {
      log.with([&](std::vector<std::string>& lines) { lines.emplace_back(text); });
      logged.set();
    });
    return options;
  }
  Status start(RelayOptions options, const Wait& wait = patiently()) {
    auto started = Relay::start(loop.get(), std::move(options), wait);
    if (started.ok()) relay = std::move(started).value();
    return started.status();
  }
  explicit Node(const Job& job) {
    if (const Status status = start(options_for(job)); !status.ok()) FAIL(status.message());
  }

  ClientOptions through(const Job& job, int32_t rank) const {
    ClientOptions client = job.client_options(rank);
    client.relay_port = relay->port();
    client.store_address = relay->store_address();
    return client;
  }
  Result<std::shared_ptr<Client>> try_connect(Job* job, int32_t rank) const {
    return Client::connect(job->loop.get(), through(*job, rank), patiently());
  }
  std::shared_ptr<Client> connect(Job* job, int32_t rank) const {
    auto client = try_connect(job, rank);
    if (!client.ok()) FAIL(client.status().message());
    return std::move(client).value();
  }
  std::string store_text(const Job& job) const {
    return format("127.0.0.1:%u (by this host's relay, port %u)", unsigned{job.server->port()},
                  unsigned{relay->port()});
  }
};

/// A rank's connection to the relay: a blocking socket, closed by close() only.
struct PlainRank {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  FrameParser parser{kMaxPayloadBytes};

  explicit PlainRank(const Node& node) {
    const net::Address address =
        net::resolve_now("127.0.0.1", node.relay->port(), false).value()[0];
    const timeval patience{kPatienceMs / 1000, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    REQUIRE(connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0);
  }
  ~PlainRank() { close(fd); }
  PlainRank(const PlainRank&) = delete;
  PlainRank& operator=(const PlainRank&) = delete;

  void say(const Request& request, uint64_t id) {
    const std::string bytes = encode_frame(request.type, id, encode_request(request));
    REQUIRE(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  }
  void say_hello(const Job& job, int32_t rank) {
    Request hello;
    hello.type = FrameType::kHello;
    hello.hello.protocol = kProtocolVersion;
    hello.hello.job_id = "a";
    hello.hello.attempt = 2;
    hello.hello.member = {rank, "hostB", 10 + rank};
    hello.hello.world_size = job.options.world_size;
    hello.hello.nonce = static_cast<uint64_t>(rank) + 1;
    say(hello, 1);
  }
  /// False: the stream has ended, or the patience of a test.
  bool hear(Frame* frame) {
    static constexpr size_t kChunkBytes = 65536;
    std::vector<char> buffer(kChunkBytes);
    while (!parser.next(frame)) {
      const ssize_t bytes = read(fd, buffer.data(), buffer.size());
      if (bytes <= 0) return false;
      parser.feed(buffer.data(), static_cast<size_t>(bytes));
    }
    return true;
  }
  bool is_ended() {
    char byte = 0;
    const ssize_t bytes = recv(fd, &byte, 1, 0);
    return bytes == 0 || (bytes < 0 && errno == ECONNRESET);
  }
};

/// Ranks below half of the world connect by themselves, the others through the relay.
std::vector<std::shared_ptr<Client>> join_by_both(Job* job, const Node& node) {
  const int32_t world = job->options.world_size;
  std::vector<std::shared_ptr<Client>> clients(static_cast<size_t>(world));
  std::vector<Status> joined(clients.size());
  on_threads(world, [&](int32_t rank) {
    const auto index = static_cast<size_t>(rank);
    const ClientOptions options =
        rank < world / 2 ? job->client_options(rank) : node.through(*job, rank);
    auto client = Client::connect(job->loop.get(), options, patiently());
    joined[index] = client.status();
    if (!client.ok()) return;
    clients[index] = std::move(client).value();
    joined[index] = clients[index]->join(job->record(rank), patiently()).status();
  });
  for (const Status& status : joined) {
    if (!status.ok()) FAIL(status.message());
  }
  return clients;
}

}  // namespace

TEST_CASE("relay: the ranks behind it join, share keys and say goodbye like the others") {
  for (const auto mode :
       {net::SecurityMode::kNone, net::SecurityMode::kAuth, net::SecurityMode::kEncrypt}) {
    constexpr int32_t kWorld = 8;
    // Not enough for a connection of each.
    Job job(kWorld, [&](ServerOptions* options) {
      options->security = security_of(mode, kTokenOfJob);
      options->max_connections = kWorld / 2 + 1;
    });
    const Node node(job);
    CHECK(node.relay->store_address() == "127.0.0.1");
    const auto clients = join_by_both(&job, node);
    CHECK(clients[0]->peer_host() == "127.0.0.1");
    CHECK(clients[kWorld - 1]->peer_host() == "127.0.0.1");
    std::string large(3'000'000, ' ');
    for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 31 % 251);
    REQUIRE(clients[kWorld - 1]->set("large", large, patiently()).ok());
    CHECK(clients[0]->get("large", patiently()).value() == large);
    on_threads(kWorld, [&](int32_t rank) {
      const auto& client = clients[static_cast<size_t>(rank)];
      CHECK(client->get("large", patiently()).value() == large);
      for (int i = 0; i < 20; ++i) CHECK(client->add("sum", rank, patiently()).ok());
      CHECK(client->barrier("all", kWorld, patiently()).ok());
    });
    CHECK(clients[kWorld - 1]->get("sum", patiently()).value() == "560");
    CHECK(clients[0]->answers(kWorld - 1, patiently()).value());
    on_threads(kWorld, [&](int32_t rank) {
      CHECK(clients[static_cast<size_t>(rank)]->goodbye(patiently()).ok());
    });
  }
}

TEST_CASE("relay: a rank behind it that ends is named, and no other") {
  Job job(4);
  const Node node(job);
  auto clients = join_by_both(&job, node);
  Failures near, far;
  near.watch(clients[3].get());
  far.watch(clients[0].get());
  clients[2].reset();
  CHECK(far.wait_first().info.message ==
        "rank 2 (hostB pid 12) closed its connection to the store without a goodbye: the process "
        "ended, was killed, or lost its network; look at its log, then go on with dt_comm_shrink "
        "or start the job again");
  CHECK(near.wait_first().info.message == far.wait_first().info.message);
  clients[3]->forgive({2});
  CHECK(clients[3]->ping(patiently()).ok());
  CHECK(far.count() == 1);
}

TEST_CASE("relay: its end is the end of its ranks, and both sides say so") {
  Job job(4);
  Node node(job);
  auto clients = join_by_both(&job, node);
  const std::string store = node.store_text(job);
  Failures behind, before;
  behind.watch(clients[3].get());
  before.watch(clients[0].get());
  node.relay = nullptr;
  const Failure own = behind.wait_first();
  CHECK(own.store_gone);
  CHECK(own.info.message ==
        "rank 0 (hostA pid 10), which serves the store, closed the connection at " + store +
            " without a goodbye: the process ended, was killed, or lost its network; look at its "
            "log, then start the job again");
  const ErrorInfo death = before.wait_first().info;
  CHECK(
      death.message ==
      format(
          "rank %d (hostB pid %d) was lost with the relay of its host \"hostB\", which closed its "
          "connection to the store: the host failed, or the relay's process ended, was killed, or "
          "lost its network; look at its log, then go on with dt_comm_shrink or start the job "
          "again",
          death.rank, 10 + death.rank));
  CHECK(death.rank >= 2);
}

TEST_CASE("relay: the end of the store is told to the ranks behind it") {
  Job job(4);
  Node node(job);
  auto clients = join_by_both(&job, node);
  const std::string store = node.store_text(job);
  const std::string address = job.address();
  const ClientOptions late = node.through(job, 2);
  Failures behind;
  behind.watch(clients[3].get());
  job.server = nullptr;
  CHECK(behind.wait_first().info.message ==
        "rank 0 (hostA pid 10), which serves the store, closed the connection at " + store +
            " without a goodbye: the process ended, was killed, or lost its network; look at its "
            "log, then start the job again");
  REQUIRE(node.logged.wait(patiently()));
  const auto lines = node.log.with([](std::vector<std::string>& log) { return log; });
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] == "relay: lost the store at " + address +
                        ": it closed the connection; the ranks of this host (\"hostB\") lose it, "
                        "too");
  // It listens no more.
  const auto refused = Client::connect(job.loop.get(), late, briefly(50));
  CHECK(refused.status().code() == Code::kTimeout);
}

TEST_CASE("relay: who does not have the token is refused by it, and it by the store") {
  using Mode = net::SecurityMode;
  Job job(
      4, [](ServerOptions* options) { options->security = security_of(Mode::kAuth, kTokenOfJob); });
  Node node(job);
  const auto refusal = [&](const net::Security& security) {
    ClientOptions options = node.through(job, 2);
    options.security = security;
    return Client::connect(job.loop.get(), options, patiently()).status().message();
  };
  const std::string same =
      "the same token (a file that DT_TOKEN_FILE names, or ~/.config/dt/token)";
  CHECK(refusal(security_of(Mode::kAuth, kOtherToken)) ==
        "the store at " + node.store_text(job) +
            ": the other side has another token (both use security.mode = auth); give all "
            "processes of the job " +
            same);
  CHECK(refusal(security_of(Mode::kNone, kOtherToken)) ==
        "the store refuses this connection: it uses security.mode = auth, and this side sent a "
        "plain hello: here is no token, or security.mode = \"none\"; give all processes of the "
        "job " +
            same);
  RelayOptions wrong = node.options_for(job);
  wrong.security = security_of(Mode::kAuth, kOtherToken);
  CHECK(node.start(wrong).message() ==
        "relay to the store at " + job.address() +
            ": the other side has another token (both use security.mode = auth); give all "
            "processes of the job " +
            same);
  CHECK(node.connect(&job, 2)->ping(patiently()).ok());
}

TEST_CASE("relay: a store that is not there, and one of another job, are told apart") {
  Job job(2);
  Node node(job);
  RelayOptions other = node.options_for(job);
  other.job_id = "b";
  const Status refused = node.start(other);
  CHECK(refused.code() == Code::kVersion);
  CHECK(refused.message() ==
        "relay to the store at " + job.address() +
            ": the store refuses the relay of host \"hostB\": it belongs to another job; check the "
            "address");
  const RelayOptions options = node.options_for(job);
  const std::string address = job.address();
  job.server = nullptr;
  const Status none = node.start(options, briefly(100));
  CHECK(none.code() == Code::kTimeout);
  CHECK(none.message().find("relay: no store at " + address + " within 0.1 s (") == 0);
  CHECK(none.message().find("the last: connection refused") != std::string::npos);
  CHECK(none.message().find("); look whether this host reaches that address") != std::string::npos);
}

TEST_CASE("relay: it waits for a store that comes later") {
  Job job(2);
  Node node(job);
  const RelayOptions options = node.options_for(job);
  ServerOptions again = job.options;
  again.port = options.port;
  job.server = nullptr;
  std::thread starter([&] {
    const Status status = node.start(options);
    if (!status.ok()) FAIL_CHECK(status.message());
  });
  auto started = Server::start(job.loop.get(), again);
  starter.join();
  REQUIRE(started.ok());
  job.server = std::move(started).value();
  CHECK(node.connect(&job, 1)->ping(patiently()).ok());
}

TEST_CASE("relay: a rank that does not read keeps nobody waiting, and gets all of it later") {
  constexpr size_t kLargeBytes = 4 << 20;
  constexpr uint64_t kQuestions = 12;  // whose answers are more than two sockets and a queue hold
  constexpr uint64_t kQuestion = 5;
  Job job(4);
  const Node node(job);
  PlainRank slow(node);
  slow.say_hello(job, 3);
  Frame frame;
  REQUIRE(slow.hear(&frame));
  CHECK(frame.type == FrameType::kReply);

  const auto other = node.connect(&job, 2);
  const std::string large(kLargeBytes, 'x');
  REQUIRE(other->set("large", large, patiently()).ok());
  Request question;
  question.type = FrameType::kGet;
  question.keys = {"large"};
  question.timeout_ms = kPatienceMs;
  for (uint64_t i = 0; i < kQuestions; ++i) slow.say(question, kQuestion + i);
  for (int i = 0; i < 50; ++i) REQUIRE(other->add("n", 1, patiently()).ok());
  CHECK(other->get("large", patiently()).value() == large);
  for (uint64_t i = 0; i < kQuestions; ++i) {
    REQUIRE(slow.hear(&frame));
    CHECK(frame.id == kQuestion + i);
    CHECK(frame.payload.size() >= kLargeBytes);
  }
  // It is heard, too.
  Request ping;
  ping.type = FrameType::kPing;
  slow.say(ping, 99);
  REQUIRE(slow.hear(&frame));
  CHECK(frame.id == 99);
}

TEST_CASE("relay: what a rank said last may be much, and it ends before it has read its answers") {
  constexpr size_t kLargeBytes = 4 << 20;
  constexpr size_t kLastBytes = 1 << 20;  // of some frames of the uplink
  constexpr int kQuestions = 12;
  Job job(4);
  const Node node(job);
  const auto other = node.connect(&job, 2);
  REQUIRE(other->set("large", std::string(kLargeBytes, 'x'), patiently()).ok());
  auto slow = std::make_unique<PlainRank>(node);
  slow->say_hello(job, 3);
  Frame frame;
  REQUIRE(slow->hear(&frame));
  Request request;
  request.type = FrameType::kSet;
  request.keys = {"first"};
  request.values = {std::string(kLargeBytes, 'y')};
  for (uint64_t id = 2; id < 6; ++id) {  // the kernel gives a busy connection a larger window
    slow->say(request, id);
    REQUIRE(slow->hear(&frame));
    CHECK(frame.id == id);
  }
  request = {};
  request.type = FrameType::kGet;
  request.keys = {"large"};
  request.timeout_ms = kPatienceMs;
  for (int i = 0; i < kQuestions; ++i) slow->say(request, 10);
  const Deadline patience = Deadline::after_ms(kPatienceMs);
  const Deadline enough = Deadline::after_ms(2'000);
  const auto look_again_soon = [] {
    Event never;
    CHECK_FALSE(never.wait(briefly(10)));
  };
  // The relay pauses the rank some time after the rank's kernel takes no more of the answers.
  for (int waiting = 0, before = -1; (waiting != before || waiting == 0) && !enough.passed();) {
    before = waiting;
    look_again_soon();
    REQUIRE(ioctl(slow->fd, FIONREAD, &waiting) == 0);
  }
  // The relay's kernel takes this.
  request = {};
  request.type = FrameType::kSet;
  request.keys = {"last"};
  request.values = {std::string(kLastBytes, 'z')};
  const std::string last = encode_frame(request.type, 11, encode_request(request));
  size_t sent = 0;
  int unread = 1;
  while ((sent < last.size() || unread > 0) && !enough.passed()) {
    const ssize_t bytes =
        send(slow->fd, last.data() + sent, last.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (bytes > 0) sent += static_cast<size_t>(bytes);
    REQUIRE(ioctl(slow->fd, SIOCOUTQ, &unread) == 0);
    look_again_soon();
  }
  slow = nullptr;  // with a reset, because it has not read everything
  // The store hears of its end behind what it said last, and until then refuses another.
  Status again = node.try_connect(&job, 3).status();
  while (!again.ok() && !patience.passed()) again = node.try_connect(&job, 3).status();
  CHECK(again.ok());
  CHECK(other->ping(patiently()).ok());
}

TEST_CASE("relay: the store forgets a rank that it has ended before the rank hangs up") {
  Job job(2, [](ServerOptions* options) {
    options->several_jobs = true;
    options->silence_ms = 600'000;  // it does not end those that were refused
  });
  const Node node(job);
  // Its connection outlives its job, and ends with the first hello of the next one.
  PlainRank old(node);
  old.say_hello(job, 1);
  Frame frame;
  REQUIRE(old.hear(&frame));
  CHECK(frame.type == FrameType::kReply);
  Request request;
  request.type = FrameType::kJoin;
  request.join = job.record(1);
  request.timeout_ms = kPatienceMs;
  old.say(request, 2);
  auto rank0 = job.connect(0);
  REQUIRE(rank0->join(job.record(0), patiently()).ok());
  request = {};
  request.type = FrameType::kGoodbye;
  request.timeout_ms = kPatienceMs;
  old.say(request, 3);
  REQUIRE(rank0->goodbye(patiently()).ok());
  rank0 = nullptr;
  rank0 = job.connect(0);
  uint64_t last_answer = 0;
  while (old.hear(&frame)) last_answer = frame.type == FrameType::kReply ? frame.id : last_answer;
  CHECK(last_answer == 3);  // nothing of what it was told is lost
  CHECK(old.is_ended());
  // One that was refused, and hears why.
  PlainRank refused(node);
  refused.say_hello(job, 9);
  REQUIRE(refused.hear(&frame));
  CHECK(frame.type == FrameType::kError);
  CHECK(refused.is_ended());
  rank0 = nullptr;
  CHECK(job.server->wait_empty(patiently()).ok());
  CHECK(node.connect(&job, 1)->ping(patiently()).ok());
}

TEST_CASE("relay: strangers are few, the oldest go, and ranks come in beside them") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit fewer = before;
  fewer.rlim_cur = 512;  // 128 strangers
  REQUIRE(setrlimit(RLIMIT_NOFILE, &fewer) == 0);
  {
    Job job(4, [](ServerOptions* options) {
      options->security = security_of(net::SecurityMode::kAuth, kTokenOfJob);
    });
    const Node node(job);
    const auto early = node.connect(&job, 2);
    const Deadline greeting = Deadline::after_ms(9'000);  // less than a relay gives a stranger
    std::vector<std::unique_ptr<PlainRank>> idle;
    for (int i = 0; i < 160; ++i) idle.push_back(std::make_unique<PlainRank>(node));
    const auto late = node.connect(&job, 3);
    CHECK(idle.front()->is_ended());
    CHECK_FALSE(greeting.passed());  // their number has ended it, not its time
    CHECK(early->ping(patiently()).ok());
    CHECK(late->ping(patiently()).ok());
  }
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("relay: what ranks say faster than the store takes it waits, and arrives") {
  constexpr int32_t kWorld = 4;
  constexpr int kValues = dt::test::kThreadSanitizer ? 4 : 12;
  Job job(kWorld);
  const Node node(job);
  std::vector<std::shared_ptr<Client>> clients;
  for (int32_t rank = 0; rank < kWorld; ++rank) clients.push_back(node.connect(&job, rank));
  on_threads(kWorld, [&](int32_t rank) {
    const auto& client = clients[static_cast<size_t>(rank)];
    for (int i = 0; i < kValues; ++i) {
      const std::string value(4 << 20, static_cast<char>('a' + rank));
      CHECK(client->set(format("k%d", rank), value, patiently()).ok());
    }
    CHECK(client->get(format("k%d", rank), patiently()).value().size() == 4 << 20);
  });
}

TEST_CASE("relay: many ranks come at once, and go") {
  constexpr int32_t kWorld = 64;
  Job job(kWorld);
  const Node node(job);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Client>> clients(kWorld);
    on_threads(kWorld, [&](int32_t rank) {
      auto client = node.try_connect(&job, rank);
      CHECK_MESSAGE(client.ok(), client.status().message());
      if (!client.ok()) return;
      CHECK(client.value()->ping(patiently()).ok());
      clients[static_cast<size_t>(rank)] = std::move(client).value();
    });
  }
}
