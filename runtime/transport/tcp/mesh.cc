// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/mesh.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace dt::tcp {
namespace {

// Connections that are being greeted or that no communicator asked for yet; more are dropped.
constexpr size_t kUnclaimedMax = 16384;
constexpr int kAcceptsAtOnce = 64;
// Without a descriptor left, accepting again at once would only burn the processor.
constexpr int64_t kShortageMs = 100;

}  // namespace

std::string Peer::text() const {
  return format("rank %d (%s pid %lld) at %s", rank, host.c_str(), static_cast<long long>(pid),
                address.text().c_str());
}

Mesh::Mesh(Options options, std::unique_ptr<net::Loop> loop)
    : options_(std::move(options)), loop_(std::move(loop)) {}

Result<std::shared_ptr<Mesh>> Mesh::start(Socket listener, Options options) {
  DT_TRY_VALUE(auto loop, net::Loop::start("dt-tcp"));
  std::shared_ptr<Mesh> mesh(new Mesh(std::move(options), std::move(loop)));
  mesh->address_ = listener.local();
  Status status;
  mesh->loop_->run([&] { status = mesh->listen(std::move(listener)); });
  DT_TRY(status);
  return mesh;
}

Mesh::~Mesh() {
  loop_->run([&] {
    shortage_ = nullptr;
    watcher_ = nullptr;
    listener_.close();
    for (const auto& each : greeting_) each->close();
    for (const auto& [key, each] : dialling_) each->close();
    greeting_.clear();
    dialling_.clear();
    awaited_.clear();
    early_.clear();
  });
}

Status Mesh::listen(Socket listener) {
  listener_ = std::move(listener);
  DT_TRY_VALUE(watcher_, net::FdWatcher::watch_socket(loop_.get(), listener_.fd(),
                                                      [this](bool, bool) { on_readable(); }));
  shortage_ = std::make_unique<net::Timer>(loop_.get(),
                                           [this] { (void)watcher_->set_interest(true, false); });
  return watcher_->set_interest(true, false);
}

std::string Mesh::own_text() const {
  return format("rank %d (%s) at %s", options_.rank, options_.host.c_str(),
                address_.text().c_str());
}

Status Mesh::know(const std::vector<int32_t>& ranks, const Wait& wait) {
  const auto missing = peers_.with([&](const auto& known) {
    std::vector<int32_t> list;
    for (const int32_t rank : ranks) {
      if (known.count(rank) == 0) list.push_back(rank);
    }
    return list;
  });
  if (missing.empty()) return {};
  DT_TRY_VALUE(auto found, options_.look_up(missing, wait));
  peers_.with([&](auto& known) {
    for (Peer& each : found) known[each.rank] = std::move(each);
  });
  return {};
}

Peer Mesh::peer(int32_t rank) const {
  return peers_.with([&](const auto& known) {
    const auto found = known.find(rank);
    if (found != known.end()) return found->second;
    Peer unknown;
    unknown.rank = rank;
    return unknown;
  });
}

void Mesh::on_readable() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    const int fd = accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      (void)watcher_->set_interest(false, false);
      shortage_->start(kShortageMs);
      return;
    }
    Socket socket(fd);
    if (greeting_.size() + early_.size() >= kUnclaimedMax) continue;
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    auto self = std::make_shared<std::weak_ptr<Handshake>>();
    const auto done = [this, self] { greeting_.erase(self->lock()); };
    auto handshake = Handshake::accept(
        loop_.get(), std::move(socket), [this](const Hello& hello) { return judge(hello); },
        [this, done](const Hello& hello, Socket greeted) {
          done();
          accepted(hello, std::move(greeted));
        },
        done);
    *self = handshake;
    greeting_.insert(std::move(handshake));
  }
}

std::string Mesh::judge(const Hello& hello) const {
  if (hello.session != options_.session) {
    return format("%s belongs to another job or attempt; two hosts may have the same address",
                  own_text().c_str());
  }
  if (hello.to != options_.rank) {
    return format("this is %s, not rank %d; two hosts may have the same address",
                  own_text().c_str(), hello.to);
  }
  return {};
}

