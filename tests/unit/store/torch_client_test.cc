// SPDX-License-Identifier: Apache-2.0
// dt as a client of stores that PyTorch serves. 1.13 itself is met in the multiprocess tests.
#include "store/torch_client.h"

#include <sys/resource.h>
#include <unistd.h>

#include <map>

#include "fixture.h"
#include "net/tcp.h"
#include "store/keyspace.h"
#include "store/torch_service.h"

using namespace dt;
using namespace dt::store;
using namespace dt::store::test;

namespace {

enum class Kind {
  k113,     // any first byte is an operation of the old numbers
  k21,      // the same with the numbers of 2.1
  kLegacy,  // hangs up on whom does not begin with 0
  kLibuv,   // says nothing to them
  kHttp,    // answers the first byte with text
  kMute,    // says nothing at all
};

// What PyTorch's servers do when a connection begins; behind that, dt's own service answers.
struct TorchServer {
  const Kind kind;
  std::unique_ptr<net::Loop> loop = std::move(net::Loop::start()).value();
  std::unique_ptr<net::Listener> listener;
  struct Session {
    std::unique_ptr<net::Connection> connection;
    TorchParser parser;
    bool begun = false;
    bool silent = false;
  };
  std::map<uint64_t, Session> sessions;
  Keyspace keys;
  TorchService service{&keys};
  uint64_t last = 0;
  size_t accepted = 0;

  explicit TorchServer(Kind given) : kind(given) {
    const net::Address address = net::resolve_now("127.0.0.1", 0, true).value()[0];
    loop->run([&] {
      listener = std::move(net::Listener::open(loop.get(), address, [this](auto connection) {
                   accept(std::move(connection));
                 })).value();
    });
  }
  ~TorchServer() {
    loop->run([&] {
      listener.reset();
      sessions.clear();
    });
  }
  uint16_t port() const { return listener->bound().port(); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port()); }

  void accept(std::unique_ptr<net::Connection> connection) {
    ++accepted;
    const uint64_t id = ++last;
    Session& session = sessions[id];
    session.connection = std::move(connection);
    if (kind == Kind::k21) {  // settles the parser's dialect
      TorchRequest request;
      session.parser.feed("\x0b", 1);
      REQUIRE(session.parser.next(&request));
    }
    net::ConnectionEvents events;
    events.on_bytes = [this, id](const char* data, size_t bytes) { received(id, data, bytes); };
    events.on_close = [this, id](int) { drop(id); };
    session.connection->open(std::move(events));
  }
  void drop(uint64_t id) {
    keys.drop(id);
    service.drop(id);
    sessions.erase(id);
  }
  void received(uint64_t id, const char* data, size_t bytes) {
    Session& session = sessions[id];
    const bool first = !std::exchange(session.begun, true);
    if (first && data[0] != 0 && kind == Kind::kLegacy) return drop(id);
    if ((first && data[0] != 0 && kind == Kind::kLibuv) || kind == Kind::kMute) {
      session.silent = true;
    }
    if (kind == Kind::kHttp) {
      session.connection->write("HTTP/1.1 400 Bad Request\r\n\r\n");
      return;
    }
    if (session.silent) return;
    session.parser.feed(data, bytes);
    TorchRequest request;
    while (sessions.count(id) != 0 && session.parser.next(&request)) {
      if (kind == Kind::kLegacy && request.op == TorchOp::kListKeys) return drop(id);
      Answers answers;
      const auto reply = service.handle(id, session.parser.dialect(), request, &answers);
      if (!reply.ok()) return drop(id);
      session.connection->write(reply.value().whole());
      for (const Answer& answer : answers) {
        sessions[answer.ticket.first].connection->write(TorchService::reply_to_wait(answer));
      }
    }
  }
  Result<std::shared_ptr<TorchClient>> connect(net::Loop* from, const Wait& wait) {
    return TorchClient::connect(from, {"127.0.0.1", port(), nullptr}, wait);
  }
};

struct Pair {
  TorchServer server;
  std::unique_ptr<net::Loop> loop = std::move(net::Loop::start()).value();
  std::shared_ptr<TorchClient> client;

  explicit Pair(Kind kind) : server(kind) {
    auto connected = server.connect(loop.get(), patiently());
    if (!connected.ok()) FAIL(connected.status().message());
    client = std::move(connected).value();
  }
};

