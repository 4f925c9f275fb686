// SPDX-License-Identifier: Apache-2.0
// What spinning costs next to other busy processes.
//   crowded [ranks] [busy loops] [rounds] [trees|step|both]
// Each rank is a process with four ways to exchange data: dt with its defaults, without spinning,
// with a fixed spin of 50 us, and plain TCP sockets over the loopback device. Rounds of the ways
// are interleaved. Two patterns, both with computation of a fixed amount (not of a fixed time):
//   trees  gradient boosting: each operation follows 20 to 400 us of work, of a different length on
//          each rank; an allreduce of 112 KiB and one of 128 B in turn
//   step   data-parallel training: 2 ms of work in 4 parts, after each an allreduce of 1 MiB
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/host/host.h"

namespace {

using dt::Deadline;
using dt::backend::Collective;
using dt::backend::HostEngine;
using dt::backend::Kind;

constexpr int kRanksMax = 16;
constexpr int64_t kStepCount = 1 << 18;      // f32: 1 MiB
constexpr int64_t kHistogramCount = 28'672;  // 28 features x 256 bins x 2 doubles: 112 KiB
constexpr int kTreeOperations = 2000;
constexpr int kSteps = 50;

[[noreturn]] void fail(const char* what, const std::string& why) {
  fprintf(stderr, "crowded: %s: %s\n", what, why.c_str());
  exit(1);
}

/// Work of about a microsecond on an idle processor of today.
void compute(int64_t microseconds) {
  volatile double value = 1;
  for (int64_t i = 0; i < 250 * microseconds; ++i) value = value * 1.0000001;
}

class Way {
 public:
  virtual ~Way() = default;
  /// In place; returns when the sum is there.
  virtual void sum(float* data, int64_t count) = 0;
};

class DtWay : public Way {
 public:
  DtWay(int rank, int size, dt::shm::ArenaListener listener, const std::string& leader,
        int64_t spin_us, bool adapts) {
    HostEngine::Options options;
    options.leader_name = leader;
    options.local_rank = rank;
    options.local_size = size;
    for (int i = 0; i < size; ++i) options.world_ranks.push_back(i);
    options.spin_us = spin_us;
    options.spin_adapts = adapts;
    const dt::Wait wait{Deadline::after_ms(30'000)};
    auto engine = HostEngine::create(std::move(listener), options, wait);
    if (!engine.ok()) fail("engine", engine.status().message());
    auto world = dt::backend::create_host_world(engine.value(), {}, wait);
    if (!world.ok()) fail("communicator", world.status().message());
    backend_ = world.value();
  }
  void sum(float* data, int64_t count) override {
    Collective reduce;
    reduce.kind = Kind::kAllreduce;
    reduce.dtype = dt::Dtype::kF32;
    reduce.send = data;
    reduce.recv = data;
    reduce.count = count;
    reduce.deadline = Deadline::after_ms(60'000);
    if (const dt::Status status = backend_->run(reduce); !status.ok())
      fail("allreduce", status.message());
  }

 private:
  std::shared_ptr<dt::backend::Backend> backend_;
};

/// Each rank sums one part, which it gets from all others, and sends them the result. Blocks in
/// poll(2) where a socket would block.
class SocketWay : public Way {
 public:
  SocketWay(int rank, std::vector<int> sockets) : rank_(rank), sockets_(std::move(sockets)) {}

  void sum(float* data, int64_t count) override {
    const int size = static_cast<int>(sockets_.size());
    const auto begin = [&](int part) { return count * part / size; };
    const auto bytes = [&](int part) {
      return static_cast<size_t>(begin(part + 1) - begin(part)) * sizeof(float);
    };
    const size_t own = bytes(rank_);
    incoming_.resize(own / sizeof(float) * static_cast<size_t>(size));
    std::vector<Piece> out(sockets_.size());
    std::vector<Piece> in(sockets_.size());
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank_) continue;
      out[peer] = {reinterpret_cast<char*>(data + begin(peer)), bytes(peer)};
      in[peer] = {reinterpret_cast<char*>(incoming_.data()) + static_cast<size_t>(peer) * own, own};
    }
    exchange(out, in);
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank_) continue;
      const float* from = incoming_.data() + static_cast<size_t>(peer) * own / sizeof(float);
      float* to = data + begin(rank_);
      for (size_t i = 0; i < own / sizeof(float); ++i) to[i] += from[i];
    }
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank_) continue;
      out[peer] = {reinterpret_cast<char*>(data + begin(rank_)), own};
      in[peer] = {reinterpret_cast<char*>(data + begin(peer)), bytes(peer)};
    }
    exchange(out, in);
  }

 private:
  struct Piece {
    char* at = nullptr;
    size_t left = 0;
  };

  /// Moves what is possible now. False: the socket would block.
  static bool move(int socket, Piece& piece, bool sends) {
    while (piece.left > 0) {
      const ssize_t moved = sends ? send(socket, piece.at, piece.left, MSG_DONTWAIT | MSG_NOSIGNAL)
                                  : recv(socket, piece.at, piece.left, MSG_DONTWAIT);
      if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return false;
      if (moved <= 0) fail(sends ? "send" : "recv", moved == 0 ? "closed" : strerror(errno));
      piece.at += moved;
      piece.left -= static_cast<size_t>(moved);
    }
    return true;
  }
  void exchange(std::vector<Piece>& out, std::vector<Piece>& in) {
    for (;;) {
      std::vector<pollfd> waits;
      for (size_t peer = 0; peer < sockets_.size(); ++peer) {
        short events = 0;
        if (!move(sockets_[peer], out[peer], true)) events |= POLLOUT;
        if (!move(sockets_[peer], in[peer], false)) events |= POLLIN;
        if (events != 0) waits.push_back({sockets_[peer], events, 0});
      }
      if (waits.empty()) return;
      if (poll(waits.data(), waits.size(), 60'000) <= 0) fail("poll", "nothing for a minute");
    }
  }

  const int rank_;
  const std::vector<int> sockets_;  ///< of each peer
  std::vector<float> incoming_;
};

/// A connected pair of TCP sockets over the loopback device.
std::pair<int, int> connected() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener, 1) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    fail("listen", strerror(errno));
  const int one = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(one, reinterpret_cast<sockaddr*>(&address), length) != 0)
    fail("connect", strerror(errno));
  const int other = accept(listener, nullptr, nullptr);
  close(listener);
  const int on = 1;
  for (const int each : {one, other}) setsockopt(each, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return {one, other};
}

