// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/handover.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "base/local_socket.h"

namespace dt::shm {
namespace {

constexpr uint64_t kMagic = 0x3176'6f68'2d74'6421;  // "!dt-hov1"
// Interrupts have no descriptor to poll, so they are looked at this often.
constexpr int64_t kSliceMs = 10;
// Connections that have not said who they are, beside those of the ranks, which may all come at
// once.
constexpr size_t kStrangersMax = 64;

struct Hello {
  uint64_t magic = kMagic;
  uint64_t session = 0;
  int32_t local_rank = 0;
  int32_t local_size = 0;
};

enum class Verdict : int32_t { kOk = 0, kGo = 1, kRefused = 2 };

struct Reply {
  uint64_t magic = kMagic;
  Verdict verdict = Verdict::kOk;
  Code code = Code::kOk;
  char text[496] = {};  // why refused
};

using Socket = LocalSocket;

std::string where(const HandoverTerms& terms) {
  return format("handing over the memory of this host, local rank %d of %d", terms.local_rank,
                terms.local_size);
}

Status system_error(const HandoverTerms& terms, const char* call, int error) {
  return Status(Code::kSystem,
                format("%s: %s: %s", where(terms).c_str(), call, errno_text(error).c_str()));
}

bool would_block(int error) { return error == EAGAIN || error == EINTR; }

/// One message of exactly sizeof(T), nobody waits. Returns what recv returns.
template <class T>
ssize_t receive(int fd, T* out, int* out_fd = nullptr) {
  iovec part{out, sizeof *out};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t length = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (length < 0) return length;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    // The padding of the buffer has room for a second one.
    for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= header->cmsg_len; at += sizeof(int)) {
      int passed;
      memcpy(&passed, CMSG_DATA(header) + at, sizeof passed);
      if (out_fd != nullptr && *out_fd < 0) {
        *out_fd = passed;
      } else {
        close(passed);
      }
    }
  }
  return length;
}

/// A fresh connection always has room for our few small messages.
template <class T>
bool post(int fd, const T& value, int passed = -1) {
  iovec part{const_cast<T*>(&value), sizeof value};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (passed >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &passed, sizeof passed);
  }
  return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(sizeof value);
}

void refuse(int fd, Code code, const std::string& text) {
  Reply reply;
  reply.verdict = Verdict::kRefused;
  reply.code = code;
  snprintf(reply.text, sizeof reply.text, "%s", text.c_str());
  (void)post(fd, reply);
}

/// The leader's side of the hand-over, see the header.
class Leader {
 public:
  Leader(int listener, int memfd, const HandoverTerms& terms)
      : listener_(listener), memfd_(memfd), terms_(terms), ranks_(terms.local_size) {}

  Status serve(const Wait& wait) {
    while (ready_ < terms_.local_size - 1) {
      if (wait.interrupted()) return give_up(wait.interrupt->status());
      if (wait.deadline.passed()) return give_up(missing());
      Status status = step(std::min(kSliceMs, wait.deadline.remaining_ms()));
      if (!status.ok()) return give_up(std::move(status));
    }
    Reply go;
    go.verdict = Verdict::kGo;
    for (int32_t rank = 1; rank < terms_.local_size; ++rank) (void)post(ranks_[rank].fd.fd(), go);
    return {};
  }

 private:
  struct Rank {
    Socket fd;
    bool ready = false;
  };

  Status step(int64_t timeout_ms) {
    std::vector<pollfd> polled{{listener_, POLLIN, 0}};
    for (const Socket& stranger : strangers_) polled.push_back({stranger.fd(), POLLIN, 0});
    const size_t first_rank = polled.size();
    for (const Rank& rank : ranks_) polled.push_back({rank.fd.fd(), POLLIN, 0});
    if (poll(polled.data(), polled.size(), static_cast<int>(timeout_ms)) < 0) {
      return errno == EINTR ? Status() : system_error(terms_, "poll", errno);
    }
    for (int32_t rank = 1; rank < terms_.local_size; ++rank) {
      if (polled[first_rank + rank].revents != 0) DT_TRY(hear_rank(rank));
    }
    for (size_t i = strangers_.size(); i-- > 0;) {
      if (polled[1 + i].revents != 0 && hear_stranger(strangers_[i])) {
        strangers_.erase(strangers_.begin() + static_cast<ptrdiff_t>(i));
      }
    }
    return polled[0].revents != 0 ? accept_some() : Status();
  }

