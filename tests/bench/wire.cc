// SPDX-License-Identifier: Apache-2.0
// A long way between two network namespaces, for kernels without netem: wire A B BITS DELAY_US LOSS
// QUEUE_US. Both get an interface eth0 (TUN); a packet leaves when the rate lets it, arrives
// DELAY_US later, and is dropped with probability LOSS, or where it would wait for more than
// QUEUE_US to leave. Prints a line when the interfaces are there, and ends with its standard input.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t kPacketMax = 65536;
constexpr int kReadsAtOnce = 64;

[[noreturn]] void fail(const char* what) {
  perror(what);
  exit(1);
}

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

/// The other end of an interface eth0 in the namespace.
int open_end(const std::string& name) {
  const int space = open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (space < 0 || setns(space, CLONE_NEWNET) != 0) fail(name.c_str());
  close(space);
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) fail("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  strcpy(request.ifr_name, "eth0");
  if (ioctl(fd, TUNSETIFF, &request) != 0) fail("TUNSETIFF");
  return fd;
}

struct Way {
  double bits_per_s = 0;
  int64_t delay_ns = 0;
  double loss = 0;
  int64_t queue_ns = 0;

  /// One direction, until the process ends.
  void carry(int from, int to, uint32_t seed) const {
    struct Packet {
      int64_t due_ns;
      std::vector<char> bytes;
    };
    std::deque<Packet> under_way;
    std::minstd_rand random(seed);
    std::uniform_real_distribution<double> chance(0, 1);
    std::vector<char> buffer(kPacketMax);
    int64_t free_ns = 0;  // when the sender may begin the next packet
    for (;;) {
      for (int i = 0; i < kReadsAtOnce; ++i) {
        const ssize_t got = read(from, buffer.data(), buffer.size());
        if (got <= 0) break;
        const int64_t now = now_ns();
        const int64_t begin = std::max(now, free_ns);
        if (begin - now > queue_ns) continue;
        free_ns = begin + static_cast<int64_t>(static_cast<double>(got) * 8e9 / bits_per_s);
        if (chance(random) < loss) continue;
        under_way.push_back({free_ns + delay_ns, {buffer.data(), buffer.data() + got}});
      }
      while (!under_way.empty() && under_way.front().due_ns <= now_ns()) {
        const auto& bytes = under_way.front().bytes;
        (void)!write(to, bytes.data(), bytes.size());
        under_way.pop_front();
      }
      const int64_t wait_ns = under_way.empty()
                                  ? 1'000'000'000
                                  : std::max<int64_t>(0, under_way.front().due_ns - now_ns());
      const timespec wait{wait_ns / 1'000'000'000, wait_ns % 1'000'000'000};
      pollfd ready{from, POLLIN, 0};
      (void)ppoll(&ready, 1, &wait, nullptr);
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    fprintf(stderr, "usage: wire NAMESPACE NAMESPACE BITS_PER_S DELAY_US LOSS QUEUE_US\n");
    return 2;
  }
  const int ends[2] = {open_end(argv[1]), open_end(argv[2])};
  const Way way{atof(argv[3]), atoll(argv[4]) * 1000, atof(argv[5]), atoll(argv[6]) * 1000};
  std::thread([&] { way.carry(ends[0], ends[1], 1); }).detach();
  std::thread([&] { way.carry(ends[1], ends[0], 2); }).detach();
  puts("ready");
  fflush(stdout);
  char ignored = 0;
  while (read(0, &ignored, 1) > 0) {
  }
  _exit(0);
}
