// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/status.h"
#include "base/wait.h"
#include "net/loop.h"
#include "net/security.h"
#include "transport/tcp/socket.h"

namespace dt::ps {

class ServerCore;

/// One of the servers of a job: it keeps its rows of every variable and updates them as pushes
/// come. One thread ("dt-ps") does all of that, so a server is a processor's worth of work, and a
/// job with more to do has more servers. A second one ("dt-ps-files") writes checkpoints.
///
/// Workers come and go; one that is lost disturbs nobody. The server ends when all have left.
class Server {
 public:
  struct Options {
    int32_t index = 0;
    int32_t servers = 1;
    int32_t workers = 0;  ///< 0: not known
    std::string job_id;
    std::string host;  ///< for texts
    int64_t pid = 0;   ///< likewise
    net::Security security;
    std::string directory;           ///< of checkpoints; empty: none
    int64_t save_every_ms = 60'000;  ///< 0: only when asked, and at the end
    /// A worker that was lost for so long does not come back, once another has said goodbye.
    int64_t absent_ms = 10'000;
    /// How long the server waits for workers that have not come yet; and, if all workers were lost,
    /// for one of them to come back.
    int64_t arrival_ms = 300'000;
    int64_t silence_ms = 0;  ///< a silent worker counts as lost; 0: never
    LoggerPtr logger;        ///< may be null
  };
  struct Statistics {
    std::atomic<int64_t> workers{0};  ///< that are connected
    std::atomic<int64_t> pushes{0};   ///< requests; a call may make several
    std::atomic<int64_t> pulls{0};
    std::atomic<int64_t> pushed_rows{0};
    std::atomic<int64_t> pulled_rows{0};
    std::atomic<int64_t> saves{0};
    std::atomic<int64_t> busy_ns{0};  ///< of a processor, by its thread
  };

  /// Loads the checkpoint, if there is one, and serves at `listener`, which listens.
  static Result<std::unique_ptr<Server>> start(tcp::Socket listener, Options options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const { return port_; }
  /// True: it has ended, because all workers have left; false: not yet. TIMEOUT: none came.
  /// PEER_LOST: all were lost, without a goodbye. ABORTED: stop() came first.
  Result<bool> wait(const Wait& wait);
  /// Any thread: serves no more, frees its port, and ends wait(). Writes no checkpoint.
  void stop();
  const Statistics& statistics() const { return statistics_; }

 private:
  explicit Server(Options options);

  const Options options_;
  Statistics statistics_;  // written by the loop's thread
  uint16_t port_ = 0;
  std::unique_ptr<net::Loop> files_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<ServerCore> core_;  // of the loop's thread
};

}  // namespace dt::ps
