// SPDX-License-Identifier: Apache-2.0
// Parameter servers and their workers, in one process, over loopback.
#include "ps/server.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../contains.h"
#include "net/tcp.h"
#include "ps/checkpoint.h"
#include "ps/client.h"
#include "transport/tcp/socket.h"

using namespace dt;
using namespace dt::ps;
using dt::test::contains;

namespace {

constexpr int64_t kPatienceMs = 120'000;
Wait patient() { return Wait{Deadline::after_ms(kPatienceMs), nullptr}; }

net::Address loopback() {
  const auto found = net::resolve_now("127.0.0.1", 0, true);
  REQUIRE(found.ok());
  return found.value()[0];
}

/// A folder of its own.
struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "dt-ps-XXXXXX").string();
  Folder() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
};

/// The servers of a job. Their sockets outlive them, as under an agent.
struct Servers {
  explicit Servers(Server::Options options = {}) : base(std::move(options)) {}
  void add() {
    auto socket = tcp::listen_on(loopback(), {});
    REQUIRE(socket.ok());
    sockets.push_back(std::move(socket).value());
    addresses.push_back({"127.0.0.1", sockets.back().local().port()});
    servers.emplace_back();
  }
  Status try_start(int index) {
    Server::Options options = base;
    options.index = index;
    options.servers = static_cast<int32_t>(servers.size());
    options.job_id = "job";
    options.host = "here";
    options.pid = 100 + index;
    auto made = Server::start(
        tcp::Socket(fcntl(sockets[static_cast<size_t>(index)].fd(), F_DUPFD_CLOEXEC, 0)), options);
    if (!made.ok()) return made.status();
    servers[static_cast<size_t>(index)] = std::move(made).value();
    return {};
  }
  void start(int index) { REQUIRE(try_start(index).ok()); }
  void kill(int index) { servers[static_cast<size_t>(index)] = nullptr; }

  Server::Options base;
  std::vector<tcp::Socket> sockets;
  std::vector<net::HostPort> addresses;
  std::vector<std::unique_ptr<Server>> servers;
};

std::unique_ptr<Servers> serve(int count, Server::Options base = {}) {
  auto all = std::make_unique<Servers>(std::move(base));
  for (int i = 0; i < count; ++i) all->add();
  for (int i = 0; i < count; ++i) all->start(i);
  return all;
}

Client::Options worker_options(const std::vector<net::HostPort>& servers, int32_t worker) {
  Client::Options options;
  options.servers = servers;
  options.worker = worker;
  options.job_id = "job";
  options.host = "there";
  options.pid = 1000 + worker;
  options.timeout_ms = kPatienceMs;
  return options;
}

std::unique_ptr<Client> join(const Servers& servers, int32_t worker) {
  auto client = Client::connect(worker_options(servers.addresses, worker), patient());
  REQUIRE_MESSAGE(client.ok(), client.status().message());
  return std::move(client).value();
}

Variable matrix(const char* name, int64_t rows, int32_t columns) {
  Variable variable;
  variable.name = name;
  variable.rows = rows;
  variable.columns = columns;
  variable.rate = 1;
  return variable;
}

/// The status of a call once its work is done.
template <class F>
Status finish(F&& issue) {
  const auto work = std::make_shared<backend::Work>();
  DT_TRY(issue(work));
  Doorbell bell;
  work->watch(&bell);
  const Deadline deadline = Deadline::after_ms(kPatienceMs);
  while (!work->done() && !deadline.passed()) {
    const uint32_t ticket = bell.prepare();
    if (work->done()) {
      bell.cancel();
      break;
    }
    bell.sleep(ticket, deadline);
  }
  work->unwatch(&bell);
  if (!work->done()) return Status(Code::kInternal, "the test's own patience is over");
  return work->status();
}

Status push(Client& client, int32_t variable, const std::vector<int64_t>& rows,
            const std::vector<float>& gradients, double rate = -1) {
  return finish([&](const auto& work) {
    return client.push(variable, rows.data(), static_cast<int64_t>(rows.size()), gradients.data(),
                       rate, work);
  });
}

Status push_all(Client& client, int32_t variable, const std::vector<float>& gradients) {
  return finish([&](const auto& work) {
    return client.push(variable, nullptr, -1, gradients.data(), -1, work);
  });
}