  /// Any user of this machine can connect: a crowd must neither keep this thread from looking at
  /// its deadline nor fill the log.
  Status accept_some() {
    for (size_t i = 0; i < kStrangersMax; ++i) {
      Socket peer(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (peer.fd() < 0) {
        // The connection stays in the backlog, so that waiting on would spin until the deadline.
        const bool exhausted =
            errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        return exhausted ? system_error(terms_, "accept", errno) : Status();
      }
      std::string who = "unknown process";
      if (!same_user(peer.fd(), &who)) {
        if (!std::exchange(told_of_others_, true)) {
          note(
              format("refused a connection from %s: it belongs to another user; more of the kind "
                     "are refused without another word",
                     who.c_str()));
        }
        continue;
      }
      const size_t most = kStrangersMax + static_cast<size_t>(terms_.local_size);
      if (strangers_.size() >= most) strangers_.erase(strangers_.begin());
      strangers_.push_back(std::move(peer));
    }
    return {};
  }

  /// True: no stranger any more.
  bool hear_stranger(Socket& stranger) {
    Hello hello;
    const ssize_t length = receive(stranger.fd(), &hello);
    if (length < 0 && would_block(errno)) return false;
    if (length != sizeof hello || hello.magic != kMagic) {
      if (length > 0) note("refused a connection that does not speak our protocol");
      return true;
    }
    std::string why;
    if (hello.session != terms_.session) {
      why = format("local rank 0 belongs to session %016llx, not to %016llx",
                   static_cast<unsigned long long>(terms_.session),
                   static_cast<unsigned long long>(hello.session));
    } else if (hello.local_size != terms_.local_size) {
      why = format("local rank 0 counts %d ranks on this host, local rank %d counts %d",
                   terms_.local_size, hello.local_rank, hello.local_size);
    } else if (hello.local_rank < 1 || hello.local_rank >= terms_.local_size) {
      why = format("there is no local rank %d to hand over to", hello.local_rank);
    } else if (ranks_[hello.local_rank].fd.fd() >= 0) {
      why = format("another process joined as local rank %d before", hello.local_rank);
    }
    if (!why.empty()) {
      note("refused a rank: " + why);
      refuse(stranger.fd(), Code::kInvalidState, why);
      return true;
    }
    if (!post(stranger.fd(), Reply(), memfd_)) {
      note(
          format("local rank %d went away again: %s", hello.local_rank, errno_text(errno).c_str()));
      return true;
    }
    ranks_[hello.local_rank].fd = std::move(stranger);
    return true;
  }

  Status hear_rank(int32_t index) {
    Rank& rank = ranks_[index];
    Hello ready;
    const ssize_t length = receive(rank.fd.fd(), &ready);
    if (length < 0 && would_block(errno)) return {};
    if (length != sizeof ready || ready.magic != kMagic || rank.ready) {
      return Status(Code::kPeerLost,
                    format("%s: local rank %d closed its connection before the hand-over was done; "
                           "look at its own error",
                           where(terms_).c_str(), index));
    }
    rank.ready = true;
    ++ready_;
    return {};
  }

  Status missing() const {
    std::string absent;
    for (int32_t rank = 1; rank < terms_.local_size; ++rank) {
      if (ranks_[rank].ready) continue;
      absent += format("%s%d%s", absent.empty() ? "" : ", ", rank,
                       ranks_[rank].fd.fd() >= 0 ? " (connected)" : "");
    }
    return Status(Code::kTimeout, format("%s: these local ranks did not come in time: %s; look at "
                                         "what they do, or wait longer",
                                         where(terms_).c_str(), absent.c_str()));
  }

  Status give_up(Status status) {
    for (const Rank& rank : ranks_) {
      if (rank.fd.fd() >= 0) refuse(rank.fd.fd(), status.code(), status.message());
    }
    return status;
  }

  void note(const std::string& text) const {
    if (terms_.logger) {
      terms_.logger->log(LogLevel::kWarning, "%s: %s", where(terms_).c_str(), text.c_str());
    }
  }

  const int listener_;
  const int memfd_;
  const HandoverTerms& terms_;
  std::vector<Socket> strangers_;
  std::vector<Rank> ranks_;  ///< [0] stays empty
  int32_t ready_ = 0;
  bool told_of_others_ = false;
};

Result<Socket> connect_to_leader(const std::string& name, const HandoverTerms& terms,
                                 const Wait& wait) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() > sizeof address.sun_path - 1) {
    return Status(Code::kInvalidArgument, format("%s: \"%s\" is no name of a listener",
                                                 where(terms).c_str(), name.c_str()));
  }
  memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  Socket leader(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (leader.fd() < 0) return system_error(terms, "socket", errno);
  while (connect(leader.fd(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    if (errno == ECONNREFUSED) {
      return Status(Code::kPeerLost,
                    format("%s: nobody listens at \"@%s\": local rank 0 is gone, or it runs in "
                           "another network namespace; set DT_HOST_ID apart if it is another "
                           "container",
                           where(terms).c_str(), name.c_str()));
    }
    if (!would_block(errno)) return system_error(terms, "connect", errno);
    // EAGAIN: the backlog is full. There is nothing to poll for.
    if (wait.interrupted()) return wait.interrupt->status();
    if (wait.deadline.passed()) {
      return Status(Code::kTimeout,
                    format("%s: local rank 0 accepts no connection", where(terms).c_str()));
    }
    poll(nullptr, 0, 1);
  }
  std::string who = "unknown process";
  if (!same_user(leader.fd(), &who)) {
    return Status(Code::kInvalidState,
                  format("%s: the listener \"@%s\" belongs to another user (%s)",
                         where(terms).c_str(), name.c_str(), who.c_str()));
  }
  return leader;
}

Status await_reply(int leader, Verdict expected, int* out_fd, const HandoverTerms& terms,
                   const Wait& wait) {
  Reply reply;
  for (;;) {
    if (wait_readable(leader, std::min(kSliceMs, wait.deadline.remaining_ms()))) {
      const ssize_t length = receive(leader, &reply, out_fd);
      if (length == sizeof reply && reply.magic == kMagic) break;
      if (length >= 0 || !would_block(errno)) {
        return Status(Code::kPeerLost, format("%s: local rank 0 closed the connection; look at "
                                              "its own error",
                                              where(terms).c_str()));
      }
    }
    if (wait.interrupted()) return wait.interrupt->status();
    if (wait.deadline.passed()) {
      return Status(Code::kTimeout,
                    format("%s: local rank 0 does not answer: it waits for other local ranks; its "
                           "own error names them",
                           where(terms).c_str()));
    }
  }
  if (reply.verdict == expected) return {};
  reply.text[sizeof reply.text - 1] = '\0';
  return Status(reply.verdict == Verdict::kRefused ? reply.code : Code::kInternal,
                format("%s: local rank 0 refused: %s", where(terms).c_str(), reply.text));
}

}  // namespace

Status lead_handover(int listener, int memfd, const HandoverTerms& terms, const Wait& wait,
                     const PrepareSection& prepare) {
  DT_TRY(prepare(memfd));
  if (terms.local_size == 1) return {};
  return Leader(listener, memfd, terms).serve(wait);
}

Status follow_handover(const std::string& leader_name, const HandoverTerms& terms, const Wait& wait,
                       const PrepareSection& prepare) {
  DT_TRY_VALUE(Socket leader, connect_to_leader(leader_name, terms, wait));
  Hello hello;
  hello.session = terms.session;
  hello.local_rank = terms.local_rank;
  hello.local_size = terms.local_size;
  if (!post(leader.fd(), hello)) return system_error(terms, "sendmsg", errno);
  int memfd = -1;
  Status welcome = await_reply(leader.fd(), Verdict::kOk, &memfd, terms, wait);
  Socket owned(memfd);
  DT_TRY(welcome);
  if (memfd < 0) return Status(Code::kInternal, where(terms) + ": the reply carried no memory");
  DT_TRY(prepare(owned.release()));
  if (!post(leader.fd(), hello)) return system_error(terms, "sendmsg", errno);
  return await_reply(leader.fd(), Verdict::kGo, nullptr, terms, wait);
}

Result<NamedListener> open_named_listener() {
  const auto failure = [](const char* call) {
    return Status(Code::kSystem, format("opening a socket to hand over the memory of this host: "
                                        "%s: %s",
                                        call, errno_text(errno).c_str()));
  };
  Socket listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (listener.fd() < 0) return failure("socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // A length of the family alone asks the kernel for a free abstract name.
  if (bind(listener.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)) != 0) {
    return failure("bind");
  }
  if (listen(listener.fd(), SOMAXCONN) != 0) return failure("listen");
  socklen_t length = sizeof address;
  if (getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return failure("getsockname");
  }
  const size_t name_bytes = length - offsetof(sockaddr_un, sun_path) - 1;
  return NamedListener{listener.release(), std::string(address.sun_path + 1, name_bytes)};
}

}  // namespace dt::shm
