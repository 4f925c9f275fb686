// SPDX-License-Identifier: Apache-2.0
#include "base/local_socket.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <barrier>
#include <thread>

using dt::LocalSocket;
using dt::wait_readable;

namespace {

struct Pair {
  Pair() {
    int fds[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    ours = LocalSocket(fds[0]);
    theirs = LocalSocket(fds[1]);
  }
  LocalSocket ours;
  LocalSocket theirs;
};

}  // namespace

TEST_CASE("local socket: there is nothing to receive, a message, then the end") {
  Pair pair;
  CHECK(!wait_readable(pair.ours.fd(), 0));
  CHECK(send(pair.theirs.fd(), "m", 1, MSG_NOSIGNAL) == 1);
  pair.theirs = LocalSocket();
  char byte = 0;
  CHECK(wait_readable(pair.ours.fd(), 0));
  CHECK(recv(pair.ours.fd(), &byte, 1, MSG_DONTWAIT) == 1);
  CHECK(wait_readable(pair.ours.fd(), 0));
  CHECK(recv(pair.ours.fd(), &byte, 1, MSG_DONTWAIT) == 0);
}

TEST_CASE("local socket: a message from an end that closes at once is never missed") {
  // Without wait_readable() the kernel reports the end before the message in a few of 100,000
  // rounds.
  constexpr int kRounds = 2'000;
  LocalSocket sending;
  std::barrier both(2);
  std::thread sender([&] {
    for (int round = 0; round < kRounds; ++round) {
      both.arrive_and_wait();
      (void)send(sending.fd(), "m", 1, MSG_NOSIGNAL);
      sending = LocalSocket();
      both.arrive_and_wait();
    }
  });
  int missed = 0;
  for (int round = 0; round < kRounds; ++round) {
    Pair pair;
    sending = std::move(pair.theirs);
    both.arrive_and_wait();
    while (!wait_readable(pair.ours.fd(), 10)) {
    }
    char byte = 0;
    if (recv(pair.ours.fd(), &byte, 1, MSG_DONTWAIT) != 1) ++missed;
    both.arrive_and_wait();
  }
  sender.join();
  CHECK(missed == 0);
}