std::vector<float> pull(Client& client, int32_t variable, const std::vector<int64_t>& rows) {
  const Variable what = client.variable(variable).value();
  std::vector<float> values(rows.size() * static_cast<size_t>(what.columns));
  const Status status = finish([&](const auto& work) {
    return client.pull(variable, rows.data(), static_cast<int64_t>(rows.size()), values.data(),
                       work);
  });
  REQUIRE_MESSAGE(status.ok(), status.message());
  return values;
}

std::vector<float> pull_all(Client& client, int32_t variable) {
  const Variable what = client.variable(variable).value();
  std::vector<float> values(static_cast<size_t>(what.rows * what.columns));
  const Status status = finish(
      [&](const auto& work) { return client.pull(variable, nullptr, -1, values.data(), work); });
  REQUIRE_MESSAGE(status.ok(), status.message());
  return values;
}

/// Passes bytes on to a port, until it is told to cut.
class Proxy {
 public:
  explicit Proxy(uint16_t to) : to_(std::move(net::literal_address("127.0.0.1", to)).value()) {
    loop_ = std::move(net::Loop::start("proxy")).value();
    loop_->run([this] {
      auto opened = net::Listener::open(loop_.get(), loopback(),
                                        [this](auto connection) { accept(std::move(connection)); });
      REQUIRE(opened.ok());
      listener_ = std::move(opened).value();
      port_ = listener_->bound().port();
    });
  }
  ~Proxy() {
    loop_->run([this] {
      pairs_.clear();
      listener_ = nullptr;
    });
  }
  uint16_t port() const { return port_; }
  void cut() {
    loop_->run([this] {
      for (const auto& pair : pairs_) {
        pair->near->reset();
        pair->far->reset();
      }
      pairs_.clear();
    });
  }

 private:
  struct Pair {
    std::unique_ptr<net::Connection> near, far;
  };

  void accept(std::unique_ptr<net::Connection> connection) {
    const auto pair = std::make_shared<Pair>();
    std::weak_ptr<Pair> weak = pair;
    const auto end = [this, weak](int) {
      const auto mine = weak.lock();
      if (mine != nullptr) std::erase(pairs_, mine);
    };
    pair->near = std::move(connection);
    auto dialled = net::Connection::dial(loop_.get(), to_,
                                         {[] {},
                                          [weak](const char* data, size_t bytes) {
                                            if (const auto mine = weak.lock())
                                              mine->near->write(std::string(data, bytes));
                                          },
                                          [] {}, end});
    if (!dialled.ok()) return;
    pair->far = std::move(dialled).value();
    pair->near->open({[] {},
                      [weak](const char* data, size_t bytes) {
                        if (const auto mine = weak.lock())
                          mine->far->write(std::string(data, bytes));
                      },
                      [] {}, end});
    pairs_.push_back(pair);
  }

  const net::Address to_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<net::Listener> listener_;
  std::vector<std::shared_ptr<Pair>> pairs_;
  uint16_t port_ = 0;
};

}  // namespace

TEST_CASE("rows and whole variables go to their servers and come back") {
  for (const int count : {1, 2, 3}) {
    const auto servers = serve(count);
    const auto client = join(*servers, 0);
    for (const int32_t columns : {1, 7, 2000}) {
      Variable variable = matrix(format("x%d", columns).c_str(), 700, columns);
      variable.initial = Initial::kUniform;
      variable.initial_value = 1;
      const auto number = client->open(variable, patient());
      REQUIRE_MESSAGE(number.ok(), number.status().message());
      const int32_t x = number.value();
      std::vector<float> plain;
      for (int64_t row = 0; row < variable.rows; ++row) {
        for (int32_t i = 0; i < columns; ++i) plain.push_back(initial_value(variable, row, i));
      }
      CHECK(pull_all(*client, x) == plain);
      std::mt19937 random(static_cast<uint32_t>(columns));
      for (int step = 0; step < 6; ++step) {
        std::vector<int64_t> rows;
        std::vector<float> gradients;
        for (int i = 0; i < 50; ++i) {
          rows.push_back(static_cast<int64_t>(random() % 700));
          for (int32_t c = 0; c < columns; ++c) {
            gradients.push_back(static_cast<float>(random() % 8));  // sums are exact
          }
        }
        REQUIRE(push(*client, x, rows, gradients, 0.5).ok());
        std::vector<float> sums(plain.size());
        for (size_t i = 0; i < rows.size(); ++i) {
          for (size_t c = 0; c < static_cast<size_t>(columns); ++c) {
            sums[static_cast<size_t>(rows[i]) * static_cast<size_t>(columns) + c] +=
                gradients[i * static_cast<size_t>(columns) + c];
          }
        }
        for (size_t i = 0; i < plain.size(); ++i) plain[i] -= static_cast<float>(0.5 * sums[i]);
        const std::vector<float> found = pull(*client, x, rows);
        for (size_t i = 0; i < rows.size(); ++i) {
          const size_t at = static_cast<size_t>(rows[i]) * static_cast<size_t>(columns);
          REQUIRE(found[i * static_cast<size_t>(columns)] == doctest::Approx(plain[at]));
        }
      }
      std::vector<float> values(plain.size());
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
      REQUIRE(finish([&](const auto& work) {
                return client->set(x, nullptr, -1, values.data(), work);
              }).ok());
      CHECK(pull_all(*client, x) == values);
      REQUIRE(push_all(*client, x, values).ok());
      CHECK(pull_all(*client, x) == std::vector<float>(values.size(), 0));
    }
    CHECK(client->leave(patient()).ok());
  }
}

