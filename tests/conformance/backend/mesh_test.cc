// SPDX-License-Identifier: Apache-2.0
// Who calls at the port of a rank of another host, and what he is told.
#include "transport/tcp/mesh.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "play.h"

using namespace conformance;

TEST_CASE("Mesh: a call for another job or another rank is refused, garbage is dropped") {
  const auto loopback = dt::net::resolve_now("127.0.0.1", 0, true);
  REQUIRE(loopback.ok());
  std::vector<dt::tcp::Peer> peers;
  std::vector<dt::tcp::Socket> sockets;
  for (int32_t rank = 0; rank < 2; ++rank) {
    auto socket = dt::tcp::listen_on(loopback.value()[0], {});
    REQUIRE(socket.ok());
    peers.push_back({rank, dt::format("host%d", rank), getpid(), socket.value().local()});
    sockets.push_back(std::move(socket).value());
  }
  const auto start = [&](int32_t rank, uint64_t session, dt::tcp::Socket socket) {
    dt::tcp::Mesh::Options options;
    options.session = session;
    options.rank = rank;
    options.world_size = 6;
    options.host = dt::format("host%d", rank);
    options.look_up = [&](const std::vector<int32_t>& ranks, const Wait&) {
      std::vector<dt::tcp::Peer> found;
      for (const int32_t each : ranks) {
        found.push_back(peers[1]);
        found.back().rank = each;
      }
      return dt::Result<std::vector<dt::tcp::Peer>>(std::move(found));
    };
    auto mesh = dt::tcp::Mesh::start(std::move(socket), std::move(options));
    REQUIRE(mesh.ok());
    return mesh.value();
  };
  const Wait wait{Deadline::after_ms(30'000)};
  const auto answering = start(1, 77, std::move(sockets[1]));
  {
    const auto same = start(0, 77, std::move(sockets[0]));
    CHECK(same->probe(1, wait).message() == "");
    const Status other = same->probe(5, wait);  // the list says that rank 5 listens there too
    CHECK(contains(other.message(), "it refuses: this is rank 1 (host1) at 127.0.0.1:"));
    CHECK(contains(other.message(), ", not rank 5"));
    CHECK(other.info().rank == 5);
  }
  auto socket = dt::tcp::listen_on(loopback.value()[0], {});
  REQUIRE(socket.ok());
  const auto stranger = start(0, 78, std::move(socket).value());
  const Status refused = stranger->probe(1, wait);
  CHECK(contains(refused.message(), "rank 0 (host0) at 127.0.0.1:"));
  CHECK(contains(refused.message(), "cannot reach rank 1 (host1 pid "));
  CHECK(contains(refused.message(), "belongs to another job or attempt"));
  // Bytes that are no greeting: the connection ends, nothing else happens.
  auto garbage = dt::tcp::begin_connect(peers[1].address, {});
  REQUIRE(garbage.ok());
  const std::string bytes(4096, 'x');
  const int blocking = garbage.value().fd();
  for (const Deadline limit = Deadline::after_ms(30'000); !limit.passed();) {
    if (send(blocking, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0 && errno != EAGAIN) break;
    std::this_thread::yield();
  }
  CHECK(stranger->probe(1, wait).message() == refused.message());
  // A port at which nobody listens any more.
  auto last = dt::tcp::listen_on(loopback.value()[0], {});
  auto gone = dt::tcp::listen_on(loopback.value()[0], {});
  REQUIRE(last.ok());
  REQUIRE(gone.ok());
  peers[1].address = gone.value().local();
  gone.value().close();
  const auto late = start(0, 77, std::move(last).value());
  CHECK(contains(late->probe(1, wait).message(),
                 "Connection refused: the host answers, but not at this port: a firewall rejects "
                 "it; open TCP between the hosts"));
}

TEST_CASE("Mesh: nobody at the port, and a port range that is used up, are said") {
  const auto loopback = dt::net::resolve_now("127.0.0.1", 0, true);
  REQUIRE(loopback.ok());
  auto first = dt::tcp::listen_on(loopback.value()[0], {});
  REQUIRE(first.ok());
  const uint16_t port = first.value().local().port();
  const auto taken = dt::tcp::listen_on(loopback.value()[0], {port, port});
  CHECK(taken.status().code() == Code::kConfig);
  CHECK(contains(taken.status().message(), dt::format("every port from %u to %u of 127.0.0.1 is in "
                                                      "use; widen network.port_range",
                                                      port, port)));
  CHECK(dt::tcp::parse_port_range("4700-4799").value().last == 4799);
  CHECK(dt::tcp::parse_port_range("4700").value().last == 4700);
  for (const char* bad : {"4800-4700", "x", "70000", "1-", "-5", "1-2-3"}) {
    CHECK(contains(dt::tcp::parse_port_range(bad).status().message(),
                   dt::format("network.port_range is \"%s\"", bad)));
  }
}
