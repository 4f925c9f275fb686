// SPDX-License-Identifier: Apache-2.0
// Parameter servers and workers that are lost, come back and end; checkpoints.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "../contains.h"
#include "ps/checkpoint.h"
#include "ps/server.h"
#include "servers.h"

using namespace dt;
using namespace dt::ps;
using namespace dt::test;

namespace {

/// What a call ends with once its worker has noticed that a server is gone.
template <class F>
Status until_lost(F&& call) {
  const Deadline deadline = Deadline::after_ms(kPatienceMs);
  Status status = call();
  while (status.code() == Code::kTimeout && !deadline.passed()) status = call();
  return status;
}

/// Whether a thread sleeps, and not just for a lock: many looks in a row say so.
bool waits(pid_t thread) {
  if (thread == 0) return false;
  for (int look = 0; look < 50; ++look) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const size_t end = text.rfind(')');
    if (end == std::string::npos || text.compare(end, 3, ") S") != 0) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

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

TEST_CASE("loading a checkpoint takes no memory for pages without a used row") {
  const Folder folder;
  Server::Options base;
  base.directory = folder.path;
  base.save_every_ms = 0;
  const auto servers = serve(1, base);
  const auto client = join(*servers, 0);
  // The counts in front of the values end within a page.
  constexpr int64_t kRows = 65552;
  constexpr int32_t kColumns = 16;
  const int32_t x = client->open(matrix("x", kRows, kColumns), patient()).value();
  REQUIRE(push(*client, x, {30000}, std::vector<float>(kColumns, 1)).ok());
  REQUIRE(client->save(patient()).ok());
  const Loaded loaded = load(folder.path, 0, 1).value();
  REQUIRE(loaded.tables.size() == 1);
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto values = reinterpret_cast<uintptr_t>(loaded.tables[0]->values());
  const uintptr_t first = (values + page - 1) / page * page;
  const size_t bytes = (values + kRows * kColumns * 4 - first) / page * page;
  std::vector<unsigned char> used(bytes / page);
  REQUIRE(mincore(reinterpret_cast<void*>(first), bytes, used.data()) == 0);
  CHECK(std::count_if(used.begin(), used.end(), [](unsigned char each) { return each & 1; }) == 1);
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
  const Status lost = until_lost([&] { return push_all(client, x, std::vector<float>(9000)); });
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

TEST_CASE("servers whose workers are all lost wait for one to come back") {
  Server::Options base;
  base.workers = 1;
  base.absent_ms = 0;
  const auto servers = serve(1, base);
  auto client = join(*servers, 0);
  const int32_t x = client->open(matrix("x", 2, 1), patient()).value();
  REQUIRE(push(*client, x, {1}, {1}).ok());
  client = nullptr;
  CHECK_FALSE(servers->servers[0]->wait(Wait{Deadline::after_ms(300), nullptr}).value());
  // Started again, it goes on as the same worker.
  client = join(*servers, 0);
  const int32_t y = client->open(matrix("x", 2, 1), patient()).value();
  CHECK(pull_all(*client, y) == std::vector<float>{0, -1});
  REQUIRE(client->leave(patient()).ok());
  CHECK(servers->servers[0]->wait(patient()).value());
}

TEST_CASE("servers whose workers are all lost, and do not come back, name the last one") {
  Server::Options base;
  base.absent_ms = 0;
  Status status(Code::kTimeout, "");
  // On a busy machine a worker takes its time to come.
  for (base.arrival_ms = 200; status.code() == Code::kTimeout; base.arrival_ms *= 4) {
    const auto servers = serve(1, base);
    join(*servers, 3) = nullptr;
    status = servers->servers[0]->wait(patient()).status();
  }
  CHECK(status.code() == Code::kPeerLost);
  CHECK(status.info().rank == 3);
  CHECK(
      contains(status.message(),
               "all workers were lost, and none said goodbye: worker 3 (there pid 1003) was lost"));
  CHECK(contains(status.message(), "raise arrival_ms"));
}

TEST_CASE("a server that nobody comes to says so") {
  Server::Options base;
  base.arrival_ms = 100;
  const auto servers = serve(1, base);
  const Status status = servers->servers[0]->wait(patient()).status();
  CHECK(status.code() == Code::kTimeout);
  CHECK(contains(status.message(), "no worker has come within 100 ms"));
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

TEST_CASE("a checkpoint that could not be written leaves nothing behind") {
  const Folder folder;
  Server::Options base;
  base.directory = folder.path;
  base.save_every_ms = 0;
  const auto servers = serve(1, base);
  const auto client = join(*servers, 0);
  (void)client->open(matrix("x", 10, 2), patient()).value();
  std::filesystem::create_directory(folder.path + "/server-0-of-1.safetensors");
  const Status status = client->save(patient());
  CHECK(status.code() == Code::kSystem);
  CHECK(contains(status.message(), "cannot rename"));
  for (const auto& entry : std::filesystem::directory_iterator(folder.path)) {
    CHECK(entry.path().filename() == "server-0-of-1.safetensors");
  }
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

TEST_CASE("calls that find no room get it in turn, so that small ones do not pass a large one") {
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
  servers->kill(0);  // until it is back nothing is answered
  const int64_t row = 0;
  const std::vector<float> ones(9000, 1);
  const auto first = std::make_shared<backend::Work>();
  REQUIRE(client.push(x, &row, 1, ones.data(), -1, first).ok());
  std::atomic<pid_t> threads[2] = {0, 0};
  Status ended[2];
  std::thread large([&] {
    threads[0] = gettid();
    ended[0] = push_all(client, x, ones);
  });
  const Deadline deadline = Deadline::after_ms(kPatienceMs);
  while (!waits(threads[0]) && !deadline.passed()) std::this_thread::yield();
  std::atomic<bool> entered{false};
  std::thread small([&] {
    threads[1] = gettid();
    ended[1] = finish([&](const auto& work) {
      const Status issued = client.push(x, &row, 1, ones.data(), -1, work);
      entered = true;
      return issued;
    });
  });
  while (!entered && !waits(threads[1]) && !deadline.passed()) std::this_thread::yield();
  CHECK_FALSE(entered);
  servers->start(0);
  large.join();
  small.join();
  for (const Status& each : ended) CHECK_MESSAGE(each.ok(), each.message());
  const std::vector<float> values = pull_all(client, x);
  CHECK(values[0] == -3);
  CHECK(values[8999] == -1);
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
  // What is sent before this worker knows of the loss counts as sent.
  REQUIRE(until_lost([&] {
            return client.clock(-1, Wait{Deadline::after_ms(200), nullptr});
          }).code() == Code::kPeerLost);
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

TEST_CASE("a worker leaves after a save that another of its threads waits for") {
  const Folder folder;
  Server::Options base;
  base.directory = folder.path;
  base.save_every_ms = 0;
  const auto servers = serve(1, base);
  const auto client = join(*servers, 0);
  const auto other = join(*servers, 1);
  Variable variable = matrix("x", 1 << 20, 32);
  variable.initial = Initial::kNormal;
  variable.initial_value = 1;
  const int32_t x = client->open(variable, patient()).value();
  REQUIRE(push_all(*client, x, std::vector<float>(size_t{32} << 20, 1)).ok());
  Status saved;
  std::thread saves([&] { saved = client->save(patient()); });
  const Deadline deadline = Deadline::after_ms(kPatienceMs);
  while (std::filesystem::is_empty(folder.path) && !deadline.passed()) std::this_thread::yield();
  const Status left = client->leave(patient());
  saves.join();
  CHECK_MESSAGE(saved.ok(), saved.message());
  CHECK_MESSAGE(left.ok(), left.message());
  CHECK(std::filesystem::exists(checkpoint_path(folder.path, 0, 1)));
  REQUIRE(other->leave(patient()).ok());
  CHECK(servers->servers[0]->wait(patient()).value());
}

TEST_CASE("a checkpoint that cannot be looked for is not taken for none") {
  const Folder folder;
  const std::string file = folder.path + "/file";
  std::ofstream(file) << "x";
  for (const std::string& directory : {file, file + "/below"}) {
    CAPTURE(directory);
    const auto loaded = load(directory, 0, 1);
    REQUIRE_FALSE(loaded.ok());
    CHECK(loaded.status().code() == Code::kSystem);
    CHECK(contains(loaded.status().message(), directory));
    CHECK(contains(loaded.status().message(), "Not a directory"));
  }
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
  CHECK(until_lost([&] {
          return client->leave(Wait{Deadline::after_ms(50), nullptr});
        }).code() == Code::kPeerLost);
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