constexpr const char* kWays[] = {"dt", "dt, spin 0", "dt, spin 50 us fixed", "sockets"};

/// Microseconds per operation (trees) or per step.
double trees(Way& way, int rank, int round, std::vector<float>& data) {
  std::mt19937 random(static_cast<unsigned>(round * kRanksMax + rank));
  std::exponential_distribution<double> uneven(1.0 / 60);
  const int64_t begin = dt::monotonic_ns();
  for (int i = 0; i < kTreeOperations; ++i) {
    compute(std::min<int64_t>(20 + static_cast<int64_t>(uneven(random)), 400));
    way.sum(data.data(), i % 2 == 0 ? kHistogramCount : 32);
  }
  return static_cast<double>(dt::monotonic_ns() - begin) / 1e3 / kTreeOperations;
}

double steps(Way& way, std::vector<float>& data) {
  const int64_t begin = dt::monotonic_ns();
  for (int i = 0; i < kSteps; ++i) {
    for (int part = 0; part < 4; ++part) {
      compute(500);
      way.sum(data.data(), kStepCount);
    }
  }
  return static_cast<double>(dt::monotonic_ns() - begin) / 1e3 / kSteps;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void show(const char* pattern, int size, int loops, const std::vector<std::vector<double>>& times) {
  for (size_t way = 0; way < times.size(); ++way) {
    std::vector<double> ratios;  // of rounds next to each other
    for (size_t round = 0; round < times[way].size(); ++round)
      ratios.push_back(times[0][round] / times[way][round]);
    const auto [low, high] = std::minmax_element(times[way].begin(), times[way].end());
    printf("| %s | %d | %d | %s | %.0f [%.0f-%.0f] | %.2f |\n", pattern, size, loops, kWays[way],
           median(times[way]), *low, *high, median(ratios));
  }
  fflush(stdout);
}

void run_rank(int rank, int size, int loops, int rounds, const std::string& pattern,
              std::vector<std::unique_ptr<Way>> ways) {
  std::vector<float> data(kStepCount);
  for (const std::unique_ptr<Way>& way : ways) {
    std::fill(data.begin(), data.end(), static_cast<float>(rank + 1));
    way->sum(data.data(), kHistogramCount);
    const auto sum = static_cast<float>(size * (size + 1) / 2);
    if (data[0] != sum || data[kHistogramCount - 1] != sum) fail("allreduce", "wrong result");
  }
  for (const bool is_trees : {true, false}) {
    if (pattern != "both" && (pattern == "trees") != is_trees) continue;
    std::vector<std::vector<double>> times(ways.size());
    for (int round = -1; round < rounds; ++round) {
      for (size_t way = 0; way < ways.size(); ++way) {
        std::fill(data.begin(), data.end(), 0.0F);
        ways[way]->sum(data.data(), 1);
        const double us = is_trees ? trees(*ways[way], rank, round, data) : steps(*ways[way], data);
        if (round >= 0) times[way].push_back(us);
      }
    }
    if (rank == 0) show(is_trees ? "trees" : "step", size, loops, times);
  }
  ways.back()->sum(data.data(), 1);
}

pid_t forked(const std::vector<pid_t>& loops) {
  const pid_t child = fork();
  if (child < 0) {
    for (const pid_t each : loops) kill(each, SIGKILL);
    fail("fork", strerror(errno));
  }
  if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  return child;
}

}  // namespace