TorchDialect dialect_of(Kind kind) {
  return kind == Kind::k113  ? TorchDialect::kOld
         : kind == Kind::k21 ? TorchDialect::kMiddle
                             : TorchDialect::kNew;
}

}  // namespace

TEST_CASE("torch client: finds the dialect and makes each call in it") {
  for (const Kind kind : {Kind::k113, Kind::k21, Kind::kLegacy, Kind::kLibuv}) {
    CAPTURE(static_cast<int>(kind));
    Pair pair(kind);
    TorchClient& client = *pair.client;
    CHECK(client.dialect() == dialect_of(kind));
    CHECK(client.local_host() == "127.0.0.1");
    CHECK(client.add("torch/n", 5, patiently()).value() == 5);
    CHECK(client.add("torch/n", -7, patiently()).value() == -2);
    CHECK(client.get("torch/n", patiently()).value() == "-2");
    REQUIRE(client.set("torch/a", "one", patiently()).ok());
    REQUIRE(client.multi_set({{"torch/b", "two"}, {"torch/c", ""}}, patiently()).ok());
    CHECK(client.multi_get({"torch/a", "torch/x", "torch/b", "torch/c"}, patiently()).value() ==
          std::vector<std::optional<std::string>>{"one", std::nullopt, "two", ""});
    CHECK(client.multi_get({"torch/x"}, patiently()).value()[0] == std::nullopt);
    CHECK(client.wait_for({"torch/a", "torch/b"}, patiently()).ok());
    CHECK(client.compare_set("torch/s", std::nullopt, "x", patiently()).value().swapped);
    const Swap refused = client.compare_set("torch/s", "y", "z", patiently()).value();
    CHECK_FALSE(refused.swapped);
    CHECK(refused.current == "x");
    CHECK(client.compare_set("torch/s", "x", "z", patiently()).value().swapped);
    CHECK(client.erase("torch/a", patiently()).value());
    CHECK_FALSE(client.erase("torch/a", patiently()).value());
    pair.server.loop->run([&] {
      Answers none;
      REQUIRE(pair.server.keys.set(std::string("torch/n\0x", 9), "", &none).ok());
    });
    const auto listed = client.list("torch/", patiently());
    if (kind == Kind::kLibuv) {
      CHECK(listed.value() == std::vector<std::string>{"torch/b", "torch/c", "torch/n", "torch/s"});
      CHECK(client.list("torch/c", patiently()).value() == std::vector<std::string>{"torch/c"});
      CHECK(client.list("torch/x", patiently()).value().empty());
    } else {
      CHECK(listed.status().code() == Code::kUnsupported);
      CHECK(listed.status().message() ==
            "list \"torch/\": PyTorch's store at " + pair.server.address() +
                " does not tell its keys, as newer releases do; agree on "
                "their names");
    }
    // Counted once, as one client.
    std::string counter;
    pair.server.loop->run([&] { counter = *pair.server.keys.find("dt.torch/init/"); });
    CHECK(counter == "1");
  }
}

TEST_CASE("torch client: a client of dt can be told not to wait where PyTorch serves") {
  for (const Kind kind : {Kind::k113, Kind::k21, Kind::kLegacy, Kind::kLibuv, Kind::kHttp}) {
    CAPTURE(static_cast<int>(kind));
    TorchServer server(kind);
    const auto loop = std::move(net::Loop::start()).value();
    ClientOptions options;
    options.host = "127.0.0.1";
    options.port = server.port();
    options.greeting_ms = 300;  // some never answer
    const Status status = Client::connect(loop.get(), options, patiently()).status();
    CHECK(status.code() == Code::kUnsupported);
    CHECK(status.message().find("what listens at " + server.address() +
                                " does not greet as a store of dt: ") == 0);
  }
}

TEST_CASE("torch client: a wait that ends early leaves later answers in step") {
  for (const Kind kind : {Kind::k113, Kind::kLegacy}) {
    Pair pair(kind);
    const Status status = pair.client->get("torch/late", briefly(50)).status();
    CHECK(status.code() == Code::kTimeout);
    CHECK(status.message() == "key \"torch/late\" was not set in PyTorch's store at " +
                                  pair.server.address() +
                                  " within 0.1 s; look for the rank that should set it");
    CHECK(pair.client->wait_for({"torch/late", "torch/later"}, briefly(50)).message() ==
          "not all of 2 keys were set in PyTorch's store at " + pair.server.address() +
              " within 0.1 s; look for the rank that should set them");
    REQUIRE(pair.client->set("torch/late", "now", patiently()).ok());
    CHECK(pair.client->add("torch/n", 2, patiently()).value() == 2);
    CHECK(pair.client->get("torch/late", patiently()).value() == "now");
  }
}

