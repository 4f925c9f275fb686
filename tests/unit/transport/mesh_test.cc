// SPDX-License-Identifier: Apache-2.0
// Who gets a connection to a rank of another host, and who does not.
#include "transport/tcp/mesh.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../contains.h"

using namespace dt;
using dt::tcp::Handshake;
using dt::tcp::Hello;
using dt::tcp::Mesh;
using dt::tcp::Socket;
using dt::test::contains;

namespace {

constexpr uint64_t kSession = 77;
constexpr int32_t kWorldSize = 4;
const Wait kPatient{Deadline::after_ms(120'000)};  // for the whole program

net::Address loopback() {
  const auto found = net::resolve_now("127.0.0.1", 0, true);
  REQUIRE(found.ok());
  return found.value()[0];
}

/// What a callback of the mesh was given.
struct Answer {
  Event done;
  Status status;
  Socket socket;
};
using AnswerPtr = std::shared_ptr<Answer>;

Mesh::Connected into(const AnswerPtr& answer) {
  return [answer](Result<Socket> result) {
    answer->status = result.status();
    if (result.ok()) answer->socket = std::move(result).value();
    answer->done.set();
  };
}

net::Security guarded(net::SecurityMode mode, char digit) {
  net::Security security;
  security.mode = mode;
  if (mode == net::SecurityMode::kNone) return security;
  security.token = std::move(net::Token::from_text(std::string(64, digit))).value();
  return security;
}

/// What the socket takes or has, in as many calls as it needs, until `bytes` have gone.
template <class Move>
bool move_all(const Socket& socket, short event, size_t bytes, Move move) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t moved = move(done);
    if (moved > 0) {
      done += static_cast<size_t>(moved);
      continue;
    }
    if (moved == 0 || errno != EAGAIN) return false;
    pollfd ready{socket.fd(), event, 0};
    if (poll(&ready, 1, 30'000) != 1) return false;
  }
  return true;
}

/// Ranks 0 and 1, and whoever pretends to be one.
struct Scene {
  explicit Scene(const net::Security& of_0 = {}, const net::Security& of_1 = {},
                 int32_t connections = 1, int32_t world_size = kWorldSize) {
    std::vector<Socket> sockets;
    for (int32_t rank = 0; rank < 2; ++rank) {
      auto socket = tcp::listen_on(loopback(), {});
      REQUIRE(socket.ok());
      peers.push_back({rank, format("host%d", rank), 4711, socket.value().local()});
      sockets.push_back(std::move(socket).value());
    }
    for (int32_t rank = 0; rank < 2; ++rank) {
      Mesh::Options options;
      options.session = kSession;
      options.rank = rank;
      options.world_size = world_size;
      options.connections = connections;
      options.host = format("host%d", rank);
      options.security = rank == 0 ? of_0 : of_1;
      options.look_up = [all = peers](const std::vector<int32_t>& ranks, const Wait&) {
        std::vector<tcp::Peer> found;
        for (const int32_t each : ranks) found.push_back(all[static_cast<size_t>(each)]);
        return Result<std::vector<tcp::Peer>>(std::move(found));
      };
      auto mesh = Mesh::start(std::move(sockets[static_cast<size_t>(rank)]), std::move(options));
      REQUIRE(mesh.ok());
      meshes.push_back(std::move(mesh).value());
      REQUIRE(meshes.back()->know({1 - rank}, kPatient).ok());
    }
  }

  AnswerPtr connect(int32_t rank, const std::string& communicator, int32_t connection = 0) {
    auto answer = std::make_shared<Answer>();
    meshes[static_cast<size_t>(rank)]->loop()->run([&] {
      meshes[static_cast<size_t>(rank)]->connect(communicator, 1 - rank, connection, into(answer));
    });
    return answer;
  }
  /// A hello to rank 1 by hand.
  AnswerPtr dial(const Hello& hello) {
    auto answer = std::make_shared<Answer>();
    auto connecting = tcp::begin_connect(peers[1].address, {});
    REQUIRE(connecting.ok());
    net::Loop* loop = meshes[0]->loop();
    std::shared_ptr<Handshake> handshake;
    loop->run([&] {
      handshake = Handshake::dial(loop, std::move(connecting).value(), {}, hello, into(answer));
    });
    CHECK(answer->done.wait(kPatient));
    loop->run([&] { handshake->close(); });
    return answer;
  }
  void forget(const std::string& communicator, Mesh::End end) {
    meshes[1]->loop()->run([&] { meshes[1]->forget(communicator, end); });
  }

  std::vector<tcp::Peer> peers;
  std::vector<std::shared_ptr<Mesh>> meshes;
};

/// The process's limit of open descriptors while this lives.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t most) {
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    rlimit few = before_;
    few.rlim_cur = most;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  }
  ~DescriptorLimit() { CHECK(setrlimit(RLIMIT_NOFILE, &before_) == 0); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE("Mesh: who calls too early is kept until asked for, and gets the connection") {
  Scene scene;
  const AnswerPtr early = scene.connect(0, "c");
  REQUIRE(early->done.wait(kPatient));
  REQUIRE(early->status.message() == "");
  const AnswerPtr asked = scene.connect(1, "c");
  REQUIRE(asked->done.wait(kPatient));
  CHECK(send(early->socket.fd(), "x", 1, MSG_NOSIGNAL) == 1);
}

TEST_CASE("Mesh: a process without a descriptor left blames itself, and goes on when it has some") {
  Scene scene;
  // A sanitizer needs descriptors for types that it has not seen before.
  REQUIRE(scene.meshes[0]->probe(1, kPatient).ok());
  {
    const DescriptorLimit none(3);
    const Status status = scene.meshes[0]->probe(1, kPatient);
    CHECK(status.code() == Code::kSystem);
    CHECK(status.message() == scene.meshes[0]->own_text() + " cannot connect to " +
                                  scene.peers[1].text() +
                                  ": cannot make a socket: Too many open files; look at the limit "
                                  "of open files (ulimit -n)");
  }
  const auto awaited = scene.connect(1, "world");
  const std::string waits = "has not connected to " + scene.meshes[1]->own_text();
  std::string text;
  const auto look = [&] {
    scene.meshes[1]->loop()->run([&] { text = scene.meshes[1]->progress("world", 0); });
    return text == waits;
  };
  CHECK(look());
  const net::Address& to = scene.peers[1].address;
  const Socket stranger(socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  {
    const DescriptorLimit none(3);
    REQUIRE(connect(stranger.fd(), reinterpret_cast<const sockaddr*>(&to.storage), to.length) == 0);
    while (look() && !kPatient.deadline.passed()) std::this_thread::yield();
  }
  CHECK(text == waits +
                    ", which cannot accept connections: Too many open files; look at its limit of "
                    "open files (ulimit -n)");
  const auto called = scene.connect(0, "world");
  REQUIRE(called->done.wait(kPatient));
  CHECK(called->status.ok());
  REQUIRE(awaited->done.wait(kPatient));
  CHECK(awaited->status.ok());
}

TEST_CASE(
    "Mesh: all ranks of the job may greet at the same time, and no more strangers than that") {
  constexpr rlim_t kDescriptors = 256;
  constexpr int32_t kStrangers = kDescriptors / 4;
  constexpr int32_t kLargeWorld = kStrangers + 12;
  const auto call = [](const Scene& scene, int32_t count, std::vector<Socket>* calling) {
    for (int32_t i = 0; i < count; ++i) {
      auto connecting = tcp::begin_connect(scene.peers[1].address, {});
      REQUIRE(connecting.ok());
      calling->push_back(std::move(connecting).value());
    }
  };
  // A greeting that is done: those that called before have been accepted.
  const auto all_accepted = [](Scene& scene) {
    REQUIRE(scene.dial({kSession, 0, 1, ""})->status.message() == "");
  };
  const auto is_closed = [](const Socket& socket) {
    pollfd polled{socket.fd(), POLLIN, 0};
    return poll(&polled, 1, 0) == 1;
  };
  for (const int32_t world_size : {kWorldSize, kLargeWorld}) {
    CAPTURE(world_size);
    Scene scene({}, {}, 1, world_size);
    const DescriptorLimit few(kDescriptors);
    std::vector<Socket> calling;
    call(scene, std::max(kStrangers, world_size) - 1, &calling);
    all_accepted(scene);
    CHECK_FALSE(is_closed(calling.front()));
    call(scene, 2, &calling);
    all_accepted(scene);
    CHECK(is_closed(calling.front()));
    CHECK_FALSE(is_closed(calling[3]));
  }
}

TEST_CASE("Mesh: calls for a communicator that has ended are refused, not kept") {
  Scene scene;
  scene.forget("broken", Mesh::End::kBroken);
  scene.forget("destroyed", Mesh::End::kDestroyed);
  scene.forget("destroyed", Mesh::End::kBroken);  // the first word counts
  for (const bool again : {false, true}) {
    CAPTURE(again);
    const AnswerPtr broken = scene.connect(0, "broken");
    REQUIRE(broken->done.wait(kPatient));
    CHECK(broken->status.code() == Code::kPeerLost);
    CHECK(contains(broken->status.message(),
                   "it refuses: communicator \"broken\" has failed on rank 1 (host1) at"));
    // The network is not the reason.
    CHECK(broken->status.message().ends_with("; its own error says why"));
    const AnswerPtr destroyed = scene.connect(0, "destroyed");
    REQUIRE(destroyed->done.wait(kPatient));
    CHECK(destroyed->status.code() == Code::kAborted);
    // A few names are remembered, whatever comes after them.
    scene.meshes[1]->loop()->run([&] {
      for (int i = 0; i < 30'000; ++i) {
        scene.meshes[1]->forget(format("world/%d.0", i), Mesh::End::kDestroyed);
      }
    });
  }
  scene.meshes[1]->loop()->run([&] { scene.meshes[1]->expect("destroyed"); });
  const AnswerPtr anew = scene.connect(0, "destroyed");
  REQUIRE(anew->done.wait(kPatient));
  CHECK(anew->status.message() == "");
}

TEST_CASE("Mesh: only a rank of the job that is to call is let in") {
  Scene scene;
  for (const int32_t from : {-1, 1, kWorldSize, 1 << 30}) {
    CAPTURE(from);
    for (const char* communicator : {"", "c"}) {
      const AnswerPtr answer = scene.dial({kSession, from, 1, communicator});
      CHECK(contains(answer->status.message(),
                     format("it refuses: rank 1 (host1) at %s has no peer of rank %d",
                            scene.peers[1].address.text().c_str(), from)));
    }
  }
  const AnswerPtr foreign = scene.dial({kSession + 1, 0, 1, "c"});
  CHECK(contains(foreign->status.message(), "choose another interface with network.interface"));
  CHECK(scene.dial({kSession, 3, 1, ""})->status.message() == "");  // a probe, as of a ring
  CHECK(contains(scene.dial({kSession, 3, 1, "c"})->status.message(), "dials rank 3, not the"));
}

TEST_CASE("Mesh: a second connection does not take the place of the first") {
  Scene scene;
  for (const bool claimed : {false, true}) {
    const std::string name = claimed ? "claimed" : "early";
    const AnswerPtr first = scene.connect(0, name);
    REQUIRE(first->done.wait(kPatient));
    AnswerPtr asked;
    if (claimed) asked = scene.connect(1, name);
    const AnswerPtr second = scene.dial({kSession, 0, 1, name});
    CHECK(contains(second->status.message(), "has this connection already"));
    if (!claimed) asked = scene.connect(1, name);
    REQUIRE(asked->done.wait(kPatient));
    REQUIRE(send(asked->socket.fd(), "x", 1, MSG_NOSIGNAL) == 1);
    char got = 0;
    for (const Deadline limit = kPatient.deadline; got == 0 && !limit.passed();) {
      (void)recv(first->socket.fd(), &got, 1, 0);
    }
    CHECK(got == 'x');
  }
}

TEST_CASE("Mesh: each of several connections joins those who ask for the same one") {
  Scene scene({}, {}, 3);
  std::vector<AnswerPtr> dialled;
  std::vector<AnswerPtr> asked(3);
  for (const int32_t each : {0, 1, 2}) {
    dialled.push_back(scene.connect(0, "c", each));
    REQUIRE(dialled.back()->done.wait(kPatient));
  }
  for (const int32_t each : {2, 0, 1}) {
    const AnswerPtr answer = scene.connect(1, "c", each);
    REQUIRE(answer->done.wait(kPatient));
    asked[static_cast<size_t>(each)] = answer;
  }
  for (size_t each = 0; each < 3; ++each) {
    const char sent = static_cast<char>('a' + each);
    REQUIRE(send(dialled[each]->socket.fd(), &sent, 1, MSG_NOSIGNAL) == 1);
    char got = 0;
    for (const Deadline limit = kPatient.deadline; got == 0 && !limit.passed();) {
      (void)recv(asked[each]->socket.fd(), &got, 1, 0);
    }
    CHECK(got == sent);
  }
  CHECK(contains(scene.dial({kSession, 0, 1, "c", 2})->status.message(), "has this connection"));
  CHECK(contains(scene.dial({kSession, 0, 1, "c", 3})->status.message(),
                 "has 3 connections to each peer, not 4; report this"));
}

TEST_CASE("Mesh: a parting word goes out over each connection") {
  Scene scene({}, {}, 3);
  std::vector<AnswerPtr> dialled;
  std::vector<Socket> leaving;
  for (const int32_t each : {0, 1, 2}) {
    dialled.push_back(scene.connect(0, "c", each));
    REQUIRE(dialled.back()->done.wait(kPatient));
    const AnswerPtr answer = scene.connect(1, "c", each);
    REQUIRE(answer->done.wait(kPatient));
    leaving.push_back(std::move(answer->socket));
  }
  tcp::Header last;
  last.what = tcp::Header::kLeft;
  scene.meshes[1]->loop()->run([&] { scene.meshes[1]->part(std::move(leaving), last); });
  for (const AnswerPtr& each : dialled) {
    tcp::Header found;
    REQUIRE(move_all(each->socket, POLLIN, sizeof found, [&](size_t done) {
      return each->socket.read(reinterpret_cast<char*>(&found) + done, sizeof found - done);
    }));
    CHECK(found.what == tcp::Header::kLeft);
  }
}

TEST_CASE("Handshake: a hello that came in time counts although the time is over") {
  auto started = net::Loop::start();
  REQUIRE(started.ok());
  net::Loop* loop = started.value().get();
  auto listener = tcp::listen_on(loopback(), {});
  REQUIRE(listener.ok());
  auto connecting = tcp::begin_connect(listener.value().local(), {});
  REQUIRE(connecting.ok());
  int accepted_fd = -1;
  while (accepted_fd < 0 && !kPatient.deadline.passed()) {
    accepted_fd = accept4(listener.value().fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  }
  const auto dialled = std::make_shared<Answer>();
  std::shared_ptr<Handshake> caller;
  loop->run([&] {
    caller = Handshake::dial(loop, std::move(connecting).value(), {}, {kSession, 0, 1, "c"},
                             into(dialled));
  });
  char some = 0;
  while (recv(accepted_fd, &some, 1, MSG_PEEK) != 1 && !kPatient.deadline.passed()) {
  }
  bool dropped = false;
  std::shared_ptr<Handshake> callee;
  loop->run([&] {
    // The timer is due before the loop looks at the socket.
    callee = Handshake::accept(
        loop, Socket(accepted_fd), {}, [](const Hello&) { return Status(); },
        [](const Hello&, Socket) {}, [&] { dropped = true; }, 0);
  });
  CHECK(dialled->done.wait(kPatient));
  CHECK(dialled->status.message() == "");
  loop->run([&] {
    CHECK_FALSE(dropped);
    callee->close();
    caller->close();
  });
}

TEST_CASE("Socket: a connection from a given address shares its port with those to other peers") {
  auto listener = tcp::listen_on(loopback(), {});
  REQUIRE(listener.ok());
  const auto connecting = tcp::begin_connect(listener.value().local(), loopback());
  REQUIRE(connecting.ok());
  int late = 0;
  socklen_t length = sizeof late;
  // An emulated kernel may not know the option, and then nothing set it.
  if (getsockopt(connecting.value().fd(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &late, &length) ==
      0) {
    CHECK(late == 1);
  }
  CHECK(connecting.value().local().port() != 0);
}

TEST_CASE("Mesh: guarded connections carry what is sent, header by header") {
  for (const net::SecurityMode mode : {net::SecurityMode::kAuth, net::SecurityMode::kEncrypt}) {
    Scene scene(guarded(mode, '1'), guarded(mode, '1'));
    CHECK(scene.meshes[0]->probe(1, kPatient).message() == "");
    const AnswerPtr asked = scene.connect(1, "c");
    const AnswerPtr dialled = scene.connect(0, "c");
    REQUIRE(dialled->done.wait(kPatient));
    REQUIRE(asked->done.wait(kPatient));
    REQUIRE(dialled->status.message() == "");
    REQUIRE(asked->status.message() == "");
    std::string message(5'000'000, ' ');
    for (size_t i = 0; i < message.size(); ++i) message[i] = static_cast<char>(i * 7 % 253);
    std::string header(40, 'h');
    bool sent = false;
    std::thread sender([&] {
      const size_t total = header.size() + message.size();
      sent = move_all(dialled->socket, POLLOUT, total, [&](size_t done) {
        if (done == 0) {
          const iovec parts[2] = {{header.data(), header.size()}, {message.data(), message.size()}};
          return dialled->socket.write(parts, 2);
        }
        const size_t at = done - header.size();
        const iovec part{message.data() + at, message.size() - at};
        return dialled->socket.write(&part, 1);
      });
    });
    std::string got(header.size() + message.size(), ' ');
    const bool received = move_all(asked->socket, POLLIN, got.size(), [&](size_t done) {
      return asked->socket.read(got.data() + done, std::min<size_t>(got.size() - done, 100'000));
    });
    sender.join();
    CHECK(sent);
    CHECK(received);
    CHECK((got == header + message));
    dialled->socket.close();
    char byte = 0;
    CHECK(asked->socket.read(&byte, 1) <= 0);
  }
}

TEST_CASE("Mesh: ranks whose security differs refuse each other, and name both") {
  const net::SecurityMode auth = net::SecurityMode::kAuth;
  const net::SecurityMode encrypt = net::SecurityMode::kEncrypt;
  const struct {
    net::Security dialling;
    net::Security called;
    std::string why;
  } rows[] = {
      {guarded(auth, '1'), guarded(auth, '2'), "the other side has another token"},
      {guarded(encrypt, '1'), guarded(encrypt, '2'), "the other side has another token"},
      {guarded(auth, '1'), guarded(encrypt, '1'),
       "this side uses security.mode = auth, the other side security.mode = encrypt"},
      {guarded(auth, '1'),
       {},
       "this side uses security.mode = auth, the other side security.mode = none"},
  };
  for (const auto& row : rows) {
    Scene scene(row.dialling, row.called);
    const AnswerPtr answer = scene.connect(0, "c");
    REQUIRE(answer->done.wait(kPatient));
    CHECK(answer->status.code() == Code::kConfig);
    CHECK(contains(answer->status.message(), "rank 0 (host0) at 127.0.0.1:"));
    CHECK(contains(answer->status.message(), "and rank 1 (host1 pid 4711) at 127.0.0.1:"));
    CHECK(contains(answer->status.message(), "do not accept each other: " + row.why));
  }
  Scene scene({}, guarded(auth, '1'));
  const AnswerPtr answer = scene.connect(0, "c");
  REQUIRE(answer->done.wait(kPatient));
  CHECK(contains(answer->status.message(),
                 "it refuses: this side uses security.mode = auth, the "
                 "other side sent a plain hello"));
}

TEST_CASE("Socket: connections have the congestion control that was chosen, on both sides") {
  const auto begins_with_reno = [](int fd) {
    char name[16] = {};
    socklen_t length = sizeof name;
    REQUIRE(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0);
    return std::string(name, 4) == "reno";  // as much as an emulated kernel tells
  };
  auto listener = tcp::listen_on(loopback(), {});
  REQUIRE(listener.ok());
  CHECK(tcp::set_congestion(listener.value(), "reno").message() == "");  // which every kernel has
  auto connecting = tcp::begin_connect(listener.value().local(), {});
  REQUIRE(connecting.ok());
  CHECK(tcp::set_congestion(connecting.value(), "reno").message() == "");
  int fd = -1;
  while (fd < 0 && !kPatient.deadline.passed()) {
    fd = accept4(listener.value().fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  }
  const Socket accepted(fd);
  tcp::settle_congestion(accepted, "reno");
  CHECK(begins_with_reno(accepted.fd()));
  CHECK(begins_with_reno(connecting.value().fd()));
  const Status unknown = tcp::set_congestion(listener.value(), "nosuch");
  CHECK(unknown.code() == Code::kConfig);
  CHECK(
      unknown.message() ==
      "network.congestion is \"nosuch\": the kernel has no such congestion control; give one that "
      "/proc/sys/net/ipv4/tcp_allowed_congestion_control lists, system or auto");
  for (const char* choice : {"system", "auto"}) {
    CHECK(tcp::set_congestion(listener.value(), choice).message() == "");
    tcp::settle_congestion(accepted, choice);
  }
}

TEST_CASE("Socket: cubic takes the place of bbr on short ways, and of nothing else") {
  CHECK(tcp::automatic_congestion("bbr", 40) == std::string("cubic"));
  CHECK(tcp::automatic_congestion("bbr2", 900) == std::string("cubic"));
  CHECK(tcp::automatic_congestion("bbr", 30'000) == std::string("bbr"));
  CHECK(tcp::automatic_congestion("cubic", 40) == std::string("cubic"));
  CHECK(tcp::automatic_congestion("dctcp", 40) == std::string("dctcp"));
}
