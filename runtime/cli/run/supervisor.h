// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <array>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/wait.h"
#include "cli/run/environment.h"
#include "cli/run/guardian.h"
#include "cli/run/output.h"
#include "cli/run/report.h"
#include "cli/run/signals.h"
#include "cli/run/spawn.h"
#include "cli/run/stdin_relay.h"

namespace dt::cli {

struct SupervisorPlan {
  std::string program;  ///< path
  std::vector<std::string> args;
  JobPlace place;
  std::string host;
  rlimit open_files{};  ///< what the ranks get
  /// From the first failure to SIGKILL; the others get SIGTERM on the way.
  int64_t grace_ms = 15'000;
  /// The same from SIGINT or SIGTERM to the agent to SIGKILL; negative: never, the scheduler that
  /// sent it knows how long a checkpoint may take.
  int64_t stop_grace_ms = -1;
  /// The rank that the store saw fail first, -1 none. Any time.
  std::function<int32_t()> first_failed_rank;
};

/// Runs the ranks of one host: starts them, brings their output, passes signals on, and when one
/// fails ends the others. One thread, one poll() loop; nothing of what the ranks started is left
/// when it returns.
class Supervisor {
 public:
  /// All are borrowed.
  Supervisor(const SupervisorPlan& plan, Signals& signals, Guardian& guardian, Output& output);
  /// The exit code of the command.
  int run();

 private:
  enum class Phase {
    kRunning,   // ranks live
    kSweeping,  // all ranks have ended, processes that they started have not
    kDraining,  // only output is left
    kReported,  // and the report is in it
  };
  struct Pipes {
    std::array<Fd, 2> streams;
    bool group_exists = true;
  };
  // What an entry of the poll set belongs to.
  struct Watched {
    enum Kind { kSignals, kSink, kStdinRead, kStdinWrite, kRankStream } kind;
    int rank;
    Stream stream;
  };

  // Starting
  Status start(int rank, StdinRelay* relay);
  Status start_all();
  // The loop
  void step();
  void build_poll_set();
  void watch(int fd, short events, Watched watched);
  int poll_timeout_ms() const;
  void handle(const Watched& watched);
  bool read_stream(int rank, Stream stream);
  void close_stream(int rank, Stream stream);
  void drain();
  // Signals and ends
  void handle_signals();
  void pass_on(int signal);
  void on_stop(int signal);
  void reap();
  void on_rank_end(int rank, int wait_status, std::vector<int>* failed);
  void on_first_failure(int rank);
  void look_for_oom_kill();
  void settle_first();
  void check_deadlines();
  void signal_groups(int signal);
  bool all_ended() const;
  void sweep(bool send);
  void note_empty_groups();
  // The end
  void report();
  int exit_code() const;
  bool ended_by_stop() const { return died_of_stop_ && (first_ < 0 || failed_after_stop_); }

  const SupervisorPlan plan_;
  Signals& signals_;
  Guardian& guardian_;
  Output& output_;
  StdinRelay stdin_relay_;
  std::vector<RankEnd> ends_;  // by rank; of those that were started
  std::vector<Pipes> pipes_;   // by rank
  std::vector<pollfd> poll_set_;
  std::vector<Watched> watched_;
  std::vector<char> buffer_;

  Phase phase_ = Phase::kRunning;
  Status start_error_;
  int first_ = -1;  // the rank that failed first
  std::string first_cause_;
  bool failed_after_stop_ = false;
  int stop_signal_ = 0;  // SIGINT, SIGTERM, ... from outside; 0 none
  bool died_of_stop_ = false;
  int interrupts_ = 0;  // SIGINTs so far
  std::set<int> passed_on_;
  Deadline term_at_ = Deadline::never();
  Deadline kill_at_ = Deadline::never();
  int64_t killed_ns_ = INT64_MAX;  // when we first sent a SIGKILL to all
  Deadline sweep_until_ = Deadline::never();
  int sweep_signal_ = 0;      // SIGTERM first after a clean end, else SIGKILL
  bool sweep_kills_ = false;  // SIGKILL has been sent
  int64_t oom_kills_at_start_ = -1;
};

}  // namespace dt::cli
