// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/mesh.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <functional>

namespace dt::tcp {
namespace {

constexpr size_t kGreetingMax = 1024;  // but see greeting_limit()
// Connections of ranks that no communicator asked for yet; more are dropped.
constexpr size_t kUnclaimedMax = 16384;
constexpr size_t kPartingMax = 1024;
constexpr char kSameAddress[] =
    "two hosts may have the same address, so choose another interface with network.interface";
// Communicators that are remembered after their end, to refuse late connections: twice as many at
// most. Those of older ones count as unclaimed.
constexpr size_t kEndedMax = 32768;
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
    for (const auto& [age, each] : greeting_) each->close();
    for (const auto& [key, each] : dialling_) each->close();
    for (const auto& each : parting_) each->close();
    parting_.clear();
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

/// As many as strangers may have, and at least as many as the ranks of the job may open for a
/// communicator: all of them may call at the same time. But half of the descriptors stay for the
/// program, which strangers could else leave without any.
size_t Mesh::greeting_limit() const {
  const size_t own =
      static_cast<size_t>(options_.world_size) * static_cast<size_t>(options_.connections);
  return std::max(net::stranger_limit(kGreetingMax), std::min(own, net::open_files_limit() / 2));
}

void Mesh::on_readable() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    const int fd = accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      const bool short_of =
          errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      accept_error_ = short_of ? errno : 0;
      if (!short_of) return;
      (void)watcher_->set_interest(false, false);
      shortage_->start(kShortageMs);
      return;
    }
    Socket socket(fd);
    if (early_.size() >= kUnclaimedMax) continue;
    if (greeting_.size() >= greeting_limit()) {
      greeting_.begin()->second->close();
      greeting_.erase(greeting_.begin());
    }
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const uint64_t age = ++last_greeting_;
    const auto done = [this, age] { greeting_.erase(age); };
    auto handshake = Handshake::accept(
        loop_.get(), std::move(socket), options_.security,
        [this](const Hello& hello) { return judge(hello); },
        [this, done](const Hello& hello, Socket greeted) {
          done();
          accepted(hello, std::move(greeted));
        },
        done);
    greeting_.emplace(age, std::move(handshake));
  }
}

Status Mesh::judge(const Hello& hello) const {
  const auto refuse = [&](const std::string& why) { return Status(Code::kInvalidArgument, why); };
  const std::string own = own_text();
  if (hello.session != options_.session) {
    return refuse(own + " belongs to another job or attempt; " + kSameAddress);
  }
  if (hello.to != options_.rank) {
    return refuse(format("this is %s, not rank %d; %s", own.c_str(), hello.to, kSameAddress));
  }
  if (hello.from < 0 || hello.from >= options_.world_size || hello.from == options_.rank) {
    return refuse(format("%s has no peer of rank %d; report this", own.c_str(), hello.from));
  }
  if (hello.communicator.empty()) return {};  // a probe
  if (hello.from > options_.rank) {
    return refuse(
        format("%s dials rank %d, not the reverse; report this", own.c_str(), hello.from));
  }
  if (hello.connection >= options_.connections) {
    return refuse(format("%s has %d connections to each peer, not %d; report this", own.c_str(),
                         options_.connections, hello.connection + 1));
  }
  const Key key(hello.communicator, hello.from, hello.connection);
  if (early_.count(key) != 0 || taken_.count(key) != 0) {
    return refuse(own + " has this connection already; report this");
  }
  const End* end = ended(hello.communicator);
  if (end == nullptr) return {};
  if (*end == End::kDestroyed) return Status(Code::kAborted, "destroyed");
  if (*end == End::kFinalized) return Status(Code::kAborted, kPeerFinalized);
  return refuse(format("communicator \"%s\" has failed on %s; its own error says why",
                       hello.communicator.c_str(), own.c_str()));
}

void Mesh::accepted(const Hello& hello, Socket socket) {
  if (hello.communicator.empty()) return;  // a probe
  settle_congestion(socket, options_.congestion);
  const Key key(hello.communicator, hello.from, hello.connection);
  if (const auto found = awaited_.find(key); found != awaited_.end()) {
    const Connected done = std::move(found->second);
    awaited_.erase(found);
    taken_.insert(key);
    done(std::move(socket));
    return;
  }
  early_[key] = std::move(socket);
}

void Mesh::connect(const std::string& communicator, int32_t rank, int32_t connection,
                   Connected done) {
  const Key key(communicator, rank, connection);
  if (options_.rank < rank) return dial(key, std::move(done));
  if (const auto found = early_.find(key); found != early_.end()) {
    Socket socket = std::move(found->second);
    early_.erase(found);
    taken_.insert(key);
    done(std::move(socket));
    return;
  }
  awaited_[key] = std::move(done);
}

