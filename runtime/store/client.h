// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "base/wait.h"
#include "net/loop.h"
#include "net/security.h"
#include "store/messages.h"
#include "store/protocol.h"

namespace dt::store {

struct ClientOptions {
  std::string host;  ///< literal or name of the store's host
  uint16_t port = 0;
  std::string job_id;         ///< a tool may leave it empty: any job
  int32_t attempt = 0;        ///< a tool may say -1: any attempt
  int32_t rank = -1;          ///< -1: a tool, which never joins
  int32_t world_size = 0;     ///< ignored for a tool
  std::string host_name;      ///< this process's, for texts
  int64_t pid = 0;            ///< this process's, for texts
  net::Security security;     ///< as the server's
  LoggerPtr logger;           ///< may be null
  uint16_t relay_port = 0;    ///< of this host's Relay; 0: the store is dialled itself
  std::string store_address;  ///< with a relay: where that found the store
  /// Not 0: what listens there and does not greet as a store of dt within so long is refused with
  /// UNSUPPORTED, instead of being tried until the deadline.
  int64_t greeting_ms = 0;
};

struct Swap {
  bool swapped = false;
  std::optional<std::string> current;  ///< after the call; absent: the key does not exist
};

/// A rank's (or a tool's) connection to the store, which is also its control connection.
///
/// Every call blocks the caller under its Wait and runs inside on the loop's thread; any thread may
/// call, except the loop's own, which is refused with INVALID_STATE. A call that ends by its
/// deadline or interrupt may or may not have taken effect on the server, except get, wait, barrier
/// and join, which are withdrawn there.
///
/// Once the whole job has failed (a death, an abort, the server gone) every pending and later call
/// of a rank returns that status, until the deaths are forgiven. Failures of one communicator go to
/// on_failure() only.
class Client {
 public:
  /// Joining before the server exists is normal: connect and hello are retried quietly, with
  /// back-off, until the deadline. A refusal by the server is final.
  static Result<std::shared_ptr<Client>> connect(net::Loop* loop, ClientOptions options,
                                                 const Wait& wait);
  /// Closes the connection: a death in the server's eyes, if this rank joined and did not say
  /// goodbye. No callback runs after it returns.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  Status set(const std::string& key, const std::string& value, const Wait& wait);
  /// Blocks until the key exists.
  Result<std::string> get(const std::string& key, const Wait& wait);
  /// Adds to a number kept as decimal text (absent = 0); returns the sum. Overflow is an error.
  Result<int64_t> add(const std::string& key, int64_t delta, const Wait& wait);
  /// Blocks until all keys exist.
  Status wait_for(const std::vector<std::string>& keys, const Wait& wait);
  /// Sets `desired` where the key's value equals `expected` (nullopt: where there is no key).
  Result<Swap> compare_set(const std::string& key, const std::optional<std::string>& expected,
                           const std::string& desired, const Wait& wait);
  /// True when there was such a key.
  Result<bool> erase(const std::string& key, const Wait& wait);
  /// Keys with the prefix, sorted.
  Result<std::vector<std::string>> list(const std::string& prefix, const Wait& wait);
  /// Never blocks for a key: nullopt where there is none.
  Result<std::vector<std::optional<std::string>>> multi_get(const std::vector<std::string>& keys,
                                                            const Wait& wait);
  /// All or nothing, and nobody sees a part of it.
  Status multi_set(const std::vector<std::pair<std::string, std::string>>& pairs, const Wait& wait);
  /// Returns when `count` calls with this name have come; then the name is free again.
  Status barrier(const std::string& name, int32_t count, const Wait& wait);
  Status ping(const Wait& wait);
  /// Whether the process of `rank` answers the store before the deadline: its I/O thread runs, and
  /// the network between it and the store carries.
  Result<bool> answers(int32_t rank, const Wait& wait);

  /// One round trip: returns when every rank of the job has joined, or why that failed.
  Result<Verdict> join(const JoinRecord& record, const Wait& wait);
  /// Returns when every rank of the job has said goodbye or died (PEER_LOST then).
  Status goodbye(const Wait& wait);
  /// Comes to the gathering of this name; see GatherTable. Also after the deaths of others, which
  /// are what it is for; not after an abort, nor without the store.
  Result<GatherVerdict> gather(const std::string& name, const std::vector<int32_t>& members,
                               const std::string& says, const Wait& wait);
  /// This rank goes on without these: calls no longer fail because of their deaths.
  void forgive(const std::vector<int32_t>& ranks);
  /// A failure that this rank has seen: from now on calls fail because of it, as of one that the
  /// store tells of. On the I/O thread.
  void know(const ErrorInfo& info);
  /// Breaks the job on purpose, for everyone, this client included.
  Status abort(const std::string& message, const Wait& wait);
  /// Tells all other ranks of a failure that this rank has seen.
  Status report_failure(const std::string& scope, const ErrorInfo& info, const Wait& wait);

  /// The same without waiting. `handed_over` runs once, on any thread: the kernel has it, or takes
  /// nothing any more; a process that ends earlier may not have told. Any thread.
  void report_failure_soon(const std::string& scope, const ErrorInfo& info,
                           std::function<void()> handed_over);

  /// Asks every rank of the job to write its trace into `directory` (empty: its own trace.dir).
  /// Returns when all have answered or the deadline is there; who did not answer is in the list.
  Result<std::vector<DumpAnswer>> dump_traces(const std::string& directory, const Wait& wait);
  /// How this rank carries such a request out: runs on the loop's thread, may not block there, and
  /// calls `answer` once, on any thread, with the file or why there is none. Replaces an earlier
  /// one, which does not run after this returns.
  using DumpAnswerer = std::function<void(const Result<std::string>&)>;
  void on_dump_request(std::function<void(const std::string& directory, DumpAnswerer)> callback);

  /// `callback` runs on the loop's thread, once per failure; failures that came before this call
  /// are told right away. Replaces an earlier one, which does not run after this returns.
  void on_failure(std::function<void(const Failure&)> callback);
  /// For what is not a failure. All run on the loop's thread.
  struct Observers {
    /// What this rank does at this moment; null: it has entered no operation yet.
    std::function<Activity()> activity;
    std::function<void(const Busy&)> busy;  ///< a rank is away on purpose, or back
    /// These ranks have left; not told where all leave together.
    std::function<void(const std::vector<int32_t>&)> departed;
    std::function<void(const std::string&)> notice;  ///< for the log of this rank
    std::function<void()> stop;                      ///< whoever serves wants the ranks to stop
    /// What it called since; `all`: of each communicator, though it be nothing. May be null.
    std::function<std::vector<Orders>(bool all)> orders;
  };
  /// Replaces earlier ones, which do not run after this returns. Where the server wants signs of
  /// life, they are given and expected from the join on, and without a join from this call on.
  void observe(Observers observers);
  /// Tells whoever serves that this rank ends when it is asked to stop.
  Status heed_stop(const Wait& wait);
  /// This rank is away on purpose for at most `max_ms`, or with 0 back. Returns when all will know.
  Status busy(const std::string& what, int64_t max_ms, const Wait& wait);
  /// Who serves the store, and the job as the server knows it.
  const Welcome& welcome() const;
  /// The numeric address at which the server was found, by the relay if there is one.
  const std::string& peer_host() const;

 private:
  class Impl;
  Client(net::Loop* loop, std::shared_ptr<Impl> impl) : loop_(loop), impl_(std::move(impl)) {}
  /// The reply's payload. `what` names the operation in texts.
  Result<std::string> call(Request request, const Wait& wait, const std::string& what);

  net::Loop* const loop_;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace dt::store
