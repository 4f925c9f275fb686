// SPDX-License-Identifier: Apache-2.0
// PyTorch's clients and dt's on one port.
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <mutex>

#include "fixture.h"
#include "net/address.h"
#include "store/protocol.h"
#include "store/torch_protocol.h"
#include "torch_bytes.h"

using namespace dt;
using namespace dt::store;
using namespace dt::store::test;

namespace {

void allow_torch(ServerOptions* options) { options->torch_compat = true; }

// A blocking socket of somebody who speaks PyTorch's protocol, or something like it.
struct PlainClient {
  int fd;

  explicit PlainClient(const Job& job, const char* source = "127.0.0.1")
      : fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const net::Address from = net::literal_address(source, 0).value();
    REQUIRE(bind(fd, reinterpret_cast<const sockaddr*>(&from.storage), from.length) == 0);
    const net::Address address =
        net::resolve_now("127.0.0.1", job.server->port(), false).value()[0];
    const timeval limit{kPatienceMs / 1000, 0};
    REQUIRE(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    REQUIRE(connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0);
  }
  ~PlainClient() { close(fd); }
  PlainClient(const PlainClient&) = delete;
  PlainClient& operator=(const PlainClient&) = delete;

  void say(const std::string& text) {
    REQUIRE(send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
  }
  std::string hear(size_t count) {
    std::string heard(count, '\0');
    const ssize_t got = recv(fd, heard.data(), count, MSG_WAITALL);
    heard.resize(got < 0 ? 0 : static_cast<size_t>(got));
    return heard;
  }
  std::string ask(const std::string& hex, size_t count) {
    say(bytes(hex));
    return hear(count);
  }
  void end() { shutdown(fd, SHUT_RDWR); }
  bool ended() {
    char byte = 0;
    const ssize_t got = recv(fd, &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }
};

constexpr const char* kAddInit = "03 0500000000000000 696e69742f 0100000000000000";

}  // namespace

TEST_CASE("torch server: clients of every age and ranks of dt exchange keys on one port") {
  Job job(2, allow_torch);
  const auto ranks = job.join_all();
  PlainClient old(job);
  CHECK(old.ask(kAddInit, 8) == bytes("0100000000000000"));
  PlainClient silent(job);  // an old client's second connection
  PlainClient young(job);
  CHECK(young.ask("00 cef7853c 0d 34120000", 4) == bytes("34120000"));
  // From rank to clients, who wait.
  old.say(bytes("05 0100000000000000 0200000000000000 2f61"));
  young.say(bytes("06 0100000000000000 0200000000000000 2f61"));
  REQUIRE(ranks[0]->set("torch/a", "from dt", patiently()).ok());
  CHECK(old.hear(1) == bytes("00"));
  CHECK(young.hear(1) == bytes("00"));
  CHECK(old.ask("02 0200000000000000 2f61", 15) == bytes("0700000000000000") + "from dt");
  CHECK(young.ask("03 0200000000000000 2f61", 15) == bytes("0700000000000000") + "from dt");
  // From a client to the ranks.
  young.say(bytes("01 0200000000000000 2f62 0100000000000000 31"));
  CHECK(ranks[1]->get("torch/b", patiently()).value() == "1");
  CHECK(ranks[1]->add("torch/b", 4, patiently()).value() == 5);
  CHECK(old.ask("03 0200000000000000 2f62 0200000000000000", 8) == bytes("0700000000000000"));
  CHECK(ranks[0]->list("torch/", patiently()).value() ==
        std::vector<std::string>{"torch/a", "torch/b"});
  CHECK(ranks[0]->erase("torch/a", patiently()).value());
  CHECK(young.ask("05 0100000000000000 0200000000000000 2f61", 1) == bytes("01"));
}

TEST_CASE("torch server: clients see no key of dt, and dt's reserved names stay theirs") {
  Job job(1, allow_torch);
  const auto ranks = job.join_all();
  REQUIRE(ranks[0]->set("secret", "x", patiently()).ok());
  PlainClient client(job);
  CHECK(client.ask("06", 8) == bytes("0000000000000000"));
  CHECK(client.ask("04 0100000000000000 0900000000000000 64742e6a6f696e2f30", 1) == bytes("01"));
  CHECK(client.ask(kAddInit, 8) == bytes("0100000000000000"));
  CHECK(ranks[0]->multi_get({"dt.torch/init/"}, patiently()).value()[0] == "1");
  CHECK(ranks[0]->set("dt.torch/init/", "x", patiently()).message() ==
        "key \"dt.torch/init/\": names below \"dt.torch/\" belong to the store; choose another "
        "name");
  CHECK_FALSE(ranks[0]->set("dt.torch.barrier/b", "x", patiently()).ok());
  // Keys that dt cannot name are not listed for it.
  client.say(bytes("00 0300000000000000 2f6100 0000000000000000"));
  client.say(bytes("00 0108000000000000") + "/" + std::string(2048, 'k') +
             bytes("0000000000000000"));
  CHECK(client.ask("06", 8) == bytes("0300000000000000"));
  CHECK(ranks[0]->list("torch/", patiently()).value().empty());
}

TEST_CASE("torch server: a client is no rank, and its end no death") {
  Job job(2, allow_torch);
  PlainClient watching(job);
  CHECK(watching.ask(kAddInit, 8) == bytes("0100000000000000"));
  const auto ranks = job.join_all();
  Failures failures;
  failures.watch(ranks[0].get());
  {
    PlainClient client(job);
    CHECK(client.ask(kAddInit, 8) == bytes("0200000000000000"));
    client.say(bytes("05 0100000000000000 0200000000000000 2f61"));
  }
  REQUIRE(ranks[0]->set("torch/a", "", patiently()).ok());
  REQUIRE(ranks[1]->ping(patiently()).ok());
  CHECK(failures.count() == 0);
  CHECK(job.server->first_failure().rank == -1);
  on_threads(
      2, [&](int32_t rank) { CHECK(ranks[static_cast<size_t>(rank)]->goodbye(patiently()).ok()); });
}

TEST_CASE("torch server: a server that goes does not wait for PyTorch's clients") {
  Job job(1, allow_torch);
  PlainClient client(job);
  CHECK(client.ask(kAddInit, 8) == bytes("0100000000000000"));
  PlainClient silent(job);
  {
    const auto rank = job.connect(0);
    CHECK(job.server->wait_empty(briefly(0)).message().find("1 clients are still connected") !=
          std::string::npos);
  }
  CHECK(job.server->wait_empty(patiently()).ok());
}

TEST_CASE("torch server: a silent connection stays only beside one of its host that speaks") {
  Job job(1, [](ServerOptions* options) {
    options->torch_compat = true;
    options->silence_ms = 400;
  });
  auto first = std::make_unique<PlainClient>(job);
  CHECK(first->ask(kAddInit, 8) == bytes("0100000000000000"));
  PlainClient second(job);
  PlainClient stranger(job, "127.0.0.2");
  CHECK(stranger.ended());  // after the second one's time
  CHECK(second.ask(kAddInit, 8) == bytes("0200000000000000"));
  PlainClient third(job);
  PlainClient other_stranger(job, "127.0.0.2");
  CHECK(other_stranger.ended());
  CHECK(first->ask(kAddInit, 8) == bytes("0300000000000000"));
  first = nullptr;
  second.end();
  CHECK(third.ended());
}

TEST_CASE("torch server: hostile bytes end their own connection only") {
  Job job(1, allow_torch);
  PlainClient good(job);
  CHECK(good.ask(kAddInit, 8) == bytes("0100000000000000"));
  for (const char* hex : {
           "02 0200000000000000 2f61",                      // get of an absent key
           "02 ffffffffffffffff",                           // a key of 2^64 - 1 bytes
           "05 ffffffffffffffff",                           // as many keys
           "09 ffffffffffffff7f",                           // likewise
           "06 ff",                                         // no such operation
           "00 cef7853c 00 00000000",                       // validated with a wrong number
           "00 cef7853c 7f",                                // no such operation
           "00 0200000000000000 2f61 0000000100000000 00",  // fine, but never whole
       }) {
    CAPTURE(hex);
    PlainClient hostile(job);
    hostile.say(bytes(hex));
    if (hex[0] == '0' && hex[1] == '6') CHECK(hostile.hear(8).size() == 8);
    shutdown(hostile.fd, SHUT_WR);
    CHECK(hostile.ended());
  }
  PlainClient http(job);
  http.say("GET / HTTP/1.1\r\n\r\n");
  CHECK(http.hear(20).substr(0, 4) ==
        "dtSt");  // what a stranger is told without clients of PyTorch
  // Half a request holds nobody up.
  PlainClient half(job);
  half.say(bytes("00 cef7853c"));
  CHECK(good.ask("06", 8) == bytes("0100000000000000"));
  CHECK(job.connect(0)->ping(patiently()).ok());
}

TEST_CASE("torch server: an answer of more than 64 MiB arrives whole") {
  constexpr size_t kValueBytes = 1 << 20;
  Job job(1, allow_torch);
  const auto rank = job.connect(0);
  const std::string value(kValueBytes, 'x');
  REQUIRE(rank->set("torch/large", value, patiently()).ok());
  PlainClient client(job);
  client.say(encode_torch({TorchOp::kValidate, {}, kTorchMagic}, TorchDialect::kNew));
  const std::vector<std::string> keys(65, "/large");
  client.say(encode_torch({TorchOp::kMultiGet, keys}, TorchDialect::kNew));
  std::string expected;
  append_torch_text(&expected, value);
  for (size_t i = 0; i < keys.size(); ++i) CHECK(client.hear(expected.size()) == expected);
}

TEST_CASE("torch server: the log says whose connection was closed, and why") {
  std::mutex mutex;
  std::string log;
  Job job(1, [&](ServerOptions* options) {
    options->torch_compat = true;
    options->logger = std::make_shared<Logger>(LogLevel::kDebug, [&](LogLevel, const char* text) {
      const std::scoped_lock lock(mutex);
      log += text;
      log += '\n';
    });
  });
  {
    PlainClient client(job);
    CHECK(client.ask(kAddInit, 8) == bytes("0100000000000000"));
    client.say(bytes("ee"));  // asks for nothing that there is
    CHECK(client.ended());
  }
  REQUIRE(job.connect(0)->ping(patiently()).ok());  // after whatever was logged
  const std::scoped_lock lock(mutex);
  CAPTURE(log);
  CHECK(log.find("store: closed the connection of a PyTorch client: ") != std::string::npos);
  CHECK(log.find("store: a PyTorch client on 127.0.0.1 disconnected: ") != std::string::npos);
}

TEST_CASE("torch server: a client that does not read its answers gets no further ones") {
  Job job(1, allow_torch);
  const auto rank = job.connect(0);
  REQUIRE(rank->set("torch/large", std::string(1 << 20, 'x'), patiently()).ok());
  PlainClient client(job);
  std::string gets;
  for (int i = 0; i < 64; ++i) gets += bytes("02 0600000000000000 2f6c61726765");
  client.say(gets);
  REQUIRE(rank->ping(patiently()).ok());
  for (size_t left = 64 * ((1 << 20) + 8); left > 0;) {
    const std::string piece = client.hear(std::min<size_t>(left, 1 << 20));
    REQUIRE_FALSE(piece.empty());
    left -= piece.size();
  }
  CHECK(client.ask("06", 8) == bytes("0100000000000000"));
}

TEST_CASE(
    "torch server: who makes it keep too much is let go, largest first, and the log says it") {
  constexpr int64_t kBudget = 8 << 20;
  constexpr size_t kValueBytes = 256 << 10;
  std::mutex mutex;
  std::vector<std::string> log;
  Job job(1, [&](ServerOptions* options) {
    options->torch_compat = true;
    options->memory_bytes = kBudget;
    options->host = "hostA";
    options->logger = std::make_shared<Logger>(LogLevel::kWarning, [&](LogLevel, const char* text) {
      const std::scoped_lock lock(mutex);
      log.emplace_back(text);
    });
  });
  const auto rank = job.connect(0);
  PlainClient modest(job);
  CHECK(modest.ask(kAddInit, 8) == bytes("0100000000000000"));
  const std::string watch = encode_torch({TorchOp::kWatch, {"/w"}}, TorchDialect::kOld);
  PlainClient watcher(job);
  watcher.say(watch);
  CHECK(watcher.hear(1).size() == 1);
  // An event has the value of before and of after. One watcher may hold up to half of the budget.
  for (int i = 0; i < 32; ++i) {
    REQUIRE(rank->set("torch/w", std::string(kValueBytes, static_cast<char>('a' + i)), patiently())
                .ok());
  }
  size_t heard = 0;
  for (std::string piece; !(piece = watcher.hear(1 << 16)).empty();) heard += piece.size();
  CHECK(heard < 32 * 2 * kValueBytes);
  // Half a request of more than a quarter of it.
  PlainClient half(job);
  const std::string set =
      encode_torch({TorchOp::kSet, {"/h", std::string(3 << 20, 'h')}}, TorchDialect::kOld);
  (void)send(half.fd, set.data(), set.size() - 1, MSG_NOSIGNAL);
  CHECK(half.ended());
  CHECK(modest.ask(kAddInit, 8) == bytes("0200000000000000"));
  CHECK(rank->ping(patiently()).ok());
  const std::scoped_lock lock(mutex);
  REQUIRE(log.size() == 2);
  for (const std::string& line : log) {
    CAPTURE(line);
    CHECK(line.find("store: closed the connection of a client without the token on 127.0.0.1, for "
                    "which ") == 0);
    CHECK(line.find(" bytes of questions and answers; let it read its answers, or raise "
                    "store.memory_mb") != std::string::npos);
  }
  CHECK(log[0].find("all connections without the token may make the store keep 4194304") !=
        std::string::npos);
  CHECK(log[1].find("a connection without the token may make the store keep 2097152") !=
        std::string::npos);
}

TEST_CASE("torch server: at the limit of connections each is refused in its own way") {
  Job job(1, [](ServerOptions* options) {
    options->torch_compat = true;
    options->max_connections = 1;
  });
  PlainClient first(job);
  CHECK(first.ask(kAddInit, 8) == bytes("0100000000000000"));
  PlainClient second(job);
  second.say(bytes(kAddInit));
  CHECK(second.ended());
  // A guest takes no rank's place. Another client of dt keeps trying: somebody may leave.
  const auto rank = job.connect(0);
  const auto other = Client::connect(job.loop.get(), job.client_options(-1), briefly(300));
  CHECK(other.status().message().find("the store has 1 connections, its limit; raise it or start "
                                      "fewer ranks") != std::string::npos);
}

TEST_CASE("torch server: guests are few, spoken or silent, and ranks come in beside them") {
  constexpr rlim_t kOpenFiles = 128;  // when the store starts: 64 guests and 32 strangers
  constexpr size_t kGuests = kOpenFiles / 2;
  for (const bool silent : {false, true}) {
    CAPTURE(silent);
    std::mutex mutex;
    std::vector<std::string> log;
    rlimit before{};
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    rlimit fewer = before;
    fewer.rlim_cur = kOpenFiles;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &fewer) == 0);
    Job job(2, [&](ServerOptions* options) {
      options->torch_compat = true;
      options->silence_ms = 600'000;  // only their number ends them
      options->logger =
          std::make_shared<Logger>(LogLevel::kWarning, [&](LogLevel, const char* text) {
            const std::scoped_lock lock(mutex);
            log.emplace_back(text);
          });
    });
    setrlimit(RLIMIT_NOFILE, &before);
    PlainClient honest(job);
    CHECK(honest.ask(kAddInit, 8) == bytes("0100000000000000"));
    std::vector<std::unique_ptr<PlainClient>> flood;
    for (size_t i = 0; i < 2 * kGuests; ++i) {
      flood.push_back(std::make_unique<PlainClient>(job));
      if (!silent) (void)send(flood.back()->fd, "\3", 1, MSG_NOSIGNAL);
    }
    const auto ranks = job.join_all();
    CHECK(flood[kGuests + 4]->ended());
    CHECK(flood[0]->ask(silent ? kAddInit : kAddInit + 2, 8) == bytes("0200000000000000"));
    CHECK(honest.ask(kAddInit, 8) == bytes("0300000000000000"));
    for (const auto& rank : ranks) CHECK(rank->ping(patiently()).ok());
    const std::scoped_lock lock(mutex);
    REQUIRE(log.empty() == silent);
    if (silent) continue;
    CHECK(log[0] ==
          "store: refused a PyTorch client on 127.0.0.1 (1 so far): there are 64 connections of "
          "such clients and 0 others, and the limits are 64 of such clients and 16384 in all; "
          "start fewer of them, or raise this process's limit of open files (ulimit -n) and "
          "store.max_connections");
  }
}

TEST_CASE("torch server: off, PyTorch's clients are strangers") {
  Job job(1);
  PlainClient old(job);
  old.say(bytes(kAddInit));
  CHECK(old.hear(20).substr(0, 4) == "dtSt");
  CHECK(job.connect(0)->set("torch/a", "", patiently()).ok());
}
