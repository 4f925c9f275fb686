// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/wait.h"
#include "cli/run/guardian.h"
#include "cli/run/output.h"
#include "cli/run/output_pipes.h"
#include "cli/run/report.h"
#include "cli/run/signals.h"
#include "cli/run/supervisor_plan.h"

namespace dt::cli {

/// The parameter servers of one host in one attempt. One that fails is started again by itself,
/// with the socket that it had, so that its address stays and who connects meanwhile waits. Driven
/// by the supervisor's loop, which reaps, polls and knows the ranks. `server` counts those of this
/// node.
class Servers {
 public:
  /// All are borrowed.
  Servers(const SupervisorPlan& plan, const Signals& signals, Guardian& guardian, Output& output);

  Status start_all();
  int count() const { return static_cast<int>(servers_.size()); }
  bool all_ended() const;
  /// Why the job cannot go on, and its exit code; ok: nothing. It has been said.
  const Status& failure() const { return failure_; }
  int failure_code() const { return failure_code_; }

  /// Whether the process is one of them, and has not ended.
  bool has(pid_t pid) const;
  /// It has been reaped.
  void on_end(pid_t pid, int wait_status);
  /// The ranks have ended: those that do not end by themselves until then get SIGTERM, and SIGKILL
  /// after the grace. May be called again: the earliest time counts.
  /// @param for_good no rank comes any more: servers need not wait for those that were lost
  void finish(int64_t patience_ms, bool for_good);
  void pass_on(int signal);
  void kill_all();
  Deadline next_deadline() const { return term_at_.earlier(kill_at_); }
  void check_deadlines();
  void note_empty_groups();

  /// -1: closed.
  int fd(int server, Stream stream) const;
  void read_some(int server, Stream stream);
  /// As OutputPipes::drain().
  bool drain(Stream stream);

 private:
  struct Server {
    RankEnd end;
    OutputPipes pipes;
    int restarts = 0;
  };

  Status start(int server);
  void on_failure(int server);
  std::string name(int server) const;
  /// In the output.
  int source(int server) const { return plan_.place.local_size + server; }
  void signal_groups(int signal);

  const SupervisorPlan& plan_;
  const Signals& signals_;
  Guardian& guardian_;
  Output& output_;
  std::vector<Server> servers_;
  std::set<pid_t> groups_;  // of those that have ended, which may still have members
  Status failure_;
  int failure_code_ = 1;
  bool finishing_ = false;
  int64_t patience_ms_ = 0;  // from then on
  bool for_good_ = false;
  bool asked_ = false;  // to end, by SIGTERM or SIGKILL
  Deadline term_at_ = Deadline::never();
  Deadline kill_at_ = Deadline::never();
};

}  // namespace dt::cli
