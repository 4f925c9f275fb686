// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/work.h"
#include "base/guarded.h"
#include "base/log.h"
#include "base/status.h"
#include "base/wait.h"
#include "net/host_port.h"
#include "net/loop.h"
#include "net/security.h"
#include "ps/variable.h"

namespace dt::ps {

class ClientCore;
struct Request;
struct Call;

/// A worker's view of the parameter servers of its job.
///
/// Threads: any may call anything. Calls cut what they are given into requests on the caller's
/// thread; one thread of its own ("dt-ps-client") talks with the servers and completes works. It
/// connects again when a server is lost, and repeats what was not answered.
class Client {
 public:
  struct Options {
    std::vector<net::HostPort> servers;
    int32_t worker = 0;  ///< -1: an evaluator
    std::string job_id;
    std::string host;  ///< for texts
    int64_t pid = 0;   ///< likewise
    net::Security security;
    int64_t timeout_ms = -1;         ///< of calls; negative: none
    int64_t sign_ms = 0;             ///< between signs of life; 0: none
    int64_t silence_ms = 0;          ///< a silent server counts as lost; 0: never
    int64_t most_bytes = 256 << 20;  ///< under way; more make a call wait
    LoggerPtr logger;                ///< may be null
  };
  struct Statistics {
    int64_t pushes = 0;  ///< calls
    int64_t pulls = 0;
    int64_t pushed_rows = 0;  ///< of which equal ones were added up
    int64_t pulled_rows = 0;
    int64_t sent_bytes = 0;
    int64_t received_bytes = 0;
    int64_t reconnects = 0;
    int64_t clock = 0;
    int64_t most_ahead = 0;  ///< of the slowest worker, when a clock() returned
  };

  /// Waits until all servers are there.
  static Result<std::unique_ptr<Client>> connect(Options options, const Wait& wait);
  /// Ends what is under way with ABORTED. Without a goodbye, the servers take the worker for lost.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// Makes a variable, or finds the one that another worker made. Its number.
  Result<int32_t> open(const Variable& variable, const Wait& wait);
  /// What a number stands for. INVALID_ARGUMENT: nothing.
  Result<Variable> variable(int32_t number) const;

  // Each returns at once; `work` completes when all servers have answered. `count` < 0: all rows,
  // and `rows` is not looked at; else each is in [0, variable.rows). What is given is copied; what
  // is asked for is written until the work is done.
  Status push(int32_t number, const int64_t* rows, int64_t count, const float* gradients,
              double rate, const std::shared_ptr<backend::Work>& work);
  /// Equal rows: the last one counts.
  Status set(int32_t number, const int64_t* rows, int64_t count, const float* values,
             const std::shared_ptr<backend::Work>& work);
  Status pull(int32_t number, const int64_t* rows, int64_t count, float* values,
              const std::shared_ptr<backend::Work>& work);
  /// Ends a step: returns when no worker is more than `ahead` steps behind; < 0: at once. After an
  /// error the step has not ended: the next call tries again.
  Status clock(int64_t ahead, const Wait& wait);
  /// Every server writes a checkpoint.
  Status save(const Wait& wait);
  /// Waits for what is under way, and says goodbye to the servers. From then on only this may be
  /// called, again after an error; once it was answered it does nothing.
  Status leave(const Wait& wait);
  Statistics statistics() const;
  /// Ends what is under way, and all that follows, with ABORTED; also calls of other threads.
  void abort();

  struct Room;

 private:
  explicit Client(Options options);
  struct State {
    std::vector<Variable> variables;
    bool left = false;
    int64_t clock = 0;  ///< steps that have ended
  };
  Status check_here() const;
  Status change(bool sets, int32_t number, const int64_t* rows, int64_t count, const float* values,
                double rate, const std::shared_ptr<backend::Work>& work);
  Result<Variable> begin(int32_t number, const int64_t* rows, int64_t count) const;
  /// Hands requests to the loop, once there is room for them; calls that wait get it in turn.
  Status issue(std::shared_ptr<Call> call,
               std::vector<std::vector<std::shared_ptr<Request>>> parts);
  /// One request to each server; waits for the answers.
  Status ask_all(const std::string& what, uint32_t kind, uint64_t signature, int64_t count,
                 const std::string& payload, const Wait& wait);
  size_t servers() const { return options_.servers.size(); }

  const Options options_;
  Guarded<State> state_;
  std::mutex leaving_;             // of one leave(), for which others wait
  bool goodbye_answered_ = false;  // under leaving_
  const std::shared_ptr<Room> room_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<ClientCore> core_;  // of the loop's thread
};

}  // namespace dt::ps
