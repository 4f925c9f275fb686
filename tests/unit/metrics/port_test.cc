// SPDX-License-Identifier: Apache-2.0
#include "metrics/port.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "metrics/request.h"

using dt::metrics::Port;
using dt::net::Loop;

namespace {

constexpr int kPatienceMs = 30'000;
constexpr char kRequest[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

struct Served {
  explicit Served(Port::Options options = patient()) {
    options.text = [] { return std::string("dt_up 1\n"); };
    loop = std::move(Loop::start()).value();
    port = std::move(Port::open(loop.get(), std::move(options))).value();
  }
  static Port::Options patient() {
    Port::Options options;
    options.connection_ms = 60'000;
    return options;
  }
  uint16_t number() const {
    return static_cast<uint16_t>(atoi(port->address().c_str() + port->address().rfind(':') + 1));
  }
  std::unique_ptr<Loop> loop;
  std::unique_ptr<Port> port;
};

/// A plain socket, as a foreign program would use.
class Visitor {
 public:
  explicit Visitor(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }
  ~Visitor() { close(fd_); }
  Visitor(const Visitor&) = delete;
  Visitor& operator=(const Visitor&) = delete;

  /// False: the other side has gone.
  bool say(const std::string& text) const {
    return send(fd_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  /// All until the end of file or a reset.
  std::string hear() const {
    std::string text;
    char buffer[4096];
    for (;;) {
      pollfd readable{fd_, POLLIN, 0};
      REQUIRE(poll(&readable, 1, kPatienceMs) == 1);
      const ssize_t bytes = recv(fd_, buffer, sizeof buffer, 0);
      if (bytes <= 0) return text;
      text.append(buffer, static_cast<size_t>(bytes));
    }
  }

 private:
  const int fd_;
};

std::string answer_to(const Served& served, const std::string& request) {
  const Visitor visitor(served.number());
  REQUIRE(visitor.say(request));
  return visitor.hear();
}

}  // namespace

TEST_CASE("port: answers on the loopback interface, and ends the connection") {
  const Served served;
  CHECK(served.port->address().rfind("127.0.0.1:", 0) == 0);
  for (int i = 0; i < 3; ++i) {
    CHECK(answer_to(served, kRequest) == dt::metrics::response(200, "dt_up 1\n"));
  }
}

TEST_CASE("port: refuses other methods, paths and what is too large") {
  const Served served;
  CHECK(answer_to(served, "POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello") ==
        dt::metrics::response(405, ""));
  CHECK(answer_to(served, "GET /etc/passwd HTTP/1.1\r\n\r\n") == dt::metrics::response(404, ""));
  const std::string large(dt::metrics::RequestReader::kMaxBytes, 'x');
  CHECK(answer_to(served, "GET /metrics HTTP/1.1\r\n" + large) == dt::metrics::response(431, ""));
}

TEST_CASE("port: who says nothing, or too slowly, is dropped when the time is over") {
  Port::Options options;
  options.connection_ms = 50;
  const Served served(options);
  const Visitor silent(served.number());
  CHECK(silent.hear().empty());
  const Visitor slow(served.number());
  (void)slow.say("GET /met");  // or it is late already
  CHECK(slow.hear().empty());
}

TEST_CASE("port: beyond the limit the oldest goes, so that a scraper is served") {
  Port::Options options;
  options.connections = 4;
  options.connection_ms = 60'000;
  const Served served(options);
  std::vector<std::unique_ptr<Visitor>> idle;
  for (int i = 0; i < 4; ++i) idle.push_back(std::make_unique<Visitor>(served.number()));
  CHECK(answer_to(served, kRequest) == dt::metrics::response(200, "dt_up 1\n"));
  CHECK(idle[0]->hear().empty());
  REQUIRE(idle[3]->say(kRequest));
  CHECK(idle[3]->hear() == dt::metrics::response(200, "dt_up 1\n"));
}

TEST_CASE("port: ends while somebody is connected") {
  auto served = std::make_unique<Served>();
  const Visitor visitor(served->number());
  CHECK(answer_to(*served, kRequest) == dt::metrics::response(200, "dt_up 1\n"));
  served->port = nullptr;
  CHECK(visitor.hear().empty());
}

TEST_CASE("port: a port that is taken is named") {
  const Served served;
  Port::Options options;
  options.port = served.number();
  const auto second = Port::open(served.loop.get(), std::move(options));
  REQUIRE(!second.ok());
  CHECK(second.status().message() ==
        "cannot listen on " + served.port->address() +
            ": Address already in use; another process listens there: choose another port, or 0 "
            "for a free one");
}
