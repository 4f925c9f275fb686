// SPDX-License-Identifier: Apache-2.0
// store_load DT REDIS_SERVER [OPTIONS]: how many requests a second dt's store answers, and
// redis-server in the same run. One thread plays all clients of both, with epoll; each server is a
// process of its own, new for each round; the rounds take turns.
//
//   --clients N     connections (64)
//   --requests N    of a round (200000)
//   --bytes N       of a value; a key has 16 (64)
//   --rounds R      of each kind (5)
//   --depth N       requests that a client has under way in the second half of the table (16)
//   --redis 0       dt only
//
// A request is sent when the answer before it has come; with a depth, so many are sent in one
// piece, and the next so many when all of them were answered.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/wait.h"
#include "server.h"
#include "store/protocol.h"

namespace {

using namespace dt;
using namespace dt::load;
using namespace dt::store;

constexpr int kStartTries = 1000;  // of a server that is to listen, 10 ms apart
constexpr int kTryMs = 10;

int dial(const sockaddr_in& address) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  require(fd >= 0, "socket");
  for (int i = 0; i < kStartTries; ++i) {
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      return fd;
    }
    poll(nullptr, 0, kTryMs);
  }
  fail("the server does not listen");
}

/// What a server is told, and how many bytes it answers.
struct Dialect {
  std::string name;
  bool dt = true;
  std::string greeting;  ///< answered, too
  std::string set;
  size_t set_answer = 0;
  std::string get;
  size_t get_answer = 0;
};

struct Options {
  std::string dt;
  std::string redis;
  int clients = 64;
  int requests = 200'000;
  int bytes = 64;
  int rounds = 5;
  int depth = 16;
  int with_redis = 1;
};

const std::string kKey = "dt/load/key/0001";

Dialect dt_dialect(const std::string& value) {
  Dialect dialect{"dt", true, "", "", kHeaderBytes, "", 0};
  Request request;
  request.type = FrameType::kHello;
  request.hello.protocol = kProtocolVersion;
  request.hello.attempt = -1;
  request.hello.member = {-1, "load", getpid()};
  dialect.greeting = encode_frame(request.type, 1, encode_request(request));
  request.type = FrameType::kSet;
  request.keys = {kKey};
  request.values = {value};
  dialect.set = encode_frame(request.type, 2, encode_request(request));
  request.type = FrameType::kGet;
  dialect.get = encode_frame(request.type, 3, encode_request(request));
  dialect.get_answer = kHeaderBytes + value.size();
  return dialect;
}

Dialect redis_dialect(const std::string& value) {
  const auto bulk = [](const std::string& text) {
    return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
  };
  Dialect dialect{"redis-server", false, "*1\r\n" + bulk("PING"), "", 5, "", 0};
  dialect.set = "*3\r\n" + bulk("SET") + bulk(kKey) + bulk(value);
  dialect.get = "*2\r\n" + bulk("GET") + bulk(kKey);
  dialect.get_answer = bulk(value).size();
  return dialect;
}

uint16_t port_of(const Dialect& dialect) { return dialect.dt ? 0 : free_port(); }

std::vector<std::string> command_of(const Options& options, const Dialect& dialect, uint16_t port) {
  if (dialect.dt) return {options.dt, "store", "serve"};
  return {options.redis, "--port", std::to_string(port), "--save", "", "--appendonly",
          "no",          "--bind", "127.0.0.1"};
}

void send_all(int fd, const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    require(count > 0, "send");
    sent += static_cast<size_t>(count);
  }
}

struct Rate {
  double per_s = 0;
  double cpu_us = 0;  ///< of the server, for each request
};

