// SPDX-License-Identifier: Apache-2.0
#include "launch/host_exchange.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/local_socket.h"
#include "base/xxh64.h"
#include "net/security.h"

namespace dt::launch {
namespace {

constexpr uint64_t kMagic = 0x3168'6378'652d'7464;  // "dt-exch1"
constexpr int64_t kSliceMs = 10;     // interrupts have no descriptor: they are looked at this often
constexpr size_t kMostWaiting = 64;  // connections that have not said who they are
constexpr size_t kLongestAnswer = 4096;

struct Hello {
  uint64_t magic = kMagic;
  int64_t rank = 0;
};

/// An abstract socket: it goes with its process.
struct SocketName {
  sockaddr_un address{};
  socklen_t length = 0;
  std::string text;

  explicit SocketName(const std::string& job)
      : text(format("dt.launch.%u.%016llx", geteuid(),
                    static_cast<unsigned long long>(xxh64(job.data(), job.size())))) {
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path + 1, text.data(), text.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

LocalSocket open_socket() {
  return LocalSocket(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

Status socket_failed(const SocketName& name, const char* call, int error) {
  return Status(Code::kSystem,
                format("rendezvous: the ranks of this host meet at the socket \"@%s\": %s: %s",
                       name.text.c_str(), call, errno_text(error).c_str()));
}

bool again(int error) { return error == EAGAIN || error == EINTR; }

/// Rank 0's side.
class Teller {
 public:
  Teller(const SocketName& name, int32_t world_size, const std::string& text)
      : name_(name), text_(text), told_(static_cast<size_t>(world_size)) {
    told_[0] = true;
  }

  Status tell_all(const Wait& wait) {
    listener_ = open_socket();
    if (listener_.fd() < 0) return socket_failed(name_, "socket", errno);
    if (bind(listener_.fd(), name_.get(), name_.length) != 0) {
      return socket_failed(name_, "bind", errno);
    }
    if (listen(listener_.fd(), SOMAXCONN) != 0) return socket_failed(name_, "listen", errno);
    while (std::find(told_.begin(), told_.end(), false) != told_.end()) {
      if (wait.interrupted()) return wait.interrupt->status();
      if (wait.deadline.passed()) return missing();
      DT_TRY(step(std::min(kSliceMs, wait.deadline.remaining_ms())));
    }
    return {};
  }

 private:
  Status step(int64_t timeout_ms) {
    std::vector<pollfd> polled{{listener_.fd(), POLLIN, 0}};
    for (const LocalSocket& each : waiting_) polled.push_back({each.fd(), POLLIN, 0});
    if (poll(polled.data(), polled.size(), static_cast<int>(timeout_ms)) < 0) {
      return errno == EINTR ? Status() : socket_failed(name_, "poll", errno);
    }
    for (size_t i = waiting_.size(); i-- > 0;) {
      if (polled[1 + i].revents != 0 && hear(waiting_[i])) {
        waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
      }
    }
    return polled[0].revents != 0 ? accept_some() : Status();
  }

  Status accept_some() {
    for (size_t i = 0; i < kMostWaiting; ++i) {
      LocalSocket peer(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (peer.fd() < 0) {
        // The connection stays in the backlog, so that waiting on would spin until the deadline.
        const bool exhausted =
            errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        return exhausted ? socket_failed(name_, "accept", errno) : Status();
      }
      std::string who;
      if (!same_user(peer.fd(), &who)) continue;
      if (waiting_.size() >= kMostWaiting) waiting_.erase(waiting_.begin());
      waiting_.push_back(std::move(peer));
    }
    return {};
  }

  /// True: the connection is of no more use.
  bool hear(const LocalSocket& peer) {
    Hello hello;
    const ssize_t length = recv(peer.fd(), &hello, sizeof hello, MSG_DONTWAIT);
    if (length < 0 && again(errno)) return false;
    if (length != sizeof hello || hello.magic != kMagic) return true;
    if (hello.rank < 1 || hello.rank >= static_cast<int64_t>(told_.size())) return true;
    // A fresh connection has room for it.
    if (send(peer.fd(), text_.data(), text_.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
        static_cast<ssize_t>(text_.size())) {
      told_[static_cast<size_t>(hello.rank)] = true;
    }
    return true;
  }

  Status missing() const {
    constexpr size_t kMostNamed = 16;
    std::string absent;
    size_t count = 0;
    for (size_t rank = 1; rank < told_.size(); ++rank) {
      if (told_[rank] || ++count > kMostNamed) continue;
      absent += (absent.empty() ? "" : ", ") + std::to_string(rank);
    }
    if (count > kMostNamed) absent += format(" and %zu more", count - kMostNamed);
    return Status(Code::kTimeout,
                  "rendezvous: these ranks of this host did not come in time: " + absent +
                      "; look at what they printed, or raise rendezvous.timeout_ms");
  }

  const SocketName& name_;
  const std::string& text_;
  LocalSocket listener_;
  std::vector<bool> told_;  ///< by rank
  std::vector<LocalSocket> waiting_;
};

/// What rank 0 sent; empty: it closed the connection, or the deadline or the interrupt is there.
std::string answer_of(const LocalSocket& leader, const Wait& wait) {
  char buffer[kLongestAnswer];
  while (!wait.interrupted() && !wait.deadline.passed()) {
    if (!wait_readable(leader.fd(), std::min(kSliceMs, wait.deadline.remaining_ms()))) continue;
    const ssize_t length = recv(leader.fd(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (length > 0) {
      std::string text(buffer, static_cast<size_t>(length));
      net::wipe(buffer, static_cast<size_t>(length));
      return text;
    }
    if (length == 0 || !again(errno)) break;
  }
  return {};
}

/// Another rank: rank 0 may come later.
Result<std::string> hear_from_rank_0(const SocketName& name, int32_t rank, const Wait& wait) {
  std::string stranger;
  for (;;) {
    const LocalSocket leader = open_socket();
    if (leader.fd() < 0) return socket_failed(name, "socket", errno);
    if (connect(leader.fd(), name.get(), name.length) == 0) {
      std::string who = "an unknown process";
      const Hello hello{kMagic, rank};
      if (!same_user(leader.fd(), &who)) {
        stranger = "; " + who + " has it";
      } else if (send(leader.fd(), &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello) {
        std::string text = answer_of(leader, wait);
        if (!text.empty()) return text;
      }
    } else if (errno != ECONNREFUSED && !again(errno)) {
      return socket_failed(name, "connect", errno);
    }
    if (wait.interrupted()) return wait.interrupt->status();
    if (wait.deadline.passed()) break;
    Event nothing;
    nothing.wait({Deadline::after_ms(kSliceMs).earlier(wait.deadline), wait.interrupt});
  }
  return Status(Code::kTimeout,
                format("rendezvous: rank 0 did not answer at the socket \"@%s\" of this host in "
                       "time%s; look at what rank 0 printed, or raise rendezvous.timeout_ms; ranks "
                       "in containers with a network each need MASTER_ADDR and MASTER_PORT",
                       name.text.c_str(), stranger.c_str()));
}

}  // namespace

Result<std::string> host_exchange(const std::string& job, int32_t rank, int32_t world_size,
                                  const std::string& mine, const Wait& wait) {
  const SocketName name(job);
  if (rank != 0) return hear_from_rank_0(name, rank, wait);
  DT_TRY(Teller(name, world_size, mine).tell_all(wait));
  return mine;
}

}  // namespace dt::launch