int main(int argc, char** argv) {
  const int size = argc > 1 ? atoi(argv[1]) : 2;
  const int loops = argc > 2 ? atoi(argv[2]) : 0;
  const int rounds = argc > 3 ? atoi(argv[3]) : 11;
  const std::string pattern = argc > 4 ? argv[4] : "both";
  if (size < 2 || size > kRanksMax || loops < 0 || rounds < 1) {
    fprintf(stderr, "crowded [2 to %d ranks] [busy loops] [rounds] [trees|step|both]\n", kRanksMax);
    return 2;
  }
  constexpr int kDtWays = 3;
  // Names of each way's first listener, for the other ranks.
  auto* leaders = static_cast<char(*)[64]>(
      mmap(nullptr, kDtWays * 64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::vector<dt::shm::ArenaListener> listeners;
  for (int way = 0; way < kDtWays; ++way) {
    listeners.push_back(dt::shm::ArenaListener::create().value());
    snprintf(leaders[way], sizeof leaders[way], "%s", listeners.back().name().c_str());
  }
  std::vector<std::vector<int>> sockets(static_cast<size_t>(size),
                                        std::vector<int>(static_cast<size_t>(size), -1));
  for (int a = 0; a < size; ++a) {
    for (int b = a + 1; b < size; ++b) std::tie(sockets[a][b], sockets[b][a]) = connected();
  }
  std::vector<pid_t> busy;
  for (int i = 0; i < loops; ++i) {
    busy.push_back(forked(busy));
    if (busy.back() == 0) {
      for (;;) compute(1000);
    }
  }
  const auto begin = [&](int rank, std::vector<dt::shm::ArenaListener> own) {
    std::vector<std::unique_ptr<Way>> ways;
    for (int way = 0; way < kDtWays; ++way) {
      ways.push_back(std::make_unique<DtWay>(rank, size, std::move(own[way]), leaders[way],
                                             /*spin_us=*/way == 1 ? 0 : 50, /*adapts=*/way == 0));
    }
    ways.push_back(std::make_unique<SocketWay>(rank, sockets[rank]));
    run_rank(rank, size, loops, rounds, pattern, std::move(ways));
  };
  std::vector<pid_t> ranks;
  for (int rank = 1; rank < size; ++rank) {
    const pid_t child = forked(busy);
    if (child == 0) {
      std::vector<dt::shm::ArenaListener> own;
      for (int way = 0; way < kDtWays; ++way)
        own.push_back(dt::shm::ArenaListener::create().value());
      begin(rank, std::move(own));
      _exit(0);
    }
    ranks.push_back(child);
  }
  printf("| pattern | ranks | busy loops | way | us [min-max] | dt / way |\n");
  printf("|---|---|---|---|---|---|\n");
  begin(0, std::move(listeners));
  int result = 0;
  for (const pid_t each : ranks) {
    int status = 0;
    waitpid(each, &status, 0);
    result |= status;
  }
  for (const pid_t each : busy) kill(each, SIGKILL);
  return result == 0 ? 0 : 1;
}
