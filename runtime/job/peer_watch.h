// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "net/loop.h"

namespace dt::job {

/// Watches processes of this host by pidfd: a death is seen even while a forked child of the dead
/// rank keeps its sockets open.
class PeerWatch {
 public:
  struct Peer {
    int32_t local_rank = 0;
    int64_t pid = 0;
  };

  /// `on_end` runs on the loop's thread, once per ended peer. Processes that this kernel or its
  /// namespaces do not let us watch are left to the control connection.
  PeerWatch(net::Loop* loop, const std::vector<Peer>& peers,
            std::function<void(int32_t local_rank)> on_end);
  /// No callback runs after it returns. Not on the loop's thread.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

 private:
  struct Watched;

  net::Loop* const loop_;
  std::vector<std::unique_ptr<Watched>> watched_;  // loop's thread only
};

}  // namespace dt::job