void Mesh::dial(const Key& key, Connected done) {
  const Peer to = peer(std::get<1>(key));
  const auto explain = [own = own_text(), to](const Status& status) {
    if (status.code() == Code::kAborted) return status;
    ErrorInfo info;
    info.code = Code::kPeerLost;
    info.rank = to.rank;
    info.host = to.host;
    info.pid = to.pid;
    if (status.code() == Code::kConfig || status.code() == Code::kVersion) {
      info.code = status.code();
      info.message = format("%s and %s do not accept each other: %s", own.c_str(),
                            to.text().c_str(), status.message().c_str());
      return Status(std::move(info));
    }
    // The network let a call through that was answered: the refusal says what to do.
    const bool answered = status.message().starts_with(kRefuses);
    info.message =
        format("%s cannot reach %s: %s%s", own.c_str(), to.text().c_str(), status.message().c_str(),
               answered ? ""
                        : "; open TCP between the hosts (network.port_range pins the "
                          "ports), or choose another interface with network.interface");
    return Status(std::move(info));
  };
  auto connecting = begin_connect(to.address, address_);
  if (const Status& why = connecting.status(); !why.ok()) {
    // If this process gets no socket, it is not the peer's fault.
    Status status = why.code() == Code::kPeerLost
                        ? explain(why)
                        : why.within(own_text() + " cannot connect to " + to.text());
    loop_->post([done = std::move(done), status = std::move(status)] { done(status); });
    return;
  }
  (void)set_congestion(connecting.value(), options_.congestion);  // the listener had it, too
  const Hello hello{options_.session, options_.rank, to.rank, std::get<0>(key), std::get<2>(key)};
  dialling_[key] =
      Handshake::dial(loop_.get(), std::move(connecting).value(), options_.security, hello,
                      [this, key, explain, done = std::move(done)](Result<Socket> result) {
                        dialling_.erase(key);
                        if (!result.ok()) return done(explain(result.status()));
                        settle_congestion(result.value(), options_.congestion);
                        done(std::move(result));
                      });
}

void Mesh::expect(const std::string& communicator) {
  for (auto& some : ended_) some.erase(std::hash<std::string>()(communicator));
}

const Mesh::End* Mesh::ended(const std::string& communicator) const {
  for (const auto& some : ended_) {
    const auto found = some.find(std::hash<std::string>()(communicator));
    if (found != some.end()) return &found->second;
  }
  return nullptr;
}

void Mesh::forget(const std::string& communicator, End end) {
  drop(communicator);
  if (ended(communicator) != nullptr) return;
  if (ended_[0].size() == kEndedMax) ended_[1] = std::exchange(ended_[0], {});
  ended_[0].emplace(std::hash<std::string>()(communicator), end);
}

void Mesh::part(std::vector<Socket> sockets, const Header& last) {
  if (parting_.size() >= kPartingMax) return;
  const auto rest = std::make_shared<std::vector<Socket>>(std::move(sockets));
  while (!rest->empty()) {
    Socket socket = std::move(rest->front());
    rest->erase(rest->begin());
    auto self = std::make_shared<std::weak_ptr<Farewell>>();
    auto farewell = Farewell::say(loop_.get(), std::move(socket), last, [this, self, rest, last] {
      parting_.erase(self->lock());
      part(std::move(*rest), last);
    });
    if (farewell == nullptr) continue;
    *self = farewell;
    parting_.insert(std::move(farewell));
    return;
  }
}

void Mesh::drop(const std::string& communicator) {
  const auto is_of = [&](const Key& key) { return std::get<0>(key) == communicator; };
  const auto belongs = [&](const auto& entry) { return is_of(entry.first); };
  for (const auto& [key, handshake] : dialling_) {
    if (is_of(key)) handshake->close();
  }
  std::erase_if(dialling_, belongs);
  std::erase_if(awaited_, belongs);
  std::erase_if(early_, belongs);
  std::erase_if(taken_, is_of);
}

std::string Mesh::progress(const std::string& communicator, int32_t rank) const {
  for (int32_t connection = 0; connection < options_.connections; ++connection) {
    const Key key(communicator, rank, connection);
    if (const auto found = dialling_.find(key); found != dialling_.end()) {
      return found->second->connected() ? "took the connection and does not answer"
                                        : "does not take the connection: a firewall drops the "
                                          "packets, or its host is gone";
    }
    if (awaited_.count(key) == 0) continue;
    std::string text = "has not connected to " + own_text();
    if (accept_error_ != 0) {
      text += format(
          ", which cannot accept connections: %s; look at its limit of open files "
          "(ulimit -n)",
          errno_text(accept_error_).c_str());
    }
    return text;
  }
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
    dial({"", rank, 0}, [outcome](Result<Socket> result) {
      outcome->status = result.status();
      outcome->done.set();
    });
  });
  if (outcome->done.wait(wait)) return outcome->status;
  bool late = false;
  loop_->run([&] {
    late = outcome->done.is_set();
    if (!late) outcome->progress = progress("", rank);
    drop("");
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