TEST_CASE("workers see each other's updates, and find a variable that is there") {
  const auto servers = serve(2);
  const auto first = join(*servers, 0);
  const auto second = join(*servers, 1);
  const int32_t mine = first->open(matrix("x", 10, 4), patient()).value();
  CHECK(first->open(matrix("x", 10, 4), patient()).value() == mine);
  (void)second->open(matrix("other", 3, 3), patient()).value();
  const int32_t theirs = second->open(matrix("x", 10, 4), patient()).value();
  REQUIRE(push(*first, mine, {3}, {1, 2, 3, 4}).ok());
  CHECK(pull(*second, theirs, {3, 2}) == std::vector<float>{-1, -2, -3, -4, 0, 0, 0, 0});

  const Status differs = second->open(matrix("y", 10, 4), patient()).status();
  CHECK(differs.ok());
  const Status refused = first->open(matrix("y", 11, 4), patient()).status();
  CHECK(refused.code() == Code::kMismatch);
  CHECK(contains(refused.message(), "has variable \"y\" already: rows is 10 there and 11 here"));
  CHECK(first->open(matrix("x", 10, 5), patient()).status().code() == Code::kMismatch);
}

TEST_CASE("what a worker gives wrongly") {
  const auto servers = serve(1);
  const auto client = join(*servers, 0);
  const int32_t x = client->open(matrix("x", 10, 1), patient()).value();
  const Status outside = push(*client, x, {1, 10}, {0, 0});
  CHECK(outside.code() == Code::kInvalidArgument);
  CHECK(contains(outside.message(), "rows[1] is 10; variable \"x\" has 10 rows"));
  CHECK(push(*client, x, {-1}, {0}).code() == Code::kInvalidArgument);
  CHECK(push(*client, 7, {1}, {0}).code() == Code::kInvalidArgument);
  CHECK(push(*client, x, {}, {}).ok());
  CHECK(client->leave(patient()).ok());
  CHECK(client->leave(patient()).ok());
  CHECK(push(*client, x, {1}, {0}).code() == Code::kInvalidState);
}

TEST_CASE("no worker is further ahead than it may") {
  constexpr int kWorkers = 3;
  constexpr int64_t kAhead = 2;
  constexpr int64_t kSteps = 60;
  const auto servers = serve(2);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kWorkers; ++i) clients.push_back(join(*servers, i));
  std::atomic<int64_t> steps[kWorkers] = {};
  std::atomic<int64_t> most{0};
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kWorkers; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(static_cast<uint32_t>(i));
      for (int64_t step = 1; step <= kSteps; ++step) {
        steps[i] = step;  // before the others may hear of it
        if (!clients[static_cast<size_t>(i)]->clock(kAhead, patient()).ok()) ++failures;
        int64_t slowest = INT64_MAX;
        for (const auto& each : steps) slowest = std::min<int64_t>(slowest, each);
        int64_t before = most;
        while (before < step - slowest && !most.compare_exchange_weak(before, step - slowest)) {
        }
        for (unsigned spin = random() % 20'000; spin > 0; --spin) std::atomic_signal_fence({});
      }
    });
  }
  for (auto& each : threads) each.join();
  CHECK(failures == 0);
  CHECK(most <= kAhead);
  for (const auto& client : clients) {
    CHECK(client->statistics().most_ahead <= kAhead);
    CHECK(client->statistics().clock == kSteps);
  }
}

