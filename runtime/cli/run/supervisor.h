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
#include "cli/run/fleet.h"
#include "cli/run/guardian.h"
#include "cli/run/lost_ranks.h"
#include "cli/run/outcome.h"
#include "cli/run/output.h"
#include "cli/run/report.h"
#include "cli/run/signals.h"
#include "cli/run/spawn.h"
#include "cli/run/stdin_relay.h"

namespace dt::cli {

struct SupervisorPlan {
  std::string program;  ///< path
  /// What keeps this node from starting ranks; then none is started, and the others are told.
  Status start_error;
  int start_code = 1;  ///< the exit code then
  std::vector<std::string> args;
  JobPlace place;
  std::string host;
  rlimit open_files{};                 ///< what the ranks get
  std::vector<std::vector<int>> cpus;  ///< by local rank; empty: those of the agent
  bool end_on_failure = true;          ///< else the others go on, here and on the other nodes
  /// From the first failure to SIGKILL; the others get SIGTERM on the way.
  int64_t grace_ms = 15'000;
  /// The same from SIGINT or SIGTERM to the agent to SIGKILL; negative: never, the scheduler that
  /// sent it knows how long a checkpoint may take.
  int64_t stop_grace_ms = -1;
  /// Asks the ranks through the job's store to stop; false: none of them heeds that. Then SIGTERM
  /// is kept from them for `heed_ms`, so that they save their state and end in the same step.
  std::function<bool()> ask_to_stop;
  int64_t heed_ms = 0;
  /// What the job's store saw fail first. Any time, any thread.
  FirstTold first_failure;
  LostRanks* lost_ranks = nullptr;  ///< of the job's store; null: nobody tells
  Fleet* fleet = nullptr;           ///< the other nodes; null with one node
  /// A signal that came before this attempt: no rank is started, the others are told.
  int stop_signal = 0;
  bool stopped_here = false;  ///< it came to this agent
};

/// Runs the ranks of one host in one attempt: starts them, brings their output, passes signals on,
/// and when one fails, here or on another node, ends the others. One thread, one poll() loop;
/// nothing of what the ranks started is left when it returns.
class Supervisor {
 public:
  /// All are borrowed.
  Supervisor(const SupervisorPlan& plan, Signals& signals, Guardian& guardian, Output& output);
  /// What has been reported.
  Outcome run();
  /// The signal that asked this attempt to end; 0 none.
  int stop_signal() const { return stop_signal_; }
  bool stopped_here() const { return stopped_here_; }

 private:
  enum class Phase {
    kRunning,   // ranks live
    kSweeping,  // all ranks have ended, processes that they started have not
    kDraining,  // only output is left
    kSettling,  // the other nodes are not that far yet
    kReported,  // and the report is in the output
  };
  struct Pipes {
    std::array<Fd, 2> streams;
    bool group_exists = true;
  };
  // What an entry of the poll set belongs to.
  struct Watched {
    enum Kind { kSignals, kSink, kStdinRead, kStdinWrite, kRankStream, kFleet, kLost } kind;
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
  bool keep_from_ranks(int signal);
  void on_regroup();
  void end_for_regroup();
  void reap();
  void on_rank_end(int rank, int wait_status, std::vector<int>* failed);
  void on_first_failure(int rank);
  void end_ranks(int64_t term_after_ms);
  void handle_news();
  void note_lost();
  void await_lost();
  void stop_ranks(int signal, bool at_once);
  void check_deadlines();
  void signal_groups(int signal);
  bool all_ended() const;
  void sweep(bool send);
  void note_empty_groups();
  // The end
  NodeEnds node_ends() const;
  std::vector<Candidate> candidates() const;
  std::string oom_text() const;
  void settle();
  void report(Outcome outcome);

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
  int first_ = -1;  // of the node's ranks the one that failed first, before another node's did
  bool failed_after_stop_ = false;
  int64_t ending_ns_ = 0;  // when a failure was first known here; 0 none
  bool fleet_failed_ = false;
  bool regroup_ = false;  // the ranks are asked to end, for more nodes in the next attempt
  Outcome outcome_;
  int stop_signal_ = 0;  // SIGINT, SIGTERM, ... from outside; 0 none
  bool stopped_here_ = false;
  int heard_stop_ = 0;  // passed on because another node got it; 0 none, or it has come here too
  bool died_of_stop_ = false;
  int interrupts_ = 0;  // SIGINTs so far
  std::set<int> passed_on_;
  Deadline pass_on_at_ = Deadline::never();  // the stop signal that was kept from the ranks
  Deadline term_at_ = Deadline::never();
  Deadline kill_at_ = Deadline::never();
  std::set<int> lost_;  // local ranks that the job goes on without, though they lived
  Deadline kill_lost_at_ = Deadline::never();
  int64_t killed_ns_ = INT64_MAX;  // when we first sent a SIGKILL to all
  Deadline sweep_until_ = Deadline::never();
  int sweep_signal_ = 0;      // SIGTERM first after a clean end, else SIGKILL
  bool sweep_kills_ = false;  // SIGKILL has been sent
  int64_t oom_kills_at_start_ = -1;
};

}  // namespace dt::cli
