// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/wait.h"
#include "net/loop.h"
#include "store/client.h"
#include "store/server.h"

namespace dt::store::test {

inline constexpr int64_t kPatienceMs = 20'000;

inline Wait patiently() { return {Deadline::after_ms(kPatienceMs)}; }
inline Wait briefly(int64_t ms) { return {Deadline::after_ms(ms)}; }

/// A job of simulated ranks: one loop, one server, any number of clients.
struct Job {
  std::unique_ptr<net::Loop> loop = std::move(net::Loop::start()).value();
  std::unique_ptr<Server> server;
  ServerOptions options;

  explicit Job(int32_t world_size, std::function<void(ServerOptions*)> change = {}) {
    options.job_id = "a";
    options.attempt = 2;
    options.world_size = world_size;
    options.server_rank = 0;
    options.host = "hostA";
    options.pid = 10;
    if (change) change(&options);
    auto started = Server::start(loop.get(), options);
    REQUIRE(started.ok());
    server = std::move(started).value();
  }

  /// Ranks below `world_size / 2` rounded up live on hostA, the others on hostB.
  std::string host_of(int32_t rank) const {
    return rank < (options.world_size + 1) / 2 ? "hostA" : "hostB";
  }

  ClientOptions client_options(int32_t rank) const {
    ClientOptions client;
    client.host = "127.0.0.1";
    client.port = server->port();
    client.job_id = "a";
    client.attempt = 2;
    client.rank = rank;
    client.world_size = options.world_size;
    client.host_name = host_of(rank);
    client.pid = 10 + rank;
    client.security = options.security;
    return client;
  }

  std::shared_ptr<Client> connect(int32_t rank) {
    auto client = Client::connect(loop.get(), client_options(rank), patiently());
    if (!client.ok()) FAIL(client.status().message());
    return std::move(client).value();
  }

  JoinRecord record(int32_t rank) const {
    JoinRecord record;
    record.rank = rank;
    record.world_size = options.world_size;
    record.host_id = "id of " + host_of(rank);
    record.host_name = host_of(rank);
    record.pid = 10 + rank;
    record.socket_name = std::string("\0dt", 3) + std::to_string(rank);
    record.payload = "payload " + std::to_string(rank);
    return record;
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(server->port()); }

  /// Connects and joins all ranks; requires that it works. Ranks from `first_other` on have the
  /// loop `others`.
  std::vector<std::shared_ptr<Client>> join_all(net::Loop* others = nullptr,
                                                int32_t first_other = 0);
};

/// Runs body(rank) for ranks [0, count) on a thread each.
inline void on_threads(int32_t count, const std::function<void(int32_t)>& body) {
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < count; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

inline std::vector<std::shared_ptr<Client>> Job::join_all(net::Loop* others, int32_t first_other) {
  const size_t count = static_cast<size_t>(options.world_size);
  std::vector<std::shared_ptr<Client>> clients(count);
  std::vector<Status> joined(count);
  on_threads(options.world_size, [&](int32_t rank) {
    const size_t index = static_cast<size_t>(rank);
    net::Loop* const own = others != nullptr && rank >= first_other ? others : loop.get();
    auto client = Client::connect(own, client_options(rank), patiently());
    joined[index] = client.status();
    if (!client.ok()) return;
    clients[index] = std::move(client).value();
    joined[index] = clients[index]->join(record(rank), patiently()).status();
  });
  for (const Status& status : joined) {
    if (!status.ok()) FAIL(status.message());
  }
  return clients;
}

/// Collects the failures that clients are told. The callbacks share what they write: clients may
/// outlive this.
struct Failures {
  struct Shared {
    Guarded<std::vector<Failure>> list;
    Event first;
  };
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();

  void watch(Client* client) {
    client->on_failure([told = shared](const Failure& failure) {
      told->list.with([&](std::vector<Failure>& failures) { failures.push_back(failure); });
      told->first.set();
    });
  }
  Failure wait_first() {
    REQUIRE(shared->first.wait(patiently()));
    return shared->list.with([](std::vector<Failure>& failures) { return failures.front(); });
  }
  size_t count() {
    return shared->list.with([](std::vector<Failure>& failures) { return failures.size(); });
  }
};

}  // namespace dt::store::test