void Mesh::accepted(const Hello& hello, Socket socket) {
  if (hello.communicator.empty()) return;  // a probe
  const Key key(hello.communicator, hello.from);
  if (const auto found = awaited_.find(key); found != awaited_.end()) {
    const Connected done = std::move(found->second);
    awaited_.erase(found);
    done(std::move(socket));
    return;
  }
  early_[key] = std::move(socket);
}

void Mesh::connect(const std::string& communicator, int32_t rank, Connected done) {
  const Key key(communicator, rank);
  if (options_.rank < rank) return dial(key, std::move(done));
  if (const auto found = early_.find(key); found != early_.end()) {
    Socket socket = std::move(found->second);
    early_.erase(found);
    done(std::move(socket));
    return;
  }
  awaited_[key] = std::move(done);
}

void Mesh::dial(const Key& key, Connected done) {
  const Peer to = peer(key.second);
  const auto explain = [own = own_text(), to](const Status& status) {
    ErrorInfo info;
    info.code = Code::kPeerLost;
    info.rank = to.rank;
    info.host = to.host;
    info.pid = to.pid;
    info.message = format(
        "%s cannot reach %s: %s; open TCP between the hosts (network.port_range "
        "pins the ports), or choose another interface with network.interface",
        own.c_str(), to.text().c_str(), status.message().c_str());
    return Status(std::move(info));
  };
  auto connecting = begin_connect(to.address, address_);
  if (!connecting.ok()) {
    loop_->post([done = std::move(done), status = explain(connecting.status())] { done(status); });
    return;
  }
  const Hello hello{options_.session, options_.rank, to.rank, key.first};
  dialling_[key] =
      Handshake::dial(loop_.get(), std::move(connecting).value(), hello,
                      [this, key, explain, done = std::move(done)](Result<Socket> result) {
                        dialling_.erase(key);
                        if (!result.ok()) return done(explain(result.status()));
                        done(std::move(result));
                      });
}

void Mesh::forget(const std::string& communicator) {
  const auto belongs = [&](const auto& entry) { return entry.first.first == communicator; };
  for (const auto& [key, handshake] : dialling_) {
    if (key.first == communicator) handshake->close();
  }
  std::erase_if(dialling_, belongs);
  std::erase_if(awaited_, belongs);
  std::erase_if(early_, belongs);
}

std::string Mesh::progress(const std::string& communicator, int32_t rank) const {
  const Key key(communicator, rank);
  if (const auto found = dialling_.find(key); found != dialling_.end()) {
    return found->second->connected() ? "took the connection and does not answer"
                                      : "does not take the connection: a firewall drops the "
                                        "packets, or its host is gone";
  }
  if (awaited_.count(key) != 0) return format("has not connected to %s", own_text().c_str());
  return "is connected";
}

Status Mesh::probe(int32_t rank, const Wait& wait) {
  DT_TRY(know({rank}, wait));
  struct Outcome {
    Event done;
    Status status;
    std::string progress;
  };
  const auto outcome = std::make_shared<Outcome>();
  // An empty name belongs to no communicator; there is one probe at a time.
  loop_->run([&] {
    dial({"", rank}, [outcome](Result<Socket> result) {
      outcome->status = result.status();
      outcome->done.set();
    });
  });
  if (outcome->done.wait(wait)) return outcome->status;
  bool late = false;
  loop_->run([&] {
    late = outcome->done.is_set();
    if (!late) outcome->progress = progress("", rank);
    forget("");
  });
  if (late) return outcome->status;
  if (wait.interrupted()) return wait.interrupt->status();
  const Peer to = peer(rank);
  ErrorInfo info;
  info.code = Code::kTimeout;
  info.rank = to.rank;
  info.host = to.host;
  info.pid = to.pid;
  info.message = format(
      "%s cannot reach %s: it %s; open TCP between the hosts "
      "(network.port_range pins the ports), or choose another interface with "
      "network.interface",
      own_text().c_str(), to.text().c_str(), outcome->progress.c_str());
  return Status(std::move(info));
}

}  // namespace dt::tcp
