// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/status.h"
#include "base/wait.h"
#include "net/loop.h"
#include "net/security.h"
#include "store/messages.h"

namespace dt::store {

struct ServerOptions {
  std::string job_id;
  int32_t attempt = 0;
  int32_t world_size = 1;
  std::string bind_address = "127.0.0.1";  ///< literal or name; empty: all interfaces
  uint16_t port = 0;                       ///< 0: the kernel chooses; read it with port()
  int32_t server_rank = -1;                ///< the rank that serves; -1: an agent (dt run)
  std::string host;                        ///< this process's host name, for texts
  int64_t pid = 0;
  size_t max_connections = 16384;
  int64_t join_timeout_ms = -1;  ///< after the first join, whatever the joiners allow; -1: none
  int64_t join_warn_ms = 0;      ///< after the first join it logs who is missing; 0: never
  int64_t memory_bytes = 0;      ///< see MemoryBudget; 0: by what this process may still take
  bool torch_compat = false;     ///< also answers PyTorch's clients, see torch_service.h
  /// A connection that says nothing is closed after this, and one that was refused and stays.
  int64_t silence_ms = 10'000;
  net::Security security;  ///< of dt's own connections; PyTorch's dialect knows none
  /// How often members and the store give each other signs of life, and after how long a silence
  /// the other one counts as lost. 0: never.
  int64_t heartbeat_ms = 0;
  int64_t heartbeat_timeout_ms = 0;
  /// Once all ranks have left a job by a goodbye, the same ranks may join another one, with keys of
  /// its own. False: the attempt is over with its first job.
  bool several_jobs = false;
  /// A hello with a higher attempt ends the attempt that is served and begins its own. Jobs with
  /// another job_id are served next to this one, each as its first hello describes it.
  bool any_job = false;
  /// On the loop's thread, for each rank that counts as lost because it was silent. It may live.
  std::function<void(int32_t rank)> on_silent;
  /// On the loop's thread, before any rank hears that the join has succeeded.
  std::function<void()> on_verdict;
  std::function<void()> on_heed;  ///< on the loop's thread, when heeds_stop() becomes true
  /// On the loop's thread, for each failure that a client reports. Returns true if only this
  /// process needs it: then the server sends it to no client.
  std::function<bool(const Failure&)> on_report;
  LoggerPtr logger;  ///< may be null
};

/// What the store keeps for others at most: `connections` for questions that are not complete and
/// answers that are not taken, and `keys` for keys, values and waits. PyTorch's clients and those
/// who have not said yet who they are need no token: they have the smaller shares, and go first.
struct MemoryBudget {
  static constexpr size_t kMinBytes = size_t{64} << 20;
  static constexpr size_t kMaxBytes = size_t{4} << 30;

  /// `bytes` for connections and as much for keys; 0: a quarter of what this process may still
  /// take, between the two limits above.
  static MemoryBudget of(size_t bytes);

  size_t connections = 0;
  size_t guests = 0;     ///< of `connections`, for all without a token together
  size_t one_guest = 0;  ///< for each of them
  size_t keys = 0;
  size_t guest_keys = 0;  ///< of `keys`, for those of PyTorch's clients
};

struct FirstFailure {
  int32_t rank = -1;    ///< -1: there is none
  bool silent = false;  ///< it may live, but gave no sign of that for too long
  int32_t late = -1;    ///< the rank that an operation waited for when it timed out; -1: none
};

/// Serves keys, values, the join and the liveness of one attempt of one job.
/// All state lives on the loop's thread; these functions may be called on any other.
class Server {
 public:
  static Result<std::unique_ptr<Server>> start(net::Loop* loop, ServerOptions options);
  /// Closes every connection at once. Rank 0 says goodbye and calls wait_empty() before.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;
  /// The numeric address it listens on, without the port.
  std::string bound_address() const;
  /// The rank whose death or abort came first, as its connection or its silence told. A launcher
  /// finds ends of processes in no particular order: this is the order of the causes. Next to it
  /// the first rank that was named by an operation that timed out.
  FirstFailure first_failure() const;
  /// A launcher saw the process of this rank end, and starts no other one in this attempt: ranks
  /// that still wait for it to join wait no more, nor in a later job of this attempt. `how`:
  /// "killed by SIGKILL after 0.3 s".
  void process_ended(const Member& rank, const std::string& how);
  /// A rank that is connected has said that it ends when it is asked to stop.
  bool heeds_stop() const;
  /// Asks all ranks to stop. Does not wait.
  void request_stop();
  /// Returns when no client of dt is connected; at the deadline TIMEOUT naming who is. PyTorch's
  /// clients are not waited for.
  Status wait_empty(const Wait& wait);

 private:
  class Impl;
  Server(net::Loop* loop, std::shared_ptr<Impl> impl) : loop_(loop), impl_(std::move(impl)) {}

  net::Loop* const loop_;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace dt::store
