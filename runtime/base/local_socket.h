// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>

#include "base/fork.h"

namespace dt {

/// A socket between processes of one host. It is closed at the end, also in forked children: a copy
/// there would hide our end.
class LocalSocket {
 public:
  explicit LocalSocket(int fd = -1) : fd_(fd) { guard_fd_from_fork(fd); }
  LocalSocket(LocalSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  LocalSocket& operator=(LocalSocket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~LocalSocket();
  int fd() const { return fd_; }
  /// The caller's from now on, and guarded no longer.
  int release() {
    release_fd_from_fork_guard(fd_);
    return std::exchange(fd_, -1);
  }

 private:
  int fd_;
};

/// Whether the other end of a Unix socket belongs to this process's user. `out_who`: "pid 7 of user
/// 0", unchanged where the kernel does not say.
bool same_user(int fd, std::string* out_who);

/// Waits until a message, or the peer's end of the connection, can be received; false: neither, in
/// this time. To be called before recv() on SOCK_SEQPACKET where the peer may send and close at
/// once. Otherwise recv() may find the queue empty, then see the close, and return 0 although the
/// message is queued (Linux, unix_dgram_recvmsg()).
bool wait_readable(int fd, int64_t timeout_ms);

}  // namespace dt
