// SPDX-License-Identifier: Apache-2.0
// A store that is guarded: who gets in, who does not and hears why, and what strangers cost.
#include "net/security.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "fixture.h"

using namespace dt;
using namespace dt::store;
using namespace dt::store::test;

namespace {

constexpr char kTokenA[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
constexpr char kTokenB[] = "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

net::Security guarded(net::SecurityMode mode, const char* digits = kTokenA) {
  net::Security security;
  security.mode = mode;
  if (mode != net::SecurityMode::kNone) {
    security.token = std::move(net::Token::from_text(digits)).value();
  }
  return security;
}

/// A connection that says nothing unless told.
int idle_connection(const Job& job) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(job.server->port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  close(fd);
  return -1;
}

/// Whether the server ends the connection within the patience of a test.
bool is_ended(int fd) {
  pollfd ended{fd, POLLIN, 0};
  char byte = 0;
  return poll(&ended, 1, static_cast<int>(kPatienceMs)) == 1 && recv(fd, &byte, 1, 0) <= 0;
}

}  // namespace

TEST_CASE("store: a guarded job joins, keeps large values, fails and ends as any other") {
  for (const net::SecurityMode mode : {net::SecurityMode::kAuth, net::SecurityMode::kEncrypt}) {
    Job job(4, [&](ServerOptions* options) { options->security = guarded(mode); });
    auto clients = job.join_all();
    std::string big(3'000'000, ' ');
    for (size_t i = 0; i < big.size(); ++i) big[i] = static_cast<char>(i * 31 % 251);
    REQUIRE(clients[0]->set("big", big, patiently()).ok());
    CHECK(clients[3]->get("big", patiently()).value() == big);
    CHECK(clients[1]->multi_get({"big", "none"}, patiently()).value()[0] == big);
    CHECK(clients[1]->answers(2, patiently()).value());
    Failures failures;
    failures.watch(clients[0].get());
    clients[2].reset();
    CHECK(failures.wait_first().info.rank == 2);
  }
}

TEST_CASE("store: who does not fit is refused at once, for good, and hears why") {
  const net::SecurityMode none = net::SecurityMode::kNone;
  const net::SecurityMode auth = net::SecurityMode::kAuth;
  const net::SecurityMode encrypt = net::SecurityMode::kEncrypt;
  const std::string same =
      "the same token (a file that DT_TOKEN_FILE names, or ~/.config/dt/token)";
  const auto modes_differ = [&](const char* mine, const char* other) {
    return format(
        "this side uses security.mode = %s, the other side security.mode = %s; give all processes "
        "of the job the same security.mode and %s",
        mine, other, same.c_str());
  };
  const auto tokens_differ = [&](const char* mode) {
    return format(
        "the other side has another token (both use security.mode = %s); give all processes of the "
        "job %s",
        mode, same.c_str());
  };
  const auto plain = [&](const char* mode) {
    return format(
        "the store refuses this connection: it uses security.mode = %s, and this side sent a plain "
        "hello: here is no token, or security.mode = \"none\"; give all processes of the job %s",
        mode, same.c_str());
  };
  const struct {
    net::Security server;
    net::Security client;
    std::string message;
    bool named;
  } rows[] = {
      {guarded(auth), guarded(auth, kTokenB), tokens_differ("auth"), true},
      {guarded(encrypt), guarded(encrypt, kTokenB), tokens_differ("encrypt"), true},
      {guarded(auth), guarded(none), plain("auth"), false},
      {guarded(encrypt), guarded(none), plain("encrypt"), false},
      {guarded(none), guarded(auth), modes_differ("auth", "none"), true},
      {guarded(none), guarded(encrypt), modes_differ("encrypt", "none"), true},
      {guarded(auth), guarded(encrypt), modes_differ("encrypt", "auth"), true},
      {guarded(encrypt), guarded(auth), modes_differ("auth", "encrypt"), true},
  };
  for (const auto& row : rows) {
    Job job(2, [&](ServerOptions* options) { options->security = row.server; });
    ClientOptions options = job.client_options(1);
    options.security = row.client;
    const Status status = Client::connect(job.loop.get(), options, {Deadline::never()}).status();
    CHECK(status.code() == Code::kConfig);
    CHECK(status.message() ==
          (row.named ? "the store at " + job.address() + ": " : std::string()) + row.message);
    CHECK(job.connect(0)->ping(patiently()).ok());  // the others are not concerned
  }
}

TEST_CASE("store: strangers are few, the oldest go, and those who belong come in beside them") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit fewer = before;
  fewer.rlim_cur = 1024;  // 256 strangers
  REQUIRE(setrlimit(RLIMIT_NOFILE, &fewer) == 0);
  {
    Job job(2, [](ServerOptions* options) {
      options->security = guarded(net::SecurityMode::kAuth);
      options->silence_ms = 600'000;  // only their number ends them
    });
    const auto rank0 = job.connect(0);
    std::vector<int> idle;
    for (int i = 0; i < 400; ++i) {
      idle.push_back(idle_connection(job));
      REQUIRE(idle.back() >= 0);
      if (i % 50 == 0) CHECK(rank0->ping(patiently()).ok());
    }
    const auto rank1 = job.connect(1);
    CHECK(rank1->ping(patiently()).ok());
    CHECK(rank0->ping(patiently()).ok());
    CHECK(is_ended(idle.front()));
    for (const int fd : idle) close(fd);
  }
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("store: a greeting that never ends is cut, however slowly it comes") {
  Job job(2, [](ServerOptions* options) {
    options->security = guarded(net::SecurityMode::kAuth);
    options->silence_ms = 300;
  });
  const int fd = idle_connection(job);
  REQUIRE(fd >= 0);
  const char part[] = "dtGu";
  pollfd ended{fd, POLLIN, 0};
  const Deadline deadline = Deadline::after_ms(kPatienceMs);
  size_t sent = 0;
  while (poll(&ended, 1, 50) == 0 && !deadline.passed()) {  // a byte now and then
    if (sent < sizeof part - 1) sent += send(fd, part + sent, 1, MSG_NOSIGNAL) == 1 ? 1 : 0;
  }
  CHECK(is_ended(fd));
  close(fd);
}

TEST_CASE("store: PyTorch's dialect passes beside the token only where it is wanted") {
  for (const bool wanted : {false, true}) {
    Job job(1, [&](ServerOptions* options) {
      options->security = guarded(net::SecurityMode::kAuth);
      options->torch_compat = wanted;
    });
    const int fd = idle_connection(job);
    REQUIRE(fd >= 0);
    // CHECK of one key that is not there, as PyTorch 1.13 asks: operation 4.
    const char check[] = {4, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 'k'};
    REQUIRE(send(fd, check, sizeof check, MSG_NOSIGNAL) == sizeof check);
    char answer = 0;
    pollfd ready{fd, POLLIN, 0};
    REQUIRE(poll(&ready, 1, static_cast<int>(kPatienceMs)) == 1);
    REQUIRE(recv(fd, &answer, 1, 0) == 1);
    CHECK((answer == 'd') == !wanted);  // a frame with the refusal, or PyTorch's word
    close(fd);
    CHECK(job.connect(0)->ping(patiently()).ok());
  }
}
