// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "net/tcp.h"
#include "ps/client.h"
#include "ps/server.h"
#include "transport/tcp/socket.h"

/// Parameter servers and their workers, in one process, over loopback.
namespace dt::test {

using namespace dt::ps;

inline constexpr int64_t kPatienceMs = 120'000;
inline Wait patient() { return Wait{Deadline::after_ms(kPatienceMs), nullptr}; }

inline net::Address loopback() {
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

inline std::unique_ptr<Servers> serve(int count, Server::Options base = {}) {
  auto all = std::make_unique<Servers>(std::move(base));
  for (int i = 0; i < count; ++i) all->add();
  for (int i = 0; i < count; ++i) all->start(i);
  return all;
}

inline Client::Options worker_options(const std::vector<net::HostPort>& servers, int32_t worker) {
  Client::Options options;
  options.servers = servers;
  options.worker = worker;
  options.job_id = "job";
  options.host = "there";
  options.pid = 1000 + worker;
  options.timeout_ms = kPatienceMs;
  return options;
}

inline std::unique_ptr<Client> join(const Servers& servers, int32_t worker) {
  auto client = Client::connect(worker_options(servers.addresses, worker), patient());
  REQUIRE_MESSAGE(client.ok(), client.status().message());
  return std::move(client).value();
}

inline Variable matrix(const char* name, int64_t rows, int32_t columns) {
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

inline Status push(Client& client, int32_t variable, const std::vector<int64_t>& rows,
                   const std::vector<float>& gradients, double rate = -1) {
  return finish([&](const auto& work) {
    return client.push(variable, rows.data(), static_cast<int64_t>(rows.size()), gradients.data(),
                       rate, work);
  });
}

inline Status push_all(Client& client, int32_t variable, const std::vector<float>& gradients) {
  return finish([&](const auto& work) {
    return client.push(variable, nullptr, -1, gradients.data(), -1, work);
  });
}

inline std::vector<float> pull(Client& client, int32_t variable, const std::vector<int64_t>& rows) {
  const Variable what = client.variable(variable).value();
  std::vector<float> values(rows.size() * static_cast<size_t>(what.columns));
  const Status status = finish([&](const auto& work) {
    return client.pull(variable, rows.data(), static_cast<int64_t>(rows.size()), values.data(),
                       work);
  });
  REQUIRE_MESSAGE(status.ok(), status.message());
  return values;
}

inline std::vector<float> pull_all(Client& client, int32_t variable) {
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

}  // namespace dt::test