/// `clients` sockets, each with `depth` requests of `each` under way until `total` are answered.
Rate drive(const ServerProcess& server, const std::vector<int>& clients, const std::string& each,
           size_t answer_bytes, int total, int depth) {
  std::string piece;
  for (int i = 0; i < depth; ++i) piece += each;
  const size_t expected = answer_bytes * static_cast<size_t>(depth);
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  std::vector<size_t> missing(clients.size(), expected);
  for (size_t i = 0; i < clients.size(); ++i) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    require(epoll_ctl(epoll, EPOLL_CTL_ADD, clients[i], &event) == 0, "epoll_ctl");
  }
  const double cpu_before = server.cpu_s();
  const int64_t start = monotonic_ns();
  int asked = 0;
  int answered = 0;
  for (const int fd : clients) {
    send_all(fd, piece);
    asked += depth;
  }
  static char buffer[256 << 10];
  std::vector<epoll_event> events(clients.size());
  while (answered < asked) {
    const int count = epoll_wait(epoll, events.data(), static_cast<int>(events.size()), 30'000);
    if (count <= 0) fail("the server does not answer");
    for (int i = 0; i < count; ++i) {
      const size_t client = events[static_cast<size_t>(i)].data.u64;
      const ssize_t bytes = recv(clients[client], buffer, sizeof buffer, 0);
      if (bytes <= 0 || static_cast<size_t>(bytes) > missing[client]) fail("other answers came");
      missing[client] -= static_cast<size_t>(bytes);
      if (missing[client] > 0) continue;
      answered += depth;
      missing[client] = expected;
      if (asked >= total) continue;
      send_all(clients[client], piece);
      asked += depth;
    }
  }
  const double seconds = static_cast<double>(monotonic_ns() - start) / 1e9;
  close(epoll);
  return {answered / seconds, (server.cpu_s() - cpu_before) / answered * 1e6};
}

struct Row {
  std::string name;
  std::vector<double> per_s;
  std::vector<double> cpu_us;
};

/// The four rows of a dialect: set and get, one at a time and `depth` at a time.
void run_round(const Options& options, const Dialect& dialect, std::vector<Row>* rows) {
  setenv("DT_SECURITY_MODE", "none", 1);
  const uint16_t port = port_of(dialect);
  const ServerProcess server(command_of(options, dialect, port), port);
  std::vector<int> clients;
  char answer[4096];
  for (int i = 0; i < options.clients; ++i) {
    clients.push_back(dial(server.address()));
    send_all(clients.back(), dialect.greeting);
    require(recv(clients.back(), answer, sizeof answer, 0) > 0, "greeting");
  }
  size_t row = 0;
  for (const int depth : {1, options.depth}) {
    for (const bool sets : {true, false}) {
      const Rate rate =
          drive(server, clients, sets ? dialect.set : dialect.get,
                sets ? dialect.set_answer : dialect.get_answer, options.requests, depth);
      if (rows->size() == row) {
        rows->push_back({dialect.name + (sets ? ", set" : ", get") +
                             (depth == 1 ? "" : format(", %d at a time", depth)),
                         {},
                         {}});
      }
      (*rows)[row].per_s.push_back(rate.per_s);
      (*rows)[row++].cpu_us.push_back(rate.cpu_us);
    }
  }
  for (const int fd : clients) close(fd);
}

Options parse(int argc, char** argv) {
  if (argc < 3) fail("store_load DT REDIS_SERVER [OPTIONS], see its source");
  Options options;
  options.dt = argv[1];
  options.redis = argv[2];
  parse_numbers(argc, argv, 3,
                {{"--clients", &options.clients},
                 {"--requests", &options.requests},
                 {"--bytes", &options.bytes},
                 {"--rounds", &options.rounds},
                 {"--depth", &options.depth},
                 {"--redis", &options.with_redis}});
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const std::string value(static_cast<size_t>(options.bytes), 'v');
  std::vector<Dialect> dialects = {dt_dialect(value)};
  if (options.with_redis != 0) dialects.push_back(redis_dialect(value));
  std::vector<std::vector<Row>> rows(dialects.size());
  for (int round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < dialects.size(); ++i) run_round(options, dialects[i], &rows[i]);
  }
  utsname system{};
  uname(&system);
  printf("Linux %s, g++ %s; %d clients, values of %d bytes, %d rounds of %d requests\n",
         system.release, __VERSION__, options.clients, options.bytes, options.rounds,
         options.requests);
  printf("%-34s %12s %12s %12s %10s\n", "", "median 1/s", "min 1/s", "max 1/s", "cpu us");
  for (size_t row = 0; row < rows[0].size(); ++row) {
    for (const std::vector<Row>& of : rows) {
      const Row& each = of[row];
      printf("%-34s %12.0f %12.0f %12.0f %10.2f\n", each.name.c_str(), median(each.per_s),
             *std::min_element(each.per_s.begin(), each.per_s.end()),
             *std::max_element(each.per_s.begin(), each.per_s.end()), median(each.cpu_us));
    }
  }
  printf("cpu us: of the server, for each request\n");
  return 0;
}
