// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fixture.h"
#include "net/address.h"
#include "store/protocol.h"

using namespace dt;
using namespace dt::store;
using namespace dt::store::test;

namespace {

constexpr int64_t kSilenceMs = 2000;  // above any delay of a busy machine

void beat_often(ServerOptions* options) {
  options->heartbeat_ms = 50;
  options->heartbeat_timeout_ms = kSilenceMs;
}

/// Texts that a client was told.
struct Told {
  Guarded<std::string> text;
  Event came;
};

Client::Observers alive(std::shared_ptr<Told> notice = nullptr, Activity activity = {}) {
  Client::Observers observers;
  observers.activity = [activity] { return activity; };
  observers.notice = [notice](const std::string& text) {
    if (notice == nullptr) return;
    notice->text.with([&](std::string& mine) { mine = text; });
    notice->came.set();
  };
  return observers;
}

/// While it lives, whatever runs on the loop is as a process that is stopped.
class HeldLoop {
 public:
  explicit HeldLoop(net::Loop* loop) {
    loop->post([held = held_, released = released_] {
      held->set();
      (void)released->wait(patiently());
    });
    REQUIRE(held_->wait(patiently()));
  }
  ~HeldLoop() { released_->set(); }
  HeldLoop(const HeldLoop&) = delete;
  HeldLoop& operator=(const HeldLoop&) = delete;

 private:
  const std::shared_ptr<Event> held_ = std::make_shared<Event>();
  const std::shared_ptr<Event> released_ = std::make_shared<Event>();
};

/// A rank that reads and writes as slowly as a test likes: a blocking socket.
struct BareRank {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  FrameParser parser{kMaxPayloadBytes};