TEST_CASE("who holds a clock up is named, and does so no more when it is lost") {
  const auto servers = serve(2);
  const auto fast = join(*servers, 0);
  auto slow = join(*servers, 1);
  REQUIRE(fast->clock(1, patient()).ok());
  const Status late = fast->clock(1, Wait{Deadline::after_ms(300), nullptr});
  REQUIRE(late.code() == Code::kTimeout);
  CHECK(contains(late.message(),
                 "worker 1 (there pid 1001) is at step 0 and this one at 2, and may be 1 ahead"));
  CHECK(late.info().rank == 1);
  CHECK(late.info().pid == 1001);
  std::thread waits([&] { CHECK(fast->clock(1, patient()).ok()); });
  slow = nullptr;  // without a goodbye
  waits.join();
  // A new one begins where the others are.
  const auto again = join(*servers, 1);
  CHECK(again->clock(1, patient()).ok());
  CHECK(again->statistics().clock == 3);
}

TEST_CASE("a server that is lost comes back with what it has written") {
  const Folder folder;
  Server::Options base;
  base.directory = folder.path;
  base.save_every_ms = 0;
  const auto servers = serve(2, base);
  const auto client = join(*servers, 0);
  Variable variable = matrix("x", 3000, 3);
  variable.method = Method::kAdam;
  variable.initial = Initial::kNormal;
  variable.initial_value = 1;
  const int32_t x = client->open(variable, patient()).value();
  std::vector<int64_t> rows;
  std::vector<float> gradients;
  for (int64_t row = 0; row < 3000; row += 2) {
    rows.push_back(row);
    for (int i = 0; i < 3; ++i) gradients.push_back(static_cast<float>(row % 17) - 8);
  }
  for (int i = 0; i < 3; ++i) REQUIRE(push(*client, x, rows, gradients).ok());
  REQUIRE(client->save(patient()).ok());
  const std::vector<float> before = pull_all(*client, x);

  servers->kill(1);
  const auto work = std::make_shared<backend::Work>();
  REQUIRE(
      client->push(x, rows.data(), static_cast<int64_t>(rows.size()), gradients.data(), -1, work)
          .ok());
  servers->start(1);
  (void)pull_all(*client, x);
  CHECK(work->done());
  CHECK(client->statistics().reconnects == 1);

  // The same pushes to servers that were never lost.
  const auto others = serve(2);
  const auto plain = join(*others, 0);
  const int32_t y = plain->open(variable, patient()).value();
  for (int i = 0; i < 3; ++i) REQUIRE(push(*plain, y, rows, gradients).ok());
  CHECK(pull_all(*plain, y) == before);
  REQUIRE(push(*plain, y, rows, gradients).ok());
  CHECK(pull_all(*plain, y) == pull_all(*client, x));
}

TEST_CASE("a server that comes back without its values says so to every call") {
  const auto servers = serve(2);
  const auto client = join(*servers, 0);
  const int32_t x = client->open(matrix("x", 3000, 3), patient()).value();
  servers->kill(0);
  servers->start(0);
  Status status;
  const Deadline deadline = Deadline::after_ms(kPatienceMs);
  while (status.ok() && !deadline.passed())
    status = push(*client, x, {1, 2000}, {1, 1, 1, 1, 1, 1});
  CHECK(status.code() == Code::kPeerLost);
  CHECK(contains(status.message(),
                 "parameter server 0 (here pid 100) was started again without a "
                 "checkpoint and has lost its part of variable \"x\""));
}

TEST_CASE("a server that is not there is named") {
  auto servers = serve(2);
  Client::Options options = worker_options(servers->addresses, 0);
  options.timeout_ms = 200;
  auto made = Client::connect(options, patient());
  REQUIRE(made.ok());
  Client& client = *made.value();
  const int32_t x = client.open(matrix("x", 3000, 3), patient()).value();
  servers->kill(1);
  const Status lost = push_all(client, x, std::vector<float>(9000));
  CHECK(lost.code() == Code::kPeerLost);
  CHECK(contains(lost.message(),
                 "push to variable \"x\": no answer of parameter server 1 (here pid "
                 "101) at 127.0.0.1:"));
  CHECK(contains(lost.message(), "start it again: the workers then go on"));
  CHECK(lost.info().pid == 101);
  const Status absent =
      Client::connect(worker_options(servers->addresses, 1), Wait{Deadline::after_ms(200), nullptr})
          .status();
  CHECK(absent.code() == Code::kTimeout);
  CHECK(contains(absent.message(),
                 "not all of 2 parameter servers came within 200 ms: parameter server 1 at"));
}

