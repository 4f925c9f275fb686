// SPDX-License-Identifier: Apache-2.0
#include "job/peer_watch.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/fork.h"

namespace dt::job {

struct PeerWatch::Watched {
  explicit Watched(int new_fd) : fd(new_fd) { guard_fd_from_fork(fd); }
  ~Watched() {
    watcher = nullptr;  // before its descriptor
    release_fd_from_fork_guard(fd);
    close(fd);
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  const int fd;
  std::unique_ptr<net::FdWatcher> watcher;
};

PeerWatch::PeerWatch(net::Loop* loop, const std::vector<Peer>& peers,
                     std::function<void(int32_t)> on_end)
    : loop_(loop) {
  loop_->run([&] {
    for (const Peer& peer : peers) {
      const int fd = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(peer.pid), 0));
      if (fd < 0) {
        if (errno == ESRCH) on_end(peer.local_rank);  // ended already
        continue;
      }
      auto watched = std::make_unique<Watched>(fd);
      Watched* const raw = watched.get();
      // A pidfd stays readable: the watcher goes at its first call. It must not destroy itself
      // inside its own callback, so that is posted.
      auto watcher = net::FdWatcher::watch(loop_, fd, [this, raw, on_end, rank = peer.local_rank] {
        if (raw->watcher == nullptr) return;
        auto done = std::make_shared<std::unique_ptr<net::FdWatcher>>(std::move(raw->watcher));
        loop_->post([done] { done->reset(); });
        on_end(rank);
      });
      if (!watcher.ok()) continue;
      watched->watcher = std::move(watcher).value();
      watched_.push_back(std::move(watched));
    }
  });
}

PeerWatch::~PeerWatch() {
  loop_->run([&] { watched_.clear(); });
}

}  // namespace dt::job
