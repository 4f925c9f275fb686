// SPDX-License-Identifier: Apache-2.0
#include "base/local_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "base/status.h"

namespace dt {

LocalSocket::~LocalSocket() {
  release_fd_from_fork_guard(fd_);
  if (fd_ >= 0) close(fd_);
}

bool same_user(int fd, std::string* out_who) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return false;
  *out_who = format("pid %d of user %u", peer.pid, peer.uid);
  return peer.uid == geteuid();
}

bool wait_readable(int fd, int64_t timeout_ms) {
  pollfd polled{fd, POLLIN, 0};
  return poll(&polled, 1, static_cast<int>(std::clamp<int64_t>(timeout_ms, 0, INT_MAX))) > 0;
}

}  // namespace dt
