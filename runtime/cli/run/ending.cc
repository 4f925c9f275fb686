// SPDX-License-Identifier: Apache-2.0
// How ranks end: signals from outside, the first failure, and what is left behind. The other half
// of Supervisor.
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "cli/command.h"
#include "cli/run/processes.h"
#include "cli/run/supervisor.h"
#include "store/text.h"

namespace dt::cli {
namespace {

constexpr int64_t kSweepTermMs = 2000;  // from SIGTERM to SIGKILL for what a clean run left behind
constexpr int64_t kSweepKillMs = 5000;  // then a process is unkillable
// Ends this far apart are cause and effect in the order found.
constexpr int64_t kSettleNs = 1'000'000'000;
// Of a node without which the others go on; they wait longer before they do, see rounds.cc.
constexpr int64_t kFenceMs = 1'000;
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
        servers_.pass_on(signal);
        output_.flush();
        kill(getpid(), SIGSTOP);
        break;
      case SIGCONT:
        stdin_relay_.resume();
        pass_on(signal);
        servers_.pass_on(signal);
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
  if (signal == SIGINT) ++interrupts_;
  // A launcher that signals every agent, as srun does for control-C, means it once.
  if (signal == std::exchange(heard_stop_, 0) && interrupts_ < kInterruptsToKill) return;
  if (plan_.fleet != nullptr)
    plan_.fleet->tell_stop(plan_.place.attempt, signal, signal == SIGINT ? interrupts_ : 1);
  if (stop_signal_ == 0) stopped_here_ = true;
  if (keep_from_ranks(signal)) return;
  stop_ranks(signal, signal == SIGINT && interrupts_ >= kInterruptsToKill);
  if (interrupts_ >= kInterruptsToDiscard) output_.discard();
}

/// The first SIGTERM, where ranks end by themselves when they are asked to.
bool Supervisor::keep_from_ranks(int signal) {
  const bool first = stop_signal_ == 0 && signal == SIGTERM && phase_ == Phase::kRunning;
  if (!first || !plan_.ask_to_stop || !plan_.ask_to_stop()) return false;
  stop_signal_ = signal;
  pass_on_at_ = Deadline::after_ms(plan_.heed_ms);
  return true;
}

void Supervisor::stop_ranks(int signal, bool at_once) {
  if (at_once) {
    signal_groups(SIGKILL);
    servers_.kill_all();
  } else {
    pass_on(signal);
  }
  if (stop_signal_ == 0) stop_signal_ = signal;
  if (phase_ == Phase::kSweeping) {
    sweep_signal_ = SIGKILL;
    sweep(true);
  }
  if (phase_ != Phase::kRunning) return;
  if (plan_.stop_grace_ms >= 0) {
    kill_at_ = kill_at_.earlier(Deadline::after_ms(plan_.stop_grace_ms));
  }
}

void Supervisor::handle_news() {
  const FleetNews news = plan_.fleet->take_news();
  if (news.stop_signal != 0) {
    if (stop_signal_ == 0 && phase_ == Phase::kRunning) heard_stop_ = news.stop_signal;
    const bool again = stop_signal_ != 0;
    if (news.kill || (!again && !keep_from_ranks(news.stop_signal))) {
      stop_ranks(news.stop_signal, news.kill);
    }
  }
  if (news.lost || (news.failed && !fleet_failed_)) {
    fleet_failed_ = true;
    // A lost node can never say how its ranks ended, so there is nothing to wait for.
    end_ranks(news.lost ? 0 : std::min(kTermAfterMs, plan_.grace_ms / 2), plan_.end_on_failure);
  }
  for (const auto& [rank, how] : news.ended) {
    if (plan_.process_ended) plan_.process_ended(rank, how);
  }
  if (news.ranks_ended) ranks_ended_everywhere_ = true;
  if (news.server_failed && start_error_.ok()) {
    fleet_failed_ = true;
    end_ranks(std::min(kTermAfterMs, plan_.grace_ms / 2), true);
  }
  if (news.fence) kill_at_ = kill_at_.earlier(Deadline::after_ms(kFenceMs));
  if (news.regroup) on_regroup();
  if (phase_ != Phase::kSettling) return;
  if (auto outcome = plan_.fleet->outcome()) report(std::move(*outcome));
}

/// As SIGTERM, which ranks that ask whether to stop do not see; but that they end is no failure.
void Supervisor::on_regroup() {
  const bool ending = stop_signal_ != 0 || fleet_failed_ || first_ >= 0;
  if (regroup_ || ending || phase_ != Phase::kRunning) return;
  regroup_ = true;
  if (plan_.ask_to_stop && plan_.ask_to_stop()) {
    pass_on_at_ = Deadline::after_ms(plan_.heed_ms);
  } else {
    end_for_regroup();
  }
}

void Supervisor::end_for_regroup() {
  pass_on(SIGTERM);
  kill_at_ = kill_at_.earlier(Deadline::after_ms(plan_.grace_ms));
}

void Supervisor::reap() {
  std::vector<int> failed;
  std::vector<int> ended;
  std::vector<std::pair<pid_t, int>> servers;
  std::vector<std::pair<pid_t, int>> found;
  for (;;) {
    int wait_status = 0;
    const pid_t pid = waitpid(-1, &wait_status, WNOHANG);
    if (pid < 0 && errno == EINTR) continue;
    if (pid <= 0) break;
    found.emplace_back(pid, wait_status);
  }
  // waitpid() gives ends that happened meanwhile in no order. Signals count as first, as the cause;
  // then exit codes, their effect; then ranks that ended with 0: these went on without the others.
  const auto place = [](const std::pair<pid_t, int>& end) {
    return WIFSIGNALED(end.second) ? 0 : end.second != 0 ? 1 : 2;
  };
  std::stable_sort(found.begin(), found.end(),
                   [&](const auto& a, const auto& b) { return place(a) < place(b); });
  for (const auto& [pid, wait_status] : found) {
    plan_.outsiders->erase(pid);  // the number may come back
    if (pid == guardian_.pid()) guardian_.lost();
    if (servers_.has(pid)) servers.emplace_back(pid, wait_status);
    for (size_t rank = 0; rank < ends_.size(); ++rank) {
      // All others are orphans that came to the agent as their subreaper.
      if (ends_[rank].pid == pid && !ends_[rank].has_ended()) {
        on_rank_end(static_cast<int>(rank), wait_status, &failed);
        ended.push_back(static_cast<int>(rank));
      }
    }
  }
  if (first_ < 0 && !fleet_failed_ && !failed.empty()) on_first_failure(failed.front());
  tell_store(ended);
  // A server that ends behind the ranks does not come back, and may have been found before them.
  if (!servers.empty() && phase_ == Phase::kRunning && all_ended()) (void)end_servers();
  for (const auto& [pid, status] : servers) servers_.on_end(pid, status);
  if (!servers_.failure().ok() && start_error_.ok()) on_server_failure();
  note_empty_groups();
  servers_.note_empty_groups();
  await_lost();
  if (phase_ == Phase::kSweeping) sweep(sweep_signal_ == SIGKILL);
}

/// Behind the first failure, which is the cause of what ranks do that hear of it here.
void Supervisor::tell_store(const std::vector<int>& ended) {
  if (!plan_.process_ended) return;
  const auto tell = [this](int rank) {
    plan_.process_ended(member_of(rank), how_text(ends_[static_cast<size_t>(rank)]));
  };
  if (std::find(ended.begin(), ended.end(), first_) != ended.end()) tell(first_);
  for (const int rank : ended) {
    if (rank != first_) tell(rank);
  }
}

store::Member Supervisor::member_of(int rank) const {
  return {plan_.place.first_rank + rank, plan_.host, ends_[static_cast<size_t>(rank)].pid};
}

void Supervisor::on_rank_end(int rank, int wait_status, std::vector<int>* failed) {
  RankEnd& end = ends_[static_cast<size_t>(rank)];
  end.ended_ns = monotonic_ns();
  end.wait_status = wait_status;
  if (!end.failed()) return;
  kill(-end.pid, SIGKILL);  // what it leaves behind; a clean end may leave something until the last
  if (regroup_ && stop_signal_ == 0) return;  // whatever it is, the next attempt begins anew
  // A program that catches the signal ends, by convention, with the code that a shell would give.
  const int signal = end.exit_code() - 128;
  const bool asked = asks_to_end(signal) && passed_on_.count(signal) != 0;
  const bool forced = end.killed_by(SIGKILL) && stop_signal_ != 0;
  if (asked || forced) {
    if (stop_signal_ == 0) {
      stop_signal_ = signal;
      stopped_here_ = true;
      if (plan_.fleet != nullptr) plan_.fleet->tell_stop(plan_.place.attempt, signal, 1);
    }
    died_of_stop_ = true;
    return;
  }
  failed->push_back(rank);
  if (!plan_.end_on_failure && !ending_all_ && !(lost_.count(rank) != 0 && all_ended())) {
    output_.message(
        "dt run: " + first_failure_line(plan_.place.first_rank + rank, end, plan_.host) +
        "; the others go on");
  }
}

void Supervisor::on_first_failure(int rank) {
  first_ = rank;
  failed_after_stop_ = stop_signal_ != 0;
  if (plan_.fleet != nullptr && !failed_after_stop_) {
    plan_.fleet->tell_failure(plan_.place.attempt, plan_.place.first_rank + rank);
  }
  end_ranks(std::min(kTermAfterMs, plan_.grace_ms / 2), plan_.end_on_failure);
}

/// `all`: also those that did not fail.
void Supervisor::end_ranks(int64_t term_after_ms, bool all) {
  if (ending_ns_ == 0) ending_ns_ = monotonic_ns();
  if (!all) return;
  ending_all_ = true;
  if (stop_signal_ != 0) return;  // all are ending as they were asked to, in their own time
  term_at_ = term_at_.earlier(Deadline::after_ms(term_after_ms));
  kill_at_ = kill_at_.earlier(Deadline::after_ms(plan_.grace_ms));
}

void Supervisor::note_lost() {
  for (const int world_rank : plan_.lost_ranks->take(plan_.place.attempt)) {
    const int rank = world_rank - plan_.place.first_rank;
    if (rank < 0 || rank >= static_cast<int>(ends_.size())) continue;  // of another node
    RankEnd& end = ends_[static_cast<size_t>(rank)];
    if (end.has_ended() || !lost_.insert(rank).second) continue;
    end.lost_ns = monotonic_ns();
  }
  await_lost();
}

/// A rank that is stopped would never end. Once only such ranks are left here, and nothing else
/// ends them, they get the grace.
void Supervisor::await_lost() {
  if (phase_ != Phase::kRunning || !kill_at_.is_never() || !kill_lost_at_.is_never()) return;
  std::vector<int> left;
  for (size_t rank = 0; rank < ends_.size(); ++rank) {
    if (!ends_[rank].has_ended()) left.push_back(static_cast<int>(rank));
  }
  if (left.empty()) return;
  if (!std::all_of(left.begin(), left.end(), [&](int rank) { return lost_.count(rank) != 0; })) {
    return;
  }
  kill_lost_at_ = Deadline::after_ms(plan_.grace_ms);
  for (const int rank : left) {
    output_.message(
        format("dt run: rank %d (host %s pid %d) gave no sign of life, the job goes on without "
               "it, and no other rank is left on this host: it gets SIGKILL in %s",
               plan_.place.first_rank + rank, plan_.host.c_str(),
               static_cast<int>(ends_[static_cast<size_t>(rank)].pid),
               store::seconds_text(plan_.grace_ms).c_str()));
  }
}

// ---- what is told ----

std::string Supervisor::oom_text() const {
  const int64_t before = oom_kills_at_start_;
  const int64_t now = oom_kill_count();
  if (before < 0 || now <= before) return {};
  return format(
      "; the kernel's OOM killer has struck in this memory cgroup since the start (oom_kill %lld "
      "-> %lld): give the job more memory, or use less per rank",
      static_cast<long long>(before), static_cast<long long>(now));
}

/// Ranks that ended so soon after the first failure known here that any of them may be the cause.
std::vector<Candidate> Supervisor::candidates() const {
  std::vector<Candidate> found;
  if (ending_ns_ == 0) return found;
  size_t room = tails_room(plan_.place.node_count);
  for (size_t i = 0; i < ends_.size(); ++i) {
    const RankEnd& end = ends_[i];
    if (!end.failed() || end.ended_ns > ending_ns_ + kSettleNs) continue;
    Candidate candidate;
    candidate.index = static_cast<int>(i);
    candidate.killed =
        end.killed_by(SIGKILL) && end.ended_ns < killed_ns_ && lost_.count(candidate.index) == 0;
    candidate.tail = lines_that_fit(output_.tail(candidate.index), &room);
    found.push_back(std::move(candidate));
  }
  return found;
}

NodeEnds Supervisor::node_ends() const {
  NodeEnds ends;
  ends.node = plan_.place.node_rank;
  ends.host = plan_.host;
  ends.first_rank = plan_.place.first_rank;
  ends.ends = ends_;
  ends.start_error = start_error_.message();
  ends.start_code = plan_.start_error.ok() ? servers_.failure_code() : plan_.start_code;
  ends.first = first_;
  ends.failed_after_stop = failed_after_stop_;
  ends.stop_signal = stop_signal_;
  ends.died_of_it = died_of_stop_;
  ends.stopped_here = stopped_here_;
  ends.oom_text = oom_text();
  ends.candidates = candidates();
  return ends;
}

// ---- deadlines, and what is left behind ----

void Supervisor::signal_groups(int signal) {
  if (signal == SIGKILL) killed_ns_ = std::min(killed_ns_, monotonic_ns());
  for (size_t rank = 0; rank < ends_.size(); ++rank) {
    RankEnd& end = ends_[rank];
    if (signal != SIGCONT && !end.has_ended() && is_stopped(end.pid)) end.stopped = true;
    if (pipes_[rank].group_exists) kill(-end.pid, signal);
  }
}

void Supervisor::check_deadlines() {
  if (kill_at_.passed()) {
    term_at_ = kill_at_ = Deadline::never();
    signal_groups(SIGKILL);
  }
  servers_.check_deadlines();
  if (kill_lost_at_.passed()) {
    kill_lost_at_ = Deadline::never();
    for (const int rank : lost_) {
      const RankEnd& end = ends_[static_cast<size_t>(rank)];
      if (!end.has_ended()) kill(-end.pid, SIGKILL);
    }
  }
  if (pass_on_at_.passed()) {
    pass_on_at_ = Deadline::never();
    if (stop_signal_ != 0) {
      stop_ranks(stop_signal_, false);
    } else {
      end_for_regroup();
    }
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
    for (const pid_t pid : own_descendants(*plan_.outsiders)) {
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
  for (const pid_t pid : own_descendants(*plan_.outsiders)) {
    anybody = true;
    if (send) kill(pid, sweep_signal_);
  }
  if (anybody) return;
  pass_on_at_ = term_at_ = kill_at_ = kill_lost_at_ = sweep_until_ = Deadline::never();
  phase_ = Phase::kDraining;
}

}  // namespace dt::cli
