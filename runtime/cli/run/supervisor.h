// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/wait.h"
#include "cli/run/fleet.h"
#include "cli/run/guardian.h"
#include "cli/run/outcome.h"
#include "cli/run/output.h"
#include "cli/run/output_pipes.h"
#include "cli/run/report.h"
#include "cli/run/servers.h"
#include "cli/run/signals.h"
#include "cli/run/spawn.h"
#include "cli/run/stdin_relay.h"
#include "cli/run/supervisor_plan.h"

namespace dt::cli {

/// Runs the ranks of one host in one attempt: starts them, brings their output, passes signals on,
/// and when one fails, here or on another node, ends the others. Parameter servers (servers.h) run
/// next to them, and end when all ranks of the job have ended. One thread, one poll() loop; nothing
/// of what the ranks started is left when it returns.
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
  // From a failure to SIGTERM for the others. Ranks that use dt hear of a lost peer sooner, and end
  // with an error of their own.
  static constexpr int64_t kTermAfterMs = 2000;
  enum class Phase {
    kRunning,   // ranks live
    kSweeping,  // all ranks have ended, processes that they started have not
    kDraining,  // only output is left
    kSettling,  // the other nodes are not that far yet
    kReported,  // and the report is in the output
  };
  struct Pipes {
    OutputPipes output;
    bool group_exists = true;
  };
  // What an entry of the poll set belongs to.
  struct Watched {
    enum Kind {
      kSignals,
      kSink,
      kStdinRead,
      kStdinWrite,
      kRankStream,
      kServerStream,
      kFleet,
      kLost
    } kind;
    int rank;  // or server
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
  void drain();
  // Signals and ends
  void handle_signals();
  void pass_on(int signal);
  void on_stop(int signal);
  bool keep_from_ranks(int signal);
  void on_regroup();
  void end_for_regroup();
  void reap();
  void tell_store(const std::vector<int>& ended);
  store::Member member_of(int rank) const;
  void on_rank_end(int rank, int wait_status, std::vector<int>* failed);
  void on_first_failure(int rank);
  void end_ranks(int64_t term_after_ms, bool all);
  void handle_news();
  void note_lost();
  void await_lost();
  void stop_ranks(int signal, bool at_once);
  bool end_servers();
  void on_server_failure();
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
  Servers servers_;
  StdinRelay stdin_relay_;
  std::vector<RankEnd> ends_;  // by rank; of those that were started
  std::vector<Pipes> pipes_;   // by rank
  std::vector<pollfd> poll_set_;
  std::vector<Watched> watched_;

  Phase phase_ = Phase::kRunning;
  Status start_error_;
  int first_ = -1;  // of the node's ranks the one that failed first, before another node's did
  bool failed_after_stop_ = false;
  int64_t ending_ns_ = 0;    // when a failure was first known here; 0 none
  bool ending_all_ = false;  // also the ranks that did not fail
  bool fleet_failed_ = false;
  bool told_ranks_ended_ = false;        // to the other nodes
  bool ranks_ended_everywhere_ = false;  // on all nodes, as far as those with servers say
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
