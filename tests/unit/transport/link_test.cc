// SPDX-License-Identifier: Apache-2.0
// How messages between two ranks are cut out of what a connection carries.
#include "transport/tcp/link.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/wait.h"

using namespace dt;
using dt::tcp::Header;
using dt::tcp::Link;
using dt::tcp::Socket;

namespace {

const Wait kUntilHere{Deadline::after_ms(120'000)};  // for the whole program

std::pair<Socket, Socket> connected_pair() {
  int fds[2] = {-1, -1};
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  return {Socket(fds[0]), Socket(fds[1])};
}

void put(const Socket& socket, const void* data, size_t bytes) {
  REQUIRE(send(socket.fd(), data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes));
}

Header message_of(uint32_t what, size_t bytes) {
  Header header;
  header.what = what;
  header.bytes = static_cast<int64_t>(bytes);
  return header;
}

std::vector<char> pattern(size_t bytes, size_t seed) {
  std::vector<char> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i * 31 + i / 251 + seed);
  return data;
}

/// A link on a loop of its own, and what it tells.
struct Side {
  explicit Side(size_t connections = 1) {
    auto started = net::Loop::start("test");
    REQUIRE(started.ok());
    loop = std::move(started).value();
    link = std::make_shared<Link>(
        loop.get(),
        [this](const std::string& reason) {
          lost = reason;
          over.set();
        },
        [this](bool) {
          left = true;
          over.set();
        },
        connections);
  }
  ~Side() {
    loop->run([&] { link->close(); });
  }
  void open(Socket socket, size_t connection = 0) {
    loop->run([&] { link->open(std::move(socket), connection); });
  }
  /// All connections; the other ends of them.
  std::vector<Socket> open_all(size_t connections) {
    std::vector<Socket> others;
    for (size_t i = 0; i < connections; ++i) {
      auto sockets = connected_pair();
      open(std::move(sockets.first), i);
      others.push_back(std::move(sockets.second));
    }
    return others;
  }

  std::unique_ptr<net::Loop> loop;
  std::shared_ptr<Link> link;
  Event over;
  bool left = false;
  std::string lost;
};

}  // namespace

TEST_CASE("Socket: what was read ahead comes first, and a look sees beyond it") {
  auto [ours, theirs] = connected_pair();
  ours.read_ahead();
  const std::vector<char> sent = pattern(60, 3);
  put(theirs, sent.data(), 50);
  std::vector<char> got(60);
  REQUIRE(ours.read(got.data(), 40) == 40);
  CHECK(ours.has_pending());
  put(theirs, sent.data() + 50, 10);
  REQUIRE(ours.peek(got.data() + 40, 20) == 20);
  CHECK(got == sent);
  Socket moved = std::move(ours);
  REQUIRE(moved.read(got.data(), 20) == 10);
  CHECK(std::vector<char>(got.begin(), got.begin() + 10) ==
        std::vector<char>(sent.begin() + 40, sent.begin() + 50));
  CHECK(!moved.has_pending());
  REQUIRE(moved.read(got.data(), 10) == 10);
  CHECK(moved.read(got.data(), 10) < 0);
  theirs.close();
  CHECK(moved.peek(got.data(), 10) == 0);
  CHECK(moved.read(got.data(), 10) == 0);
}

TEST_CASE("Link: messages of all sizes that two sides trade arrive as they were sent") {
  constexpr size_t kAhead = Socket::kAheadBytes;
  constexpr size_t kHeader = sizeof(Header);
  constexpr size_t kLong = Link::kLongBytes;
  const std::vector<size_t> sizes = {0,          1,
                                     1,          kAhead - kHeader - 1,
                                     0,          kAhead - kHeader,
                                     1,          kAhead - kHeader + 1,
                                     kAhead - 1, kAhead,
                                     kAhead + 1, 3 * kAhead,
                                     500'000,    7,
                                     kLong - 1,  kLong,
                                     kLong + 1,  5 * kLong + 13};
  for (const size_t connections : {size_t{1}, size_t{2}, size_t{3}, size_t{8}}) {
    CAPTURE(connections);
    Side sides[2] = {Side(connections), Side(connections)};
    struct Trade {
      std::vector<char> out;
      std::vector<char> in;
      uint32_t what = 0;
    };
    std::vector<Trade> trades[2];
    Event done[2];
    size_t ends[2] = {0, 0};  // of the last message of each side: sent, received
    const auto end = [&](size_t side) {
      if (++ends[side] == 2) done[side].set();
    };
    for (size_t side = 0; side < 2; ++side) {
      for (const size_t bytes : sizes)
        trades[side].push_back({pattern(bytes, bytes + side), {}, 0});
      // All are queued at once, so that a look at the connection finds the ends and heads of
      // several.
      sides[side].loop->run([&, side] {
        for (size_t i = 0; i < sizes.size(); ++i) {
          Trade& trade = trades[side][i];
          sides[side].link->trade(
              message_of(static_cast<uint32_t>(i), sizes[i]), trade.out.data(),
              [&, side, i] {
                if (i + 1 == sizes.size()) end(side);
              },
              [&trade](const Header& found) -> void* {
                trade.what = found.what;
                trade.in.resize(static_cast<size_t>(found.bytes) + 1);
                return trade.in.data();
              },
              [&, side, i] {
                if (i + 1 == sizes.size()) end(side);
              });
        }
      });
    }
    std::vector<Socket> others = sides[0].open_all(connections);
    for (size_t i = connections; i-- > 0;) sides[1].open(std::move(others[i]), i);
    for (size_t side = 0; side < 2; ++side) REQUIRE(done[side].wait(kUntilHere));
    for (size_t side = 0; side < 2; ++side) {
      for (size_t i = 0; i < sizes.size(); ++i) {
        CHECK(trades[side][i].what == i);
        trades[side][i].in.pop_back();
        CHECK(trades[side][i].in == trades[1 - side][i].out);
      }
    }
  }
}

TEST_CASE("Link: one of several connections that breaks is named, and ends all of them") {
  Side side(3);
  std::vector<Socket> others = side.open_all(3);
  std::vector<char> into(Link::kLongBytes);
  side.loop->run(
      [&] { side.link->receive([&](const Header&) -> void* { return into.data(); }, [] {}); });
  const Header header = message_of(5, into.size());
  put(others[0], &header, sizeof header);
  others[1].close();
  REQUIRE(side.over.wait(kUntilHere));
  CHECK(side.lost == "connection 2 of 3: the other side closed it");
  char byte = 0;
  CHECK(others[0].read(&byte, 1) == 0);
  CHECK(others[2].read(&byte, 1) == 0);
}

TEST_CASE("Link: who leaves gives all connections, but none where any has half of a share") {
  for (const bool half : {false, true}) {
    CAPTURE(half);
    Side side(2);
    const std::vector<Socket> others = side.open_all(2);
    const std::vector<char> data(16 << 20);  // more than sockets hold
    size_t given = 0;
    side.loop->run([&] {
      if (half) side.link->send(message_of(5, data.size()), data.data(), [] {});
      given = side.link->leave().size();
    });
    CHECK(given == (half ? 0 : 2));
  }
}

TEST_CASE("Link: a message that is half sent or half received is a sign of the peer") {
  Side side;
  auto sockets = connected_pair();
  const int small = 64 << 10;
  REQUIRE(setsockopt(sockets.first.fd(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small) == 0);
  const Header incoming = message_of(5, 100);
  std::vector<char> got(100);
  Event half;
  side.open(std::move(sockets.first));
  side.loop->run([&] {
    side.link->receive(
        [&](const Header&) -> void* {
          half.set();
          return got.data();
        },
        [] {});
  });
  put(sockets.second, &incoming, sizeof incoming);
  REQUIRE(half.wait(kUntilHere));
  uint64_t heard = 0;
  const std::vector<char> data(16 << 20);  // more than sockets hold
  side.loop->run([&] {
    heard = side.link->signs();
    side.link->send(message_of(5, data.size()), data.data(), [] {});
    (void)side.link->poll();
  });
  CHECK(heard > 0);
  const auto signs = [&] {
    uint64_t now = 0;
    side.loop->run([&] { now = side.link->signs(); });
    return now;
  };
  // What the kernel took says nothing of the peer.
  CHECK(signs() == heard);
  std::vector<char> taken(8 << 20);
  size_t bytes = 0;
  const Deadline deadline = Deadline::after_ms(60'000);
  while (bytes < taken.size() && !deadline.passed()) {
    const ssize_t now = recv(sockets.second.fd(), taken.data(), taken.size() - bytes, 0);
    if (now > 0) bytes += static_cast<size_t>(now);
  }
  CHECK(bytes == taken.size());
  CHECK(signs() > heard);
  bool sending = false;
  side.loop->run([&] { sending = side.link->sending(); });
  CHECK(sending);
}

TEST_CASE("Link: what the peer takes of messages that the kernel holds whole is a sign of it") {
  Side side;
  auto sockets = connected_pair();
  side.open(std::move(sockets.first));
  const std::vector<char> data(100);
  uint64_t heard = 0;
  const auto signs = [&] {
    uint64_t now = 0;
    side.loop->run([&] { now = side.link->signs(); });
    return now;
  };
  side.loop->run([&] {
    for (int i = 0; i < 4; ++i) {
      side.link->send(message_of(5, data.size()), data.data(), [] {});
    }
    heard = side.link->signs();
    CHECK_FALSE(side.link->sending());
  });
  CHECK(signs() == heard);
  constexpr size_t kTwo = 2 * (sizeof(Header) + 100);
  char taken[kTwo];
  REQUIRE(recv(sockets.second.fd(), taken, kTwo, 0) == static_cast<ssize_t>(kTwo));
  CHECK(signs() == heard + 1);
  CHECK(signs() == heard + 1);
  // The host of a stopped process, too, takes what is short.
  REQUIRE(recv(sockets.second.fd(), taken, kTwo, 0) == static_cast<ssize_t>(kTwo));
  CHECK(signs() == heard + 1);
}

TEST_CASE("Link: who waits only for what came ahead of time does not wait for more to come") {
  Side side;
  auto sockets = connected_pair();
  const Header first = message_of(5, 3);
  const Header second = message_of(6, 2);
  std::string bytes(reinterpret_cast<const char*>(&first), sizeof first);
  bytes += "abc" + std::string(reinterpret_cast<const char*>(&second), sizeof second) + "de";
  put(sockets.second, bytes.data(), bytes.size());
  side.open(std::move(sockets.first));
  for (const char* const expected : {"abc", "de"}) {
    Event done;
    std::string got(strlen(expected), '?');
    side.loop->run([&] {
      side.link->receive([&](const Header&) -> void* { return got.data(); }, [&] { done.set(); });
    });
    REQUIRE(done.wait(kUntilHere));
    CHECK(got == expected);
  }
  CHECK(side.lost.empty());
}

TEST_CASE(
    "Link: a parting word behind the last message is found by whoever sends or receives next") {
  for (const bool sends : {true, false}) {
    Side side;
    auto sockets = connected_pair();
    const Header headers[2] = {message_of(5, 0), message_of(Header::kLeft, 0)};
    put(sockets.second, headers, sizeof headers);
    side.open(std::move(sockets.first));
    Event done;
    side.loop->run([&] {
      side.link->receive([](const Header&) -> void* { return nullptr; }, [&] { done.set(); });
    });
    REQUIRE(done.wait(kUntilHere));
    CHECK(!side.over.is_set());
    side.loop->run([&] {
      if (sends) {
        side.link->send(message_of(1, 0), nullptr, [] {});
      } else {
        side.link->trade(
            message_of(1, 0), nullptr, [] {}, [](const Header&) -> void* { return nullptr; },
            [] {});
      }
    });
    REQUIRE(side.over.wait(kUntilHere));
    CHECK(side.left);
    CHECK(side.lost.empty());
  }
}
