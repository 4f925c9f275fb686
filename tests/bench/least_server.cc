// SPDX-License-Identifier: Apache-2.0
#include "least_server.h"

#include <arpa/inet.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <vector>

#include "server.h"

namespace dt::load {
namespace {

constexpr int kBacklog = 4096;

void watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  require(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

}  // namespace

int serve_least(int ranks, int question_bytes, int answer_bytes) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  auto* bare = reinterpret_cast<sockaddr*>(&address);
  require(listener >= 0 && bind(listener, bare, length) == 0 && listen(listener, kBacklog) == 0 &&
              getsockname(listener, bare, &length) == 0,
          "listen");
  printf("127.0.0.1:%d\n", ntohs(address.sin_port));
  fflush(stdout);
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  require(epoll >= 0, "epoll_create1");
  watch(epoll, listener);
  const std::vector<char> answer(static_cast<size_t>(answer_bytes), 'a');
  std::vector<char> buffer(64 << 10);
  std::vector<int> heard;  // bytes, by descriptor
  std::vector<int> connections;
  std::vector<epoll_event> events(1024);
  for (int arrived = 0; arrived < ranks;) {
    const int count = epoll_wait(epoll, events.data(), static_cast<int>(events.size()), 30'000);
    if (count == 0) fail("the ranks do not come");
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd != listener) {
        const ssize_t bytes = recv(fd, buffer.data(), buffer.size(), 0);
        require(bytes > 0, "recv");
        int& sum = heard[static_cast<size_t>(fd)];
        sum += static_cast<int>(bytes);
        arrived += sum == question_bytes ? 1 : 0;
        continue;
      }
      for (int one;
           (one = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
        watch(epoll, one);
        connections.push_back(one);
        if (heard.size() <= static_cast<size_t>(one)) heard.resize(static_cast<size_t>(one) + 1);
      }
      require(errno == EAGAIN, "accept4");
    }
  }
  for (const int fd : connections) {
    require(send(fd, answer.data(), answer.size(), MSG_NOSIGNAL) == answer_bytes, "send");
  }
  pause();
  return 0;
}

}  // namespace dt::load
