// SPDX-License-Identifier: Apache-2.0
#include "metrics/port.h"

#include <map>
#include <utility>

#include "metrics/request.h"
#include "net/address.h"
#include "net/tcp.h"

namespace dt::metrics {
namespace {

constexpr char kLoopback[] = "127.0.0.1";

}  // namespace

/// All on the loop's thread. A client ends when it has closed its side after the answer, or when
/// its time is over; both may come from within a callback of what ends, which allows that.
class Port::Impl {
 public:
  Impl(net::Loop* loop, Options options) : loop_(loop), options_(std::move(options)) {}

  Status listen() {
    DT_TRY_VALUE(const net::Address address, net::literal_address(kLoopback, options_.port));
    DT_TRY_VALUE(
        listener_,
        net::Listener::open(loop_, address, [this](std::unique_ptr<net::Connection> connection) {
          accept(std::move(connection));
        }));
    return {};
  }
  std::string address() const { return listener_->bound().text(); }

 private:
  struct Client {
    std::unique_ptr<net::Connection> connection;
    std::unique_ptr<net::Timer> timer;
    RequestReader reader;
    bool answered = false;
  };

  void accept(std::unique_ptr<net::Connection> connection) {
    if (clients_.size() >= options_.connections) drop(clients_.begin()->first);
    const uint64_t id = ++last_id_;
    Client& client = clients_[id];
    client.connection = std::move(connection);
    client.timer = std::make_unique<net::Timer>(loop_, [this, id] { drop(id); });
    client.timer->start(options_.connection_ms);
    net::ConnectionEvents events;
    events.on_bytes = [this, id](const char* data, size_t bytes) {
      read(id, std::string_view(data, bytes));
    };
    events.on_close = [this, id](int) { clients_.erase(id); };
    client.connection->open(std::move(events));
  }

  void read(uint64_t id, std::string_view bytes) {
    Client& client = clients_.at(id);
    // What comes behind the request is read and dropped: unread, it would turn the end of the
    // connection into a reset, and the answer might be lost.
    if (client.answered) return;
    const std::optional<int> status = client.reader.feed(bytes);
    if (!status.has_value()) return;
    client.answered = true;
    client.connection->write(response(*status, *status == 200 ? options_.text() : std::string()));
    client.connection->shutdown();
  }

  void drop(uint64_t id) {
    const auto found = clients_.find(id);
    if (found == clients_.end()) return;
    found->second.connection->reset();
    clients_.erase(found);
  }

  net::Loop* const loop_;
  const Options options_;
  std::unique_ptr<net::Listener> listener_;
  std::map<uint64_t, Client> clients_;  ///< by age
  uint64_t last_id_ = 0;
};

Port::Port(net::Loop* loop, std::unique_ptr<Impl> impl, std::string address)
    : loop_(loop), impl_(std::move(impl)), address_(std::move(address)) {}

Port::~Port() {
  loop_->run([&] { impl_ = nullptr; });
}

Result<std::unique_ptr<Port>> Port::open(net::Loop* loop, Options options) {
  auto impl = std::make_unique<Impl>(loop, std::move(options));
  Status status;
  std::string address;
  const bool ran = loop->run([&] {
    status = impl->listen();
    if (status.ok()) address = impl->address();
  });
  if (!ran) return Status(Code::kInvalidState, "the I/O thread has ended");
  DT_TRY(status);
  return std::unique_ptr<Port>(new Port(loop, std::move(impl), std::move(address)));
}

}  // namespace dt::metrics
