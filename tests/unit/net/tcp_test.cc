// SPDX-License-Identifier: Apache-2.0
#include "net/tcp.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "base/wait.h"
#include "net/interfaces.h"
#include "net/secure_connection.h"

using dt::Deadline;
using dt::Event;
using dt::net::Address;
using dt::net::Connection;
using dt::net::ConnectionEvents;
using dt::net::Listener;
using dt::net::Loop;

namespace {

constexpr int64_t kStreamPatienceMs = 60'000;
constexpr size_t kLargeBytes = size_t{16} << 20;  // more than sockets take while nobody reads

// A loop with a listener on a free port; what it accepts is handed to `serve`, on the loop.
struct Server {
  std::unique_ptr<Loop> loop;
  std::unique_ptr<Listener> listener;
  Address address;

  explicit Server(Listener::OnAccept serve, const char* host = "127.0.0.1") {
    loop = std::move(Loop::start()).value();
    loop->run([&] {
      auto opened = Listener::open(loop.get(), dt::net::resolve_now(host, 0, true).value().at(0),
                                   std::move(serve));
      REQUIRE(opened.ok());
      listener = std::move(opened).value();
      address = listener->bound();
    });
  }
  ~Server() {
    loop->run([&] { listener.reset(); });
  }
};

// A plain blocking socket, as a foreign program would use.
int plain_connect(const Address& address) {
  const int fd = socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(fd >= 0);
  REQUIRE(connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0);
  return fd;
}

void close_with_reset(int fd) {
  const linger now{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(fd);
}

}  // namespace

TEST_CASE("Connection: echoes 8 MiB through both directions, then sees the end of file") {
  constexpr size_t kBytes = 8 << 20;
  std::unique_ptr<Connection> served, dialled;
  Server server([&](std::unique_ptr<Connection> connection) {
    served = std::move(connection);
    ConnectionEvents events;
    events.on_bytes = [&](const char* data, size_t bytes) { served->write({data, bytes}); };
    events.on_close = [&](int) { served.reset(); };
    served->open(std::move(events));
  });
  CHECK(server.address.port() != 0);
  std::string sent(kBytes, '\0');
  for (size_t i = 0; i < kBytes; ++i) sent[i] = static_cast<char>(i * 31 + i / 251);
  std::string received;
  bool read_while_congested = false;  // else both ends stop once the kernel's buffers are full
  const auto done = std::make_shared<Event>();
  const auto closed = std::make_shared<Event>();
  int error = -1;
  server.loop->run([&] {
    ConnectionEvents events;
    events.on_open = [&] { dialled->write(sent); };
    events.on_bytes = [&, done](const char* data, size_t bytes) {
      received.append(data, bytes);
      if (dialled->congested()) read_while_congested = true;
      if (received.size() == kBytes) done->set();
    };
    events.on_close = [&, closed](int reason) {
      error = reason;
      closed->set();
    };
    dialled = std::move(Connection::dial(server.loop.get(), server.address, events)).value();
  });
  CHECK(done->wait({Deadline::after_ms(kStreamPatienceMs)}));
  CHECK((received == sent));
  CHECK(read_while_congested);
  server.loop->run([&] { served.reset(); });
  CHECK(closed->wait({Deadline::after_ms(kStreamPatienceMs)}));
  CHECK(error == 0);
  server.loop->run([&] { dialled.reset(); });
}

TEST_CASE("Connection: dialling a port where nothing listens tells ECONNREFUSED") {
  Address gone;
  {
    gone = Server([](std::unique_ptr<Connection>) {}).address;
  }
  auto loop = std::move(Loop::start()).value();
  const auto closed = std::make_shared<Event>();
  int error = -1;
  std::unique_ptr<Connection> dialled;
  loop->run([&] {
    ConnectionEvents events;
    events.on_close = [&, closed](int reason) {
      error = reason;
      closed->set();
    };
    dialled = std::move(Connection::dial(loop.get(), gone, events)).value();
  });
  CHECK(closed->wait({Deadline::after_ms(kStreamPatienceMs)}));
  CHECK(error == ECONNREFUSED);
  loop->run([&] { dialled.reset(); });
}

TEST_CASE("Connection: resets under load do not kill the process") {
  // Without the blocked SIGPIPE of the loop's thread the first write after a reset would.
  constexpr int kRounds = 50;
  std::vector<std::unique_ptr<Connection>> served;
  int closed = 0;
  std::shared_ptr<Event> closed_once;
  Server server([&](std::unique_ptr<Connection> connection) {
    served.push_back(std::move(connection));
    const size_t index = served.size() - 1;
    ConnectionEvents events;
    events.on_close = [&](int) {
      ++closed;
      closed_once->set();
    };
    served[index]->open(std::move(events));
    for (int i = 0; i < 64; ++i) served[index]->write(std::string(64 << 10, 'x'));
  });
  for (int round = 0; round < kRounds; ++round) {
    const auto this_round = std::make_shared<Event>();
    server.loop->run([&] { closed_once = this_round; });
    const int fd = plain_connect(server.address);
    char byte;
    REQUIRE(read(fd, &byte, 1) == 1);  // the load is on its way
    close_with_reset(fd);
    REQUIRE(this_round->wait({Deadline::after_ms(kStreamPatienceMs)}));
    // The owner may write on before it has seen the end: nothing happens.
    server.loop->run([&] { served.back()->write("late"); });
  }
  server.loop->run([&] {
    CHECK(closed == kRounds);
    served.clear();
  });
}

TEST_CASE("Connection: a write error leaves what the peer said last to be read") {
  std::unique_ptr<Connection> served;
  std::string received;
  const auto closed = std::make_shared<Event>();
  const auto accepted = std::make_shared<Event>();
  Server server([&](std::unique_ptr<Connection> connection) {
    served = std::move(connection);
    ConnectionEvents events;
    events.on_bytes = [&](const char* data, size_t bytes) { received.append(data, bytes); };
    events.on_close = [closed](int) { closed->set(); };
    served->open(std::move(events));
    accepted->set();
  });
  const int fd = plain_connect(server.address);
  REQUIRE(accepted->wait({Deadline::after_ms(kStreamPatienceMs)}));
  server.loop->run([&] {
    // While the loop does not read: a last word, then the end; then we write into the void.
    REQUIRE(write(fd, "refused", 7) == 7);
    close(fd);
    for (int i = 0; i < 4; ++i) served->write(std::string(1 << 10, 'x'));
  });
  CHECK(closed->wait({Deadline::after_ms(kStreamPatienceMs)}));
  CHECK(received == "refused");
  // The kernel did send the signal that kills by default; it waits, blocked, on the loop's thread.
  server.loop->run([] {
    sigset_t pending;
    sigpending(&pending);
    CHECK(sigismember(&pending, SIGPIPE) == 1);
  });
  server.loop->run([&] { served.reset(); });
}

TEST_CASE("Connection: a peer that does not read makes it congested, not endless") {
  std::unique_ptr<Connection> served;
  size_t asked = 0;
  size_t queued_then = 0;
  const auto congested = std::make_shared<Event>();
  const auto drained = std::make_shared<Event>();
  Server server([&](std::unique_ptr<Connection> connection) {
    served = std::move(connection);
    ConnectionEvents events;
    events.on_bytes = [&](const char*, size_t bytes) {
      asked += bytes;
      served->write(std::string(bytes * 1024, 'a'));
      if (!served->congested() || congested->is_set()) return;
      queued_then = served->queued_bytes();  // the kernel takes more of it at any moment
      congested->set();
    };
    events.on_drained = [drained] { drained->set(); };
    events.on_close = [&](int) { served.reset(); };
    served->open(std::move(events));
  });
  const int fd = plain_connect(server.address);
  const std::string questions(1 << 10, 'q');
  const Deadline limit = Deadline::after_ms(kStreamPatienceMs);
  while (!congested->is_set() && !limit.passed()) {
    if (send(fd, questions.data(), questions.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
      pollfd writable{fd, POLLOUT, 0};
      poll(&writable, 1, 10);
    }
  }
  size_t asked_then = 0;
  server.loop->run([&] {
    asked_then = asked;
    CHECK(queued_then > Connection::kHighWaterBytes);
  });
  std::vector<char> sink(1 << 20);
  while (!drained->is_set() && !limit.passed()) {
    // The last byte may be here before the news that all are sent.
    pollfd readable{fd, POLLIN, 0};
    if (poll(&readable, 1, 10) == 1) REQUIRE(read(fd, sink.data(), sink.size()) > 0);
  }
  REQUIRE(drained->is_set());
  CHECK(asked_then > 0);
  close_with_reset(fd);
}

TEST_CASE(
    "Connection: what is held goes out in order, at the end of the connection at the latest") {
  // Too large to be held, and for the kernel to take while nobody reads.
  const std::string large(kLargeBytes, 'l');
  for (const bool released : {true, false}) {
    CAPTURE(released);
    std::unique_ptr<Connection> served;
    const auto accepted = std::make_shared<Event>();
    Server server([&](std::unique_ptr<Connection> connection) {
      served = std::move(connection);
      served->open({});
      accepted->set();
    });
    const int fd = plain_connect(server.address);
    REQUIRE(accepted->wait({Deadline::after_ms(kStreamPatienceMs)}));
    server.loop->run([&] {
      served->write("a");
      served->hold();
      served->write("b");
      served->write("c", std::make_shared<const std::string>("d"));
      served->write("e");
      if (released) {
        served->write(large);
        served->write("f");
        served->release();
      }
      CHECK(served->queued_bytes() >= 1);
      if (released) {
        served->write("g");
        served->shutdown();
      } else {
        served.reset();
      }
    });
    std::string received;
    char piece[4096];
    for (ssize_t bytes = 0; (bytes = read(fd, piece, sizeof piece)) > 0;) {
      received.append(piece, static_cast<size_t>(bytes));
    }
    CHECK(received == (released ? "abcde" + large + "fg" : "abcde"));
    close(fd);
    server.loop->run([&] { served.reset(); });
  }
}

TEST_CASE("Connection: what the kernel does not take at once follows, wherever that is") {
  for (const bool in_shared : {false, true}) {
    CAPTURE(in_shared);
    std::string large(kLargeBytes, '\0');
    for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7 + i / 251);
    const std::string bytes = in_shared ? "a few" : large;
    const auto shared = std::make_shared<const std::string>(in_shared ? large : "a few");
    std::unique_ptr<Connection> served;
    const auto accepted = std::make_shared<Event>();
    Server server([&](std::unique_ptr<Connection> connection) {
      served = std::move(connection);
      served->open({});
      accepted->set();
    });
    const int fd = plain_connect(server.address);
    REQUIRE(accepted->wait({Deadline::after_ms(kStreamPatienceMs)}));
    server.loop->run([&] {
      served->write(bytes, shared);
      // The kernel has taken a part, which counts no more.
      CHECK(served->queued_bytes() > 0);
      CHECK(served->queued_bytes() < bytes.size() + shared->size());
      served->write("z");
      served->shutdown();
    });
    std::string received;
    std::vector<char> piece(1 << 16);
    for (ssize_t count = 0; (count = read(fd, piece.data(), piece.size())) > 0;) {
      received.append(piece.data(), static_cast<size_t>(count));
    }
    CHECK((received == bytes + *shared + "z"));  // not printed
    server.loop->run([&] {
      CHECK(served->queued_bytes() == 0);
      served.reset();
    });
    close(fd);
  }
}

TEST_CASE("Connection: a queue counts its own memory, and gives it back at the end") {
  const auto shared = std::make_shared<const std::string>(kLargeBytes, 's');
  std::unique_ptr<Connection> served;
  const auto accepted = std::make_shared<Event>();
  Server server([&](std::unique_ptr<Connection> connection) {
    served = std::move(connection);
    served->open({});
    accepted->set();
  });
  const int fd = plain_connect(server.address);
  REQUIRE(accepted->wait({Deadline::after_ms(kStreamPatienceMs)}));
  server.loop->run([&] {
    served->write("head", shared);
    CHECK(served->kept_bytes() < 1024);
    served->write(std::string(kLargeBytes, 'o'));
    CHECK(served->kept_bytes() >= kLargeBytes);
    CHECK(served->kept_bytes() < kLargeBytes + 2048);
    // Small pieces share one request.
    for (int i = 0; i < 1000; ++i) served->write("piece");
    CHECK(served->kept_bytes() < kLargeBytes + 20'000);
    CHECK(shared.use_count() == 2);
    served.reset();
    CHECK(shared.use_count() == 1);  // at once, not when libuv has ended the request
  });
  close_with_reset(fd);
}

TEST_CASE("SecureConnection: shared bytes stay shared until the peer takes them") {
  using namespace dt::net;
  Security security;
  security.mode = SecurityMode::kEncrypt;
  security.token = Token::from_text(std::string(64, 'a')).value();
  std::string large(kLargeBytes, '\0');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7 + i / 251);
  const auto shared = std::make_shared<const std::string>(large);
  std::unique_ptr<SecureConnection> served;
  const auto written = std::make_shared<Event>();
  const auto drained = std::make_shared<Event>();
  Server server([&](std::unique_ptr<Connection> connection) {
    SecureEvents events;
    events.on_open = [&] {
      served->write("head", shared);
      served->write({}, shared);
      served->write("tail");
      CHECK(served->queued_bytes() > kLargeBytes);
      CHECK(served->kept_bytes() < 2 * Connection::kHighWaterBytes);
      CHECK(served->congested());
      served->shutdown();
      written->set();
    };
    events.on_drained = [&] {
      CHECK_FALSE(served->congested());
      drained->set();
    };
    served = SecureConnection::accept(std::move(connection), security, Purpose::kStore, {},
                                      std::move(events));
  });
  std::string received;
  const auto ended = std::make_shared<Event>();
  std::unique_ptr<SecureConnection> dialled;
  server.loop->run([&] {
    SecureEvents events;
    events.on_bytes = [&](const char* data, size_t bytes) { received.append(data, bytes); };
    events.on_close = [&](int) { ended->set(); };
    auto made = SecureConnection::dial(server.loop.get(), server.address, security, Purpose::kStore,
                                       std::move(events));
    dialled = std::move(made).value();
  });
  CHECK(written->wait({Deadline::after_ms(kStreamPatienceMs)}));
  CHECK(drained->wait({Deadline::after_ms(kStreamPatienceMs)}));
  CHECK(ended->wait({Deadline::after_ms(kStreamPatienceMs)}));
  CHECK((received == "head" + large + large + "tail"));  // not printed
  server.loop->run([&] {
    CHECK(served->queued_bytes() == 0);
    // The queue is empty; TLS keeps the memory of one record.
    CHECK(served->kept_bytes() > 16 << 10);
    CHECK(served->kept_bytes() < 24 << 10);
    served.reset();
    dialled.reset();
  });
}

TEST_CASE("Listener: says what is wrong with an address") {
  Server server([](std::unique_ptr<Connection>) {});
  server.loop->run([&] {
    const auto taken = Listener::open(server.loop.get(), server.address, {});
    CHECK(taken.status().message() ==
          "cannot listen on " + server.address.text() +
              ": Address already in use; another process listens there: choose another port, or 0 "
              "for a free one");
    const auto foreign = Listener::open(
        server.loop.get(), dt::net::resolve_now("192.0.2.1", 0, true).value().at(0), {});
    CHECK(foreign.status().message() ==
          "cannot listen on 192.0.2.1:0: Cannot assign requested address; no interface of this "
          "host has that address; it has " +
              dt::net::interfaces_text(dt::net::list_interfaces()));
  });
}

TEST_CASE("Loop: its end closes connections whose owners are still there") {
  std::unique_ptr<Connection> served;
  std::unique_ptr<Loop> loop = std::move(Loop::start()).value();
  std::unique_ptr<Listener> listener;
  const auto accepted = std::make_shared<Event>();
  Address address;
  loop->run([&] {
    listener = std::move(Listener::open(loop.get(),
                                        dt::net::resolve_now("127.0.0.1", 0, true).value().at(0),
                                        [&, accepted](std::unique_ptr<Connection> connection) {
                                          served = std::move(connection);
                                          served->open({});
                                          accepted->set();
                                        }))
                   .value();
    address = listener->bound();
  });
  const int fd = plain_connect(address);
  REQUIRE(accepted->wait({Deadline::after_ms(kStreamPatienceMs)}));
  loop.reset();
  char byte;
  CHECK(read(fd, &byte, 1) == 0);
  close(fd);
}