TEST_CASE("each push takes effect once, however often its connection breaks") {
  const auto servers = serve(2);
  Proxy first(servers->addresses[0].port);
  Proxy second(servers->addresses[1].port);
  Client::Options options =
      worker_options({{"127.0.0.1", first.port()}, {"127.0.0.1", second.port()}}, 0);
  auto made = Client::connect(options, patient());
  REQUIRE(made.ok());
  Client& client = *made.value();
  constexpr int64_t kRows = 200;
  const int32_t x = client.open(matrix("x", kRows, 600), patient()).value();
  std::vector<float> ones(kRows * 600, 1);
  std::vector<std::shared_ptr<backend::Work>> works;
  constexpr int kPushes = 60;
  for (int i = 0; i < kPushes; ++i) {
    works.push_back(std::make_shared<backend::Work>());
    REQUIRE(client.push(x, nullptr, -1, ones.data(), -1, works.back()).ok());
    if (i % 7 == 3) first.cut();
    if (i % 5 == 4) second.cut();
  }
  CHECK(pull_all(client, x) == std::vector<float>(kRows * 600, -kPushes));
  for (const auto& work : works) {
    CHECK(work->done());
    CHECK(work->status().ok());
  }
  CHECK(client.statistics().reconnects > 0);
  CHECK(client.leave(patient()).ok());
}

TEST_CASE("an evaluator reads, and holds nobody up") {
  Server::Options base;
  base.workers = 1;
  const auto servers = serve(1, base);
  const auto worker = join(*servers, 0);
  const auto evaluator = join(*servers, -1);
  const int32_t x = worker->open(matrix("x", 5, 2), patient()).value();
  const int32_t y = evaluator->open(matrix("x", 5, 2), patient()).value();
  REQUIRE(push(*worker, x, {4}, {1, 1}).ok());
  CHECK(pull(*evaluator, y, {4}) == std::vector<float>{-1, -1});
  CHECK(push(*evaluator, y, {4}, {1, 1}).code() == Code::kUnsupported);
  CHECK(evaluator->clock(0, patient()).code() == Code::kUnsupported);
  for (int i = 0; i < 5; ++i) CHECK(worker->clock(0, patient()).ok());
}

TEST_CASE("servers end when all workers have left, or were lost for long") {
  const Folder folder;
  Server::Options base;
  base.workers = 2;
  base.absent_ms = 200;
  base.directory = folder.path;
  auto servers = serve(2, base);
  auto first = join(*servers, 0);
  auto second = join(*servers, 1);
  const int32_t x = first->open(matrix("x", 3000, 3), patient()).value();
  REQUIRE(push_all(*first, x, std::vector<float>(9000, 1)).ok());
  CHECK_FALSE(servers->servers[0]->wait(Wait{Deadline::after_ms(0), nullptr}).value());
  REQUIRE(first->leave(patient()).ok());
  first = nullptr;
  CHECK_FALSE(servers->servers[0]->wait(Wait{Deadline::after_ms(0), nullptr}).value());
  second = nullptr;  // lost
  for (const auto& server : servers->servers) CHECK(server->wait(patient()).value());
  // What it wrote at its end.
  servers->base.workers = 0;
  servers->start(0);
  servers->start(1);
  const auto again = join(*servers, 0);
  const int32_t y = again->open(matrix("x", 3000, 3), patient()).value();
  CHECK(pull_all(*again, y) == std::vector<float>(9000, -1));
}

TEST_CASE("a server that nobody comes to says so") {
  Server::Options base;
  base.arrival_ms = 100;
  const auto servers = serve(1, base);
  const Status status = servers->servers[0]->wait(patient()).status();
  CHECK(status.code() == Code::kTimeout);
  CHECK(contains(status.message(), "no worker has come within 100 ms"));
}