TEST_CASE("torch client: a thread that waits holds up no other, and an interrupt ends it") {
  Pair pair(Kind::k113);
  Interrupt interrupt;
  on_threads(6, [&](int32_t thread) {
    const std::string key = "torch/k" + std::to_string(thread);
    if (thread == 5) {
      const Wait wait{Deadline::after_ms(kPatienceMs), &interrupt};
      CHECK(pair.client->get("torch/never", wait).status().message() == "the job has failed");
    } else if (thread % 2 == 0) {
      const std::string other = "torch/k" + std::to_string((thread + 1) % 5);
      CHECK(pair.client->get(other, patiently()).ok());
      CHECK(pair.client->set(key, "", patiently()).ok());
    } else {
      CHECK(pair.client->set(key, "", patiently()).ok());
      CHECK(pair.client->get("torch/k0", patiently()).ok());
      if (thread == 3) interrupt.fire(Status(Code::kPeerLost, "the job has failed"));
    }
  });
}

TEST_CASE("torch client: what is no store of PyTorch is told so, in time") {
  auto loop = std::move(net::Loop::start()).value();
  TorchServer http(Kind::kHttp);
  const Status text = http.connect(loop.get(), patiently()).status();
  CHECK(text.code() == Code::kUnsupported);
  CHECK(text.message() ==
        "PyTorch's store at " + http.address() +
            " does not answer as any known release of PyTorch; something else listens there");
  TorchServer mute(Kind::kMute);
  const Status silence = mute.connect(loop.get(), patiently()).status();
  CHECK(silence.code() == Code::kUnsupported);
  CHECK(silence.message() ==
        "PyTorch's store at " + mute.address() +
            " answers neither as PyTorch up to 2.1 nor as newer ones do; something else listens "
            "there, or its protocol is newer than this release");
  const uint16_t nobody = [&] {
    TorchServer gone(Kind::k113);
    return gone.port();
  }();
  const Status absent =
      TorchClient::connect(loop.get(), {"127.0.0.1", nobody, nullptr}, briefly(200)).status();
  CHECK(absent.code() == Code::kTimeout);
  CHECK(absent.message().find("no store within 0.2 s (") == 0);
  INFO(absent.message());
  CHECK(absent.message().find("efused") != std::string::npos);
}

TEST_CASE("torch client: what only this host keeps from connecting fails at once, and says what") {
  auto loop = std::move(net::Loop::start()).value();
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int free_fd = dup(STDIN_FILENO);
  REQUIRE(free_fd >= 0);
  close(free_fd);
  rlimit fewer = before;
  fewer.rlim_cur = static_cast<rlim_t>(free_fd);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &fewer) == 0);
  const Status full =
      TorchClient::connect(loop.get(), {"127.0.0.1", 1, nullptr}, patiently()).status();
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(full.code() == Code::kSystem);
  INFO(full.message());
  CHECK(full.message().find("PyTorch's store at 127.0.0.1:1: cannot connect to 127.0.0.1:1: Too "
                            "many open files; ") == 0);
  CHECK(full.message().find("look whether its process has ended") == std::string::npos);
}

TEST_CASE("torch client: a store that ends fails the calls, with its address") {
  auto loop = std::move(net::Loop::start()).value();
  auto server = std::make_unique<TorchServer>(Kind::k113);
  const std::string address = server->address();
  const auto client = std::move(server->connect(loop.get(), patiently())).value();
  server.reset();
  const Status status = client->set("torch/a", "", patiently());
  CHECK(status.code() == Code::kSystem);
  CHECK(status.message().find("set \"torch/a\": PyTorch's store at " + address + ": ") == 0);
  const std::string large((8 << 20) + 1, 'x');
  CHECK(client->compare_set("torch/a", large, "", patiently()).status().message() ==
        "compare_set \"torch/a\": a value of 8388609 bytes is over the limit of 8388608 bytes of "
        "PyTorch's store at " +
            address);
  CHECK(client->compare_set("torch/a", {}, large, patiently()).status().code() ==
        Code::kInvalidArgument);
  CHECK(client->set("torch/a", large, patiently()).message() ==
        "set \"torch/a\": a value of 8388609 bytes is over the limit of 8388608 bytes of PyTorch's "
        "store at " +
            address);
}
