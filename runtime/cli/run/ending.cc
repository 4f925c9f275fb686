// SPDX-License-Identifier: Apache-2.0
// How ranks end: signals from outside, the first failure, and what is left behind. The other half
// of Supervisor.
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>

#include "cli/run/processes.h"
#include "cli/run/supervisor.h"

namespace dt::cli {
namespace {

// Ranks that use dt hear of a lost peer sooner, and end with an error of their own.
constexpr int64_t kTermAfterMs = 2000;
constexpr int64_t kSweepTermMs = 2000;  // from SIGTERM to SIGKILL for what a clean run left behind
constexpr int64_t kSweepKillMs = 5000;  // then a process is unkillable
// Ends this far apart are cause and effect in the order found.
constexpr int64_t kSettleNs = 1'000'000'000;
constexpr int kInterruptsToKill = 2;
constexpr int kInterruptsToDiscard = 3;  // do not even wait for the reader of the output

// Signals that mean "end", and whose effect on a rank is therefore no failure of the rank.
bool asks_to_end(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

}  // namespace

void Supervisor::handle_signals() {
  for (int signal = signals_.next(); signal != 0; signal = signals_.next()) {
    switch (signal) {
      case SIGCHLD: reap(); break;
      case SIGINT:
      case SIGTERM: on_stop(signal); break;
      case SIGTSTP:
        pass_on(signal);
        output_.flush();
        kill(getpid(), SIGSTOP);
        break;
      case SIGCONT:
        stdin_relay_.resume();
        pass_on(signal);
        break;
      default: pass_on(signal);
    }
  }
}

// To the ranks only: their own children are theirs to tell.
void Supervisor::pass_on(int signal) {
  passed_on_.insert(signal);
  for (const RankEnd& end : ends_) {
    if (!end.has_ended()) kill(end.pid, signal);
  }
}

void Supervisor::on_stop(int signal) {
  if (signal == SIGINT && ++interrupts_ >= kInterruptsToKill) {
    signal_groups(SIGKILL);
    if (interrupts_ >= kInterruptsToDiscard) output_.discard();
  } else {
    pass_on(signal);
  }
  if (phase_ == Phase::kSweeping) {
    sweep_signal_ = SIGKILL;
    sweep(true);
  }
  if (phase_ != Phase::kRunning) return;
  if (stop_signal_ == 0) stop_signal_ = signal;
  if (plan_.stop_grace_ms >= 0) {
    kill_at_ = kill_at_.earlier(Deadline::after_ms(plan_.stop_grace_ms));
  }
}

void Supervisor::reap() {
  std::vector<int> failed;
  int wait_status = 0;
  for (;;) {
    const pid_t pid = waitpid(-1, &wait_status, WNOHANG);
    if (pid < 0 && errno == EINTR) continue;
    if (pid <= 0) break;
    if (pid == guardian_.pid()) guardian_.lost();
    for (size_t rank = 0; rank < ends_.size(); ++rank) {
      // All others are orphans that came to the agent as their subreaper.
      if (ends_[rank].pid == pid && !ends_[rank].has_ended()) {
        on_rank_end(static_cast<int>(rank), wait_status, &failed);
      }
    }
  }
  if (first_ < 0 && !failed.empty()) {
    // Among those found at once, one that was killed is the cause and an exit code its effect.
    const auto killed = std::find_if(failed.begin(), failed.end(), [&](int rank) {
      return WIFSIGNALED(ends_[static_cast<size_t>(rank)].wait_status);
    });
    on_first_failure(killed != failed.end() ? *killed : failed.front());
  }
  note_empty_groups();
  if (phase_ == Phase::kSweeping) sweep(sweep_signal_ == SIGKILL);
}

void Supervisor::on_rank_end(int rank, int wait_status, std::vector<int>* failed) {
  RankEnd& end = ends_[static_cast<size_t>(rank)];
  end.ended_ns = monotonic_ns();
  end.wait_status = wait_status;
  if (!end.failed()) return;
  kill(-end.pid, SIGKILL);  // what it leaves behind; a clean end may leave something until the last
  // A program that catches the signal ends, by convention, with the code that a shell would give.
  const int signal = end.exit_code() - 128;
  const bool asked = asks_to_end(signal) && passed_on_.count(signal) != 0;
  const bool forced = end.killed_by(SIGKILL) && stop_signal_ != 0;
  if (asked || forced) {
    if (stop_signal_ == 0) stop_signal_ = signal;
    died_of_stop_ = true;
    return;
  }
  failed->push_back(rank);
}

void Supervisor::on_first_failure(int rank) {
  first_ = rank;
  failed_after_stop_ = stop_signal_ != 0;
  look_for_oom_kill();
  if (failed_after_stop_) return;  // all are ending as they were asked to, in their own time
  const int64_t term_after_ms = std::min(kTermAfterMs, plan_.grace_ms / 2);
  term_at_ = Deadline::after_ms(term_after_ms);
  kill_at_ = kill_at_.earlier(Deadline::after_ms(plan_.grace_ms));
}

void Supervisor::look_for_oom_kill() {
  first_cause_.clear();
  if (!ends_[static_cast<size_t>(first_)].killed_by(SIGKILL)) return;
  const int64_t before = oom_kills_at_start_;
  const int64_t now = oom_kill_count();
  if (before < 0 || now <= before) return;
  first_cause_ = format(
      "; the kernel's OOM killer has struck in this memory cgroup since the start (oom_kill %lld "
      "-> "
      "%lld): give the job more memory, or use less per rank",
      static_cast<long long>(before), static_cast<long long>(now));
}

/// Ranks that end within a moment are found in no particular order. Nobody gets a SIGKILL because a
/// peer died, so that is the cause; then the store knows whose connection ended first.
void Supervisor::settle_first() {
  if (first_ < 0 || failed_after_stop_) return;
  const int64_t until_ns = ends_[static_cast<size_t>(first_)].ended_ns + kSettleNs;
  const auto may_be_first = [&](size_t rank) {
    return ends_[rank].has_ended() && ends_[rank].failed() && ends_[rank].ended_ns <= until_ns;
  };
  int settled = first_;
  if (!ends_[static_cast<size_t>(first_)].killed_by(SIGKILL)) {
    const int told = plan_.first_failed_rank ? plan_.first_failed_rank() : -1;
    if (told >= 0 && static_cast<size_t>(told) < ends_.size() &&
        may_be_first(static_cast<size_t>(told))) {
      settled = told;
    }
    for (size_t rank = 0; rank < ends_.size(); ++rank) {
      const bool killed = ends_[rank].killed_by(SIGKILL) && ends_[rank].ended_ns < killed_ns_;
      if (may_be_first(rank) && killed) settled = static_cast<int>(rank);
    }
  }
  if (settled == first_) return;
  first_ = settled;
  look_for_oom_kill();
}

void Supervisor::signal_groups(int signal) {
  if (signal == SIGKILL) killed_ns_ = std::min(killed_ns_, monotonic_ns());
  for (size_t rank = 0; rank < ends_.size(); ++rank) {
    if (pipes_[rank].group_exists) kill(-ends_[rank].pid, signal);
  }
}

void Supervisor::check_deadlines() {
  if (kill_at_.passed()) {
    term_at_ = kill_at_ = Deadline::never();
    signal_groups(SIGKILL);
  }
  if (term_at_.passed()) {
    term_at_ = Deadline::never();
    signal_groups(SIGTERM);
    signal_groups(SIGCONT);  // a stopped process acts on it only then
  }
  if (phase_ == Phase::kSweeping && sweep_until_.passed()) {
    if (sweep_signal_ == SIGTERM) {
      sweep_signal_ = SIGKILL;
      sweep(true);
      return;
    }
    for (const pid_t pid : own_descendants()) {
      if (pid == guardian_.pid()) continue;
      output_.message("dt run: a process of the job does not die by SIGKILL: " +
                      describe_process(pid) + "; it may hold its device until a reset");
    }
    sweep_until_ = Deadline::never();
    phase_ = Phase::kDraining;
  }
}

bool Supervisor::all_ended() const {
  return std::all_of(ends_.begin(), ends_.end(),
                     [](const RankEnd& end) { return end.has_ended(); });
}

void Supervisor::note_empty_groups() {
  for (size_t rank = 0; rank < ends_.size(); ++rank) {
    if (!ends_[rank].has_ended() || !pipes_[rank].group_exists) continue;
    if (group_exists(ends_[rank].pid)) continue;
    pipes_[rank].group_exists = false;
    guardian_.forget(ends_[rank].pid);
  }
}

// Ends what the ranks left behind: members of their groups, and those that left the groups and came
// to the agent because it is their subreaper. Comes back on each SIGCHLD until nobody is left.
void Supervisor::sweep(bool send) {
  bool anybody = false;
  if (send) {
    signal_groups(sweep_signal_);
    const bool first_kill = sweep_signal_ == SIGKILL && !sweep_kills_;
    sweep_kills_ = sweep_signal_ == SIGKILL;
    if (!sweep_kills_) sweep_until_ = Deadline::after_ms(kSweepTermMs);
    if (first_kill) sweep_until_ = Deadline::after_ms(kSweepKillMs);
  }
  for (const pid_t pid : own_descendants()) {
    if (pid == guardian_.pid()) continue;
    anybody = true;
    if (send) kill(pid, sweep_signal_);
  }
  if (anybody) return;
  term_at_ = kill_at_ = sweep_until_ = Deadline::never();
  phase_ = Phase::kDraining;
}

}  // namespace dt::cli