TEST_CASE("who does not belong here is refused with the reason") {
  const auto servers = serve(2);
  const auto why = [&](auto&& change) {
    Client::Options options = worker_options(servers->addresses, 0);
    change(options);
    return Client::connect(options, Wait{Deadline::after_ms(200), nullptr}).status().message();
  };
  CHECK(contains(why([](auto& options) { options.job_id = "another"; }), "belongs to another job"));
  CHECK(contains(why([](auto& options) { std::swap(options.servers[0], options.servers[1]); }),
                 "give all processes the same list of servers"));
  CHECK(contains(why([](auto& options) { options.servers.pop_back(); }),
                 "this is parameter server "
                 "0 of 2, not 0 of 1"));
  CHECK(contains(why([](auto& options) {
                   options.security.mode = net::SecurityMode::kAuth;
                   options.security.token =
                       std::move(net::Token::from_text(std::string(64, 'a'))).value();
                 }),
                 "do not accept each other"));
  const auto first = join(*servers, 0);
  CHECK(contains(why([](auto&) {}),
                 "worker 0 (there pid 1000) is connected; only one process can be worker 0"));
}

TEST_CASE("tokens and encryption") {
  for (const auto mode : {net::SecurityMode::kAuth, net::SecurityMode::kEncrypt}) {
    Server::Options base;
    base.security.mode = mode;
    base.security.token = std::move(net::Token::from_text(std::string(64, 'a'))).value();
    const auto servers = serve(2, base);
    Client::Options options = worker_options(servers->addresses, 0);
    options.security = base.security;
    auto client = Client::connect(options, patient());
    REQUIRE_MESSAGE(client.ok(), client.status().message());
    const int32_t x = client.value()->open(matrix("x", 4000, 100), patient()).value();
    REQUIRE(push_all(*client.value(), x, std::vector<float>(400'000, 1)).ok());
    CHECK(pull_all(*client.value(), x) == std::vector<float>(400'000, -1));
    CHECK(client.value()->leave(patient()).ok());
  }
}

TEST_CASE("a checkpoint of other servers is refused") {
  const Folder folder;
  Server::Options base;
  base.directory = folder.path;
  {
    const auto servers = serve(2, base);
    const auto client = join(*servers, 0);
    (void)client->open(matrix("x", 10, 2), patient()).value();
    REQUIRE(client->save(patient()).ok());
  }
  const auto servers = std::make_unique<Servers>(base);
  servers->add();
  const Status status = servers->try_start(0);
  CHECK(status.code() == Code::kConfig);
  CHECK(contains(status.message(), "-of-2.safetensors, but not server-0-of-1.safetensors"));

  servers->base.directory = "/nonexistent/place";
  REQUIRE(servers->try_start(0).ok());
  {
    const auto client = join(*servers, 0);
    const Status unwritten = client->save(patient());
    CHECK(unwritten.code() == Code::kSystem);
    CHECK(contains(unwritten.message(), "cannot make \"/nonexistent/place/server-0-of-1"));
  }
  servers->base.directory.clear();
  REQUIRE(servers->try_start(0).ok());
  CHECK(join(*servers, 0)->save(patient()).code() == Code::kInvalidState);
}

TEST_CASE("a checkpoint that lacks the file of a server is refused") {
  const Folder folder;
  Server::Options base;
  base.directory = folder.path;
  {
    const auto servers = serve(2, base);
    const auto client = join(*servers, 0);
    (void)client->open(matrix("x", 10, 2), patient()).value();
    REQUIRE(client->save(patient()).ok());
  }
  std::filesystem::remove(folder.path + "/server-1-of-2.safetensors");
  std::ofstream(folder.path + "/server-0-of-2.safetensors.partial.1") << "left";
  const auto servers = std::make_unique<Servers>(base);
  servers->add();
  servers->add();
  CHECK(servers->try_start(0).ok());
  const Status status = servers->try_start(1);
  CHECK(status.code() == Code::kConfig);
  CHECK(contains(status.message(), "has server-0-of-2.safetensors, but not server-1-of-2"));
  CHECK_FALSE(std::filesystem::exists(folder.path + "/server-0-of-2.safetensors.partial.1"));
}

TEST_CASE("a variable is in a checkpoint soon after it was made") {
  const Folder folder;
  Server::Options base;
  base.directory = folder.path;
  const auto servers = serve(1, base);
  const auto client = join(*servers, 0);
  const int32_t x = client->open(matrix("x", 10, 2), patient()).value();
  const std::string path = folder.path + "/server-0-of-1.safetensors";
  const Deadline deadline = Deadline::after_ms(kPatienceMs);
  while (!std::filesystem::exists(path) && !deadline.passed()) std::this_thread::yield();
  servers->kill(0);
  servers->start(0);
  CHECK(push(*client, x, {1}, {1, 1}).ok());
}

TEST_CASE("rows of a checkpoint are whole, whatever is pushed meanwhile") {
  const Folder folder;
  Server::Options base;
  base.directory = folder.path;
  base.save_every_ms = 0;
  const auto servers = serve(1, base);
  const auto client = join(*servers, 0);
  constexpr int64_t kRows = 20'000;
  Variable variable = matrix("x", kRows, 60);
  variable.method = Method::kAdagrad;
  variable.rate = 0;
  const int32_t x = client->open(variable, patient()).value();
  const std::vector<float> ones(static_cast<size_t>(kRows) * 60, 1);
  std::atomic<bool> over{false};
  std::thread pushes([&] {
    while (!over) CHECK(push_all(*client, x, ones).ok());
  });
  for (int i = 0; i < 3; ++i) CHECK(client->save(patient()).ok());
  over = true;
  pushes.join();
  auto loaded = load(folder.path, 0, 1);
  REQUIRE(loaded.ok());
  REQUIRE(loaded.value().tables.size() == 1);
  Table& table = *loaded.value().tables[0];
  // Adagrad sums the squares of the gradients, which are 1: as many as there were updates.
  int64_t torn = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    const auto updates = static_cast<float>(table.updates()[row] & 0x7fff'ffff);
    for (int32_t i = 0; i < 60; ++i) torn += table.moment(0)[row * 60 + i] != updates ? 1 : 0;
  }
  CHECK(torn == 0);
}

TEST_CASE("a worker that has left holds nobody up, although it keeps its handle") {
  Server::Options base;
  base.workers = 2;
  const auto servers = serve(1, base);
  const auto first = join(*servers, 0);
  const auto second = join(*servers, 1);
  REQUIRE(second->leave(patient()).ok());
  for (int i = 0; i < 3; ++i) CHECK(first->clock(0, patient()).ok());
  CHECK(second->clock(0, patient()).code() == Code::kInvalidState);
  CHECK(second->save(patient()).code() == Code::kInvalidState);
  CHECK(second->open(matrix("x", 1, 1), patient()).status().code() == Code::kInvalidState);
  REQUIRE(first->leave(patient()).ok());
  CHECK(servers->servers[0]->wait(patient()).value());
}

TEST_CASE("abort ends calls of other threads") {
  const auto servers = serve(1);
  const auto fast = join(*servers, 0);
  const auto slow = join(*servers, 1);
  const int32_t x = fast->open(matrix("x", 1, 1), patient()).value();
  std::thread waits([&] { CHECK(fast->clock(0, patient()).code() == Code::kAborted); });
  fast->abort();
  waits.join();
  CHECK(push(*fast, x, {0}, {1}).code() == Code::kAborted);
}

TEST_CASE("servers end when nobody can come any more") {
  const Folder folder;
  Server::Options base;
  base.workers = 3;
  base.directory = folder.path;
  base.save_every_ms = 0;
  const auto servers = serve(1, base);
  auto first = join(*servers, 0);
  auto lost = join(*servers, 1);
  const int32_t x = first->open(matrix("x", 2, 1), patient()).value();
  REQUIRE(push(*first, x, {1}, {1}).ok());
  lost = nullptr;
  REQUIRE(first->leave(patient()).ok());
  CHECK_FALSE(servers->servers[0]->wait(Wait{Deadline::after_ms(0), nullptr}).value());
  REQUIRE(shutdown(servers->sockets[0].fd(), SHUT_RD) == 0);
  CHECK(servers->servers[0]->wait(patient()).value());
  CHECK(std::filesystem::exists(folder.path + "/server-0-of-1.safetensors"));
}

TEST_CASE("a clock that failed is tried again") {
  const auto servers = serve(2);
  const auto fast = join(*servers, 0);
  const auto slow = join(*servers, 1);
  for (int i = 0; i < 3; ++i) {
    CHECK(fast->clock(0, Wait{Deadline::after_ms(60), nullptr}).code() == Code::kTimeout);
  }
  CHECK(slow->clock(0, patient()).ok());
  CHECK(fast->clock(0, patient()).ok());
  CHECK(fast->statistics().clock == 1);
}

TEST_CASE("a call that needs more than there may be under way goes on after a reconnect") {
  const Folder folder;
  Server::Options base;
  base.directory = folder.path;
  const auto servers = serve(1, base);
  Client::Options options = worker_options(servers->addresses, 0);
  options.most_bytes = 1000;
  auto made = Client::connect(options, patient());
  REQUIRE(made.ok());
  Client& client = *made.value();
  const int32_t x = client.open(matrix("x", 3000, 3), patient()).value();
  REQUIRE(client.save(patient()).ok());
  servers->kill(0);
  servers->start(0);
  CHECK(pull_all(client, x) == std::vector<float>(9000, 0));
  CHECK(client.statistics().reconnects == 1);
  CHECK(pull_all(client, x) == std::vector<float>(9000, 0));
}

TEST_CASE("a push that has failed takes no effect when the servers come back") {
  const Folder folder;
  Server::Options base;
  base.directory = folder.path;
  base.save_every_ms = 0;
  const auto servers = serve(2, base);
  Client::Options options = worker_options(servers->addresses, 0);
  options.timeout_ms = 200;
  auto made = Client::connect(options, patient());
  REQUIRE(made.ok());
  Client& client = *made.value();
  const int32_t x = client.open(matrix("x", 3000, 3), patient()).value();
  REQUIRE(client.save(patient()).ok());
  servers->kill(0);
  servers->kill(1);
  CHECK(push_all(client, x, std::vector<float>(9000, 1)).code() == Code::kPeerLost);
  servers->start(0);
  servers->start(1);
  const auto other = join(*servers, 1);
  const int32_t y = other->open(matrix("x", 3000, 3), patient()).value();
  // Once the first worker has an answer of both, all that it had to repeat has been repeated.
  Status status(Code::kPeerLost, "");
  const Deadline deadline = Deadline::after_ms(kPatienceMs);
  while (!status.ok() && !deadline.passed()) {
    status = client.clock(-1, Wait{Deadline::after_ms(200), nullptr});
  }
  CHECK(status.ok());
  CHECK(pull_all(*other, y) == std::vector<float>(9000, 0));
}

TEST_CASE("of two calls of clock the later one counts") {
  const auto servers = serve(2);
  const auto fast = join(*servers, 0);
  const auto slow = join(*servers, 1);
  std::atomic<bool> ended{false};
  Status first;
  std::thread waits([&] {
    first = fast->clock(0, patient());
    ended = true;
  });
  const Deadline deadline = Deadline::after_ms(kPatienceMs);
  while (!ended && !deadline.passed()) {
    (void)fast->clock(0, Wait{Deadline::after_ms(20), nullptr});
  }
  waits.join();
  CHECK(first.code() == Code::kAborted);
  CHECK(contains(first.message(), "a later call took its place"));
  CHECK(slow->clock(0, patient()).ok());
  CHECK(fast->clock(0, patient()).ok());
  CHECK(fast->statistics().clock == 1);
}

TEST_CASE("a goodbye that was not answered can be said again, and nothing else") {
  const Folder folder;
  Server::Options base;
  base.directory = folder.path;
  const auto servers = serve(1, base);
  const auto client = join(*servers, 0);
  const int32_t x = client->open(matrix("x", 3, 3), patient()).value();
  REQUIRE(client->save(patient()).ok());
  servers->kill(0);
  CHECK(client->leave(Wait{Deadline::after_ms(50), nullptr}).code() == Code::kPeerLost);
  CHECK(client->clock(0, patient()).code() == Code::kInvalidState);
  CHECK(push(*client, x, {0}, {1, 1, 1}).code() == Code::kInvalidState);
  servers->start(0);
  CHECK(client->leave(patient()).ok());
  CHECK(client->leave(patient()).ok());
  CHECK(servers->servers[0]->wait(patient()).value());
}

TEST_CASE("a server in the place of another waits for workers that had not come yet") {
  const Folder folder;
  Server::Options base;
  base.directory = folder.path;
  base.workers = 3;
  base.absent_ms = 100;
  const auto servers = serve(1, base);
  auto first = join(*servers, 0);
  auto second = join(*servers, 1);
  (void)first->open(matrix("x", 3, 3), patient()).value();
  REQUIRE(first->save(patient()).ok());
  servers->kill(0);
  second = nullptr;
  servers->start(0);
  REQUIRE(first->leave(patient()).ok());
  // Worker 1 is lost, for whom it waits no longer than that; worker 2 may still come.
  CHECK_FALSE(servers->servers[0]->wait(Wait{Deadline::after_ms(400), nullptr}).value());
  const auto third = join(*servers, 2);
  REQUIRE(third->leave(patient()).ok());
  CHECK(servers->servers[0]->wait(patient()).value());
}