  BareRank(const Job& job, int32_t rank) {
    const int small = 64 << 10;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    const timeval patience{kPatienceMs / 1000, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    const net::Address address =
        net::resolve_now("127.0.0.1", job.server->port(), false).value()[0];
    REQUIRE(connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0);
    Request hello;
    hello.type = FrameType::kHello;
    hello.hello.protocol = kProtocolVersion;
    hello.hello.job_id = "a";
    hello.hello.attempt = 2;
    hello.hello.member = {rank, job.host_of(rank), 10 + rank};
    hello.hello.world_size = job.options.world_size;
    hello.hello.nonce = 1;
    say(hello, 1);
    CHECK(hear().type == FrameType::kReply);
    Request join;
    join.type = FrameType::kJoin;
    join.join = job.record(rank);
    say(join, 2);
  }
  ~BareRank() { close(fd); }
  BareRank(const BareRank&) = delete;
  BareRank& operator=(const BareRank&) = delete;

  void say(const Request& request, uint64_t id) {
    write(encode_frame(request.type, id, encode_request(request)));
  }
  void write(std::string_view bytes) const {
    REQUIRE(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  }
  /// Reads once; false: the stream has ended, or the patience of a test.
  bool read_some() {
    std::vector<char> buffer(64 << 10);
    const ssize_t bytes = recv(fd, buffer.data(), buffer.size(), 0);
    if (bytes > 0) parser.feed(buffer.data(), static_cast<size_t>(bytes));
    return bytes > 0;
  }
  Frame hear() {
    Frame frame;
    while (!parser.next(&frame)) REQUIRE(read_some());
    return frame;
  }
  bool is_readable(int ms) const {
    pollfd wanted{fd, POLLIN, 0};
    return poll(&wanted, 1, ms) == 1;
  }
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("heartbeat: a silent rank is lost, named to all others, and told itself") {
  Job job(3, beat_often);
  const auto loop = std::move(net::Loop::start()).value();
  auto clients = job.join_all(loop.get(), 2);
  Failures failures[3];
  for (size_t rank = 0; rank < 3; ++rank) failures[rank].watch(clients[rank].get());
  auto stopped = std::make_unique<HeldLoop>(loop.get());  // rank 2
  for (const size_t rank : {0, 1}) {
    const Failure failure = failures[rank].wait_first();
    CHECK(failure.info.code == Code::kPeerLost);
    CHECK(failure.info.rank == 2);
    CHECK(failure.info.host == "hostB");
    CHECK(failure.info.pid == 12);
    INFO(failure.info.message);
    CHECK(has(failure.info.message, "rank 2 (hostB pid 12) has given no sign of life for "));
    CHECK(
        has(failure.info.message, " s: its process is stopped, or its host or network is down; "));
  }
  stopped = nullptr;
  const Failure farewell = failures[2].wait_first();
  CHECK(farewell.info.code == Code::kAborted);
  CHECK(farewell.info.rank == 2);
  INFO(farewell.info.message);
  CHECK(has(farewell.info.message, "rank 2 (hostB pid 12) was declared lost: "));
}

TEST_CASE("heartbeat: where no other host is heard, the store's own network is doubted") {
  Job job(4, beat_often);
  const auto loop = std::move(net::Loop::start()).value();
  auto clients = job.join_all(loop.get(), 2);
  Failures failures[2];
  for (const size_t rank : {0, 1}) failures[rank].watch(clients[rank].get());
  const HeldLoop stopped(loop.get());
  for (Failures& each : failures) {
    const Failure failure = each.wait_first();
    INFO(failure.info.message);
    CHECK(failure.info.host == "hostB");
    CHECK(has(failure.info.message,
              "; none of the 2 ranks on other hosts is heard by hostA any more, so look at its own "
              "network first; "));
  }
}

TEST_CASE("heartbeat: ranks that give signs of life stay, and so do those that have left") {
  Job job(2, beat_often);
  auto clients = job.join_all();
  Failures failures[2];
  for (size_t rank = 0; rank < 2; ++rank) failures[rank].watch(clients[rank].get());
  clients[0]->observe(alive());  // rank 1 has joined, and its GPU takes long to start
  // Longer than a silent one would be let be.
  CHECK(clients[0]->get("never", briefly(2 * kSilenceMs)).status().code() == Code::kTimeout);
  CHECK(failures[0].count() + failures[1].count() == 0);
  std::thread leaving([&] { CHECK(clients[1]->goodbye(patiently()).ok()); });
  CHECK(clients[0]->goodbye(patiently()).ok());
  leaving.join();
}

TEST_CASE("heartbeat: silence counts from the first beat on") {
  Job job(2, beat_often);
  ClientOptions anybody = job.client_options(-1);
  anybody.world_size = 0;
  const auto idle = std::move(Client::connect(job.loop.get(), anybody, patiently())).value();
  const auto other = std::move(Client::connect(job.loop.get(), anybody, patiently())).value();
  Failures failures;
  failures.watch(idle.get());
  CHECK(other->get("never", briefly(kSilenceMs + 200)).status().code() == Code::kTimeout);
  idle->observe({});
  CHECK(idle->set("a", "b", patiently()).ok());
  CHECK(failures.count() == 0);
}

TEST_CASE("heartbeat: a rank that is away on purpose is waited for") {
  Job job(2, beat_often);
  const auto loop = std::move(net::Loop::start()).value();
  auto clients = job.join_all(loop.get(), 1);
  Failures failures;
  failures.watch(clients[0].get());
  auto seen = std::make_shared<Guarded<std::vector<Busy>>>();
  Client::Observers observers = alive();
  observers.busy = [seen](const Busy& busy) {
    seen->with([&](std::vector<Busy>& all) { all.push_back(busy); });
  };
  clients[0]->observe(observers);
  CHECK(clients[1]->busy("checkpoint", 60'000, patiently()).ok());
  {
    const HeldLoop stopped(loop.get());
    CHECK(clients[0]->get("never", briefly(2 * kSilenceMs)).status().code() == Code::kTimeout);
    CHECK(failures.count() == 0);
  }
  CHECK(clients[1]->busy("", 0, patiently()).ok());
  const HeldLoop stopped(loop.get());
  CHECK(failures.wait_first().info.rank == 1);  // back, and silent
  const auto told = seen->with([](const std::vector<Busy>& all) { return all; });
  REQUIRE(told.size() == 2);
  CHECK(told[0].rank == 1);
  CHECK(told[0].what == "checkpoint");
  CHECK(told[0].max_ms == 60'000);
  CHECK(told[1].max_ms == 0);
}

TEST_CASE("heartbeat: a rank that takes a large answer slowly lives, until it takes no more") {
  Job job(2, beat_often);
  const auto other = job.connect(0);
  // Before the store waits for signs of life.
  REQUIRE(other->set("large", std::string(kMaxValueBytes, 'x'), patiently()).ok());
  BareRank slow(job, 1);
  REQUIRE(other->join(job.record(0), patiently()).ok());
  CHECK(slow.hear().id == 2);
  Failures failures;
  failures.watch(other.get());
  Request question;
  question.type = FrameType::kGet;
  question.keys = {"large"};
  question.timeout_ms = kPatienceMs;
  for (const uint64_t id : {3, 4}) slow.say(question, id);
  const Deadline enough = Deadline::after_ms(2 * kSilenceMs);
  while (!enough.passed()) {
    REQUIRE(slow.read_some());  // and says nothing
    REQUIRE(other->get("never", briefly(50)).status().code() == Code::kTimeout);
  }
  CHECK(failures.count() == 0);
  const Failure failure = failures.wait_first();
  CHECK(failure.info.rank == 1);
  CHECK(has(failure.info.message, " has given no sign of life for "));
}

TEST_CASE("heartbeat: the store gives signs of life while a large request comes slowly") {
  Job job(2, beat_often);
  const auto other = job.connect(0);
  BareRank slow(job, 1);
  REQUIRE(other->join(job.record(0), patiently()).ok());
  CHECK(slow.hear().id == 2);
  Request request;
  request.type = FrameType::kSet;
  request.keys = {"large"};
  request.values = {std::string(1 << 20, 'x')};
  const std::string frame = encode_frame(request.type, 3, encode_request(request));
  constexpr size_t kPieceBytes = 256;
  std::string_view rest = frame;
  int beats = 0;
  for (; beats < 3 && rest.size() > kPieceBytes; rest.remove_prefix(kPieceBytes)) {
    slow.write(rest.substr(0, kPieceBytes));
    if (!slow.is_readable(20)) continue;
    CHECK(slow.hear().type == FrameType::kBeat);
    ++beats;
  }
  CHECK(beats == 3);
  slow.write(rest);
  Frame answer = slow.hear();
  while (answer.type == FrameType::kBeat) answer = slow.hear();
  CHECK(answer.type == FrameType::kReply);
  CHECK(answer.id == 3);
}

TEST_CASE("heartbeat: a store that says nothing any more is lost") {
  Job job(1, beat_often);
  const auto loop = std::move(net::Loop::start()).value();  // the client's own
  auto client = Client::connect(loop.get(), job.client_options(0), patiently());
  REQUIRE(client.ok());
  REQUIRE(client.value()->join(job.record(0), patiently()).ok());
  Failures failures;
  failures.watch(client.value().get());
  auto stopped = std::make_unique<HeldLoop>(job.loop.get());
  const Failure failure = failures.wait_first();
  stopped = nullptr;
  CHECK(failure.info.code == Code::kPeerLost);
  CHECK(failure.info.rank == 0);
  INFO(failure.info.message);
  CHECK(has(failure.info.message,
            "rank 0 (hostA pid 10), which serves the store, has given no sign "
            "of life for "));
  CHECK(client.value()->ping(patiently()).message() == failure.info.message);
}

TEST_CASE("heartbeat: a sign of life that is due while the store is found lost does no harm") {
  Job job(1, [](ServerOptions* options) { options->heartbeat_ms = 10; });
  const auto loop = std::move(net::Loop::start()).value();  // the client's own
  auto client = Client::connect(loop.get(), job.client_options(0), patiently());
  REQUIRE(client.ok());
  REQUIRE(client.value()->join(job.record(0), patiently()).ok());
  const auto told = std::make_shared<Event>();
  client.value()->on_failure([told](const Failure& failure) {
    CHECK(failure.info.code == Code::kPeerLost);
    Event never;
    CHECK_FALSE(never.wait(briefly(100)));  // the loop is busy until the next one is due
    told->set();
  });
  client.value()->observe(alive());
  job.server.reset();
  REQUIRE(told->wait(patiently()));
  CHECK(client.value()->ping(patiently()).code() == Code::kPeerLost);
}

TEST_CASE("heartbeat: a stall is told to rank 0") {
  Job job(2, beat_often);
  auto clients = job.join_all();
  const auto notice = std::make_shared<Told>();
  clients[0]->observe(alive(notice));
  Activity stuck;
  stuck.inside = stuck.stalled = true;
  stuck.communicator = "world";
  stuck.operation = "barrier";
  stuck.sequence = 4;
  stuck.age_ms = 30'000;
  stuck.members = {0, 1};
  clients[1]->observe(alive(nullptr, stuck));
  REQUIRE(notice->came.wait(patiently()));
  const std::string text = notice->text.with([](const std::string& mine) { return mine; });
  INFO(text);
  CHECK(has(text,
            "barrier #4 on comm \"world\" is under way for 30.0 s: inside is rank 1; "
            "missing: rank 0 (hostA pid 10), which has entered no operation yet"));
}

TEST_CASE("heartbeat: ranks that called different things are told, and so are the others") {
  Job job(3, beat_often);
  auto clients = job.join_all();
  std::vector<std::shared_ptr<Told>> told;
  for (int32_t rank = 0; rank < 3; ++rank) {
    const auto mine = std::make_shared<Told>();
    told.push_back(mine);
    clients[static_cast<size_t>(rank)]->on_failure([mine](const Failure& failure) {
      if (failure.info.code != Code::kMismatch || failure.scope != "world/0.1") return;
      mine->text.with([&](std::string& text) { text = failure.info.message; });
      mine->came.set();
    });
    Client::Observers observers = alive();
    const bool differs = rank == 1;
    observers.orders = [differs, first = true](bool) mutable -> std::vector<Orders> {
      if (!std::exchange(first, false)) return {};
      const Order same = {1, 77, 5, "barrier"};
      const Order next = differs ? Order{2, 2, 6, "allreduce f32 sum x 3"}
                                 : Order{2, 1, 6, "broadcast f32 x 3 root 0"};
      return {{"world/0.1", 3, {same, next}}};
    };
    clients[static_cast<size_t>(rank)]->observe(std::move(observers));
  }
  for (const auto& mine : told) {
    REQUIRE(mine->came.wait(patiently()));
    const std::string text = mine->text.with([](const std::string& it) { return it; });
    CHECK(text ==
          "broadcast #6 on comm \"world/0.1\": ranks disagree: rank 0 (hostA, pid 10) and 1 more: "
          "broadcast f32 x 3 root 0, rank 1 (hostA, pid 11): allreduce f32 sum x 3; make all ranks "
          "issue the same operations in the same order, then go on with dt_comm_shrink");
  }
}

TEST_CASE(
    "heartbeat: a time-out is told with the rank that has not called the operation, also to its "
    "reporter") {
  for (const bool all_called : {false, true}) {
    CAPTURE(all_called);
    Job job(3, beat_often);
    auto clients = job.join_all();
    const auto told = std::make_shared<Told>();
    for (int32_t rank = 0; rank < 3; ++rank) {
      const bool behind = rank == 2 && !all_called;
      Activity activity;
      activity.communicator = "world";
      activity.operation = "allreduce";
      activity.sequence = behind ? 6 : 7;
      activity.inside = !behind;
      Client::Observers observers = alive(nullptr, activity);
      observers.orders = [behind, first = true](bool) mutable -> std::vector<Orders> {
        if (!std::exchange(first, false)) return {};
        std::vector<Order> news = {{1, 77, 6, "allreduce f32 sum x 3"}};
        if (!behind) news.push_back({2, 78, 7, "allreduce f32 sum x 3"});
        return {{"world", 3, std::move(news)}};
      };
      clients[static_cast<size_t>(rank)]->observe(std::move(observers));
    }
    clients[0]->on_failure([told](const Failure& failure) {
      if (failure.info.code != Code::kTimeout || failure.scope != "world") return;
      told->text.with([&](std::string& text) {
        text = format("rank %d, pid %d: %s", failure.info.rank, int(failure.info.pid),
                      failure.info.message.c_str());
      });
      told->came.set();
    });
    ErrorInfo info;
    info.code = Code::kTimeout;
    info.message = "timed out";
    info.operation = "allreduce";
    info.sequence = 7;
    const std::string wanted =
        all_called ? "all ranks have called it, so look at the network and the GPUs"
                   : "not known to be called by rank 2 (hostB pid 12), which left allreduce #6";
    // Until the store has heard of all three.
    const Deadline deadline = Deadline::after_ms(kPatienceMs);
    std::string text;
    do {
      REQUIRE(clients[0]->report_failure("world", info, patiently()).ok());
      text = told->text.with([](const std::string& mine) { return mine; });
    } while (!has(text, wanted) && !deadline.passed());
    INFO(text);
    CHECK(has(text, wanted));
    CHECK(has(text, all_called ? "rank -1, pid 0: timed out; " : "rank 2, pid 12: timed out; "));
  }
}

TEST_CASE("heartbeat: ranks are asked to stop once one of them heeds it") {
  Job job(2, beat_often);
  auto clients = job.join_all();
  CHECK_FALSE(job.server->heeds_stop());
  CHECK(clients[1]->heed_stop(patiently()).ok());
  CHECK(job.server->heeds_stop());
  Event stopped;
  Client::Observers observers = alive();
  observers.stop = [&] { stopped.set(); };
  clients[0]->observe(observers);
  job.server->request_stop();
  CHECK(stopped.wait(patiently()));
  clients[0]->observe(alive());
  // A rank that has left does not end by a request any more.
  std::thread leaving([&] { CHECK(clients[1]->goodbye(patiently()).ok()); });
  CHECK(clients[0]->goodbye(patiently()).ok());
  leaving.join();
  CHECK(job.server->heeds_stop());
  clients[1].reset();
  const Deadline patience = Deadline::after_ms(kPatienceMs);
  while (job.server->heeds_stop() && !patience.passed()) {
    REQUIRE(clients[0]->ping(patiently()).ok());
  }
  CHECK_FALSE(job.server->heeds_stop());
}
