// SPDX-License-Identifier: Apache-2.0
#include "cli/run/supervisor.h"

#include <fcntl.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

#include "cli/run/processes.h"

namespace dt::cli {
namespace {

// Servers end by themselves once nobody comes any more, but first write a checkpoint.
constexpr int64_t kServersEndMs = 5'000;
constexpr int64_t kServersFailMs = 1'000;  // the same where the job has failed

}  // namespace

Supervisor::Supervisor(const SupervisorPlan& plan, Signals& signals, Guardian& guardian,
                       Output& output)
    : plan_(plan),
      signals_(signals),
      guardian_(guardian),
      output_(output),
      servers_(plan_, signals, guardian, output),
      oom_kills_at_start_(oom_kill_count()) {}

Outcome Supervisor::run() {
  stop_signal_ = plan_.stop_signal;
  stopped_here_ = plan_.stopped_here;
  if (plan_.fleet != nullptr) {
    if (stopped_here_) plan_.fleet->tell_stop(plan_.place.attempt, stop_signal_, 1);
    handle_news();  // of before the attempt
  }
  if (stop_signal_ == 0) start_error_ = plan_.start_error;
  // Where the others go on after a failure, ranks also begin after one.
  const bool wanted = stop_signal_ == 0 && !ending_all_ && !regroup_;
  if (wanted && start_error_.ok()) start_error_ = start_all();
  died_of_stop_ = stop_signal_ != 0;
  if (!start_error_.ok()) {
    signal_groups(SIGKILL);
    servers_.kill_all();
    if (plan_.fleet != nullptr) plan_.fleet->tell_failure(plan_.place.attempt, -1);
    // Else the agents end the ranks that wait for those of this node.
    if (!plan_.end_on_failure && plan_.process_ended) {
      plan_.process_ended({plan_.place.first_rank, plan_.host, 0},
                          "was not started (" + start_error_.message() + ")");
    }
    if (plan_.fleet != nullptr && !plan_.place.servers.empty()) {
      plan_.fleet->tell_server_failure(plan_.place.attempt);
    }
  }
  while (phase_ != Phase::kReported || !output_.flushed()) step();
  return outcome_;
}

Status Supervisor::start_all() {
  DT_TRY(servers_.start_all());
  if (plan_.place.first_rank == 0) {  // no other rank reads the terminal
    DT_TRY_VALUE(stdin_relay_, StdinRelay::create(STDIN_FILENO));
  }
  for (int rank = 0; rank < plan_.place.local_size; ++rank) {
    const int world_rank = plan_.place.first_rank + rank;
    if (Status started = start(rank, world_rank == 0 ? &stdin_relay_ : nullptr); !started.ok()) {
      return started.within(format("rank %d", world_rank));
    }
  }
  return {};
}

Status Supervisor::start(int rank, StdinRelay* relay) {
  SpawnPlan spawn_plan;
  spawn_plan.program = plan_.program;
  spawn_plan.args = plan_.args;
  spawn_plan.environment = rank_environment(plan_.place, rank, current_environment());
  spawn_plan.guardian_fd = guardian_.fd();
  spawn_plan.signal_mask = signals_.original_mask();
  spawn_plan.open_files = plan_.open_files;
  if (!plan_.cpus.empty()) spawn_plan.cpus = plan_.cpus[static_cast<size_t>(rank)];
  Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  spawn_plan.stdin_fd = relay != nullptr ? relay->child_fd() : null.get();

  Pipes pipes;
  std::array<Fd, kStreams.size()> child_ends;
  DT_TRY_VALUE(pipes.output, OutputPipes::create(&child_ends));
  spawn_plan.stdout_fd = child_ends[0].get();
  spawn_plan.stderr_fd = child_ends[1].get();
  RankEnd end;
  end.started_ns = monotonic_ns();
  DT_TRY_VALUE(end.pid, spawn(spawn_plan));
  if (relay != nullptr) relay->child_started();
  ends_.push_back(end);
  pipes_.push_back(std::move(pipes));
  return {};
}

void Supervisor::step() {
  output_.flush();
  if (phase_ == Phase::kReported && output_.flushed()) return;
  build_poll_set();
  const int count = poll(poll_set_.data(), poll_set_.size(), poll_timeout_ms());
  if (count > 0) {
    // Signals last: what a rank wrote before it ended is then read first.
    for (size_t i = 1; i < poll_set_.size(); ++i) {
      if (poll_set_[i].revents != 0) handle(watched_[i]);
    }
    if (poll_set_[0].revents != 0) handle(watched_[0]);
  }
  check_deadlines();
  if (phase_ == Phase::kRunning && all_ended() && end_servers()) {
    const bool clean = start_error_.ok() && first_ < 0 && stop_signal_ == 0;
    phase_ = Phase::kSweeping;
    sweep_signal_ = clean ? SIGTERM : SIGKILL;
    sweep(true);
  }
  if (phase_ == Phase::kDraining) drain();
}

/// Once the ranks have ended. False: some servers have not.
bool Supervisor::end_servers() {
  if (plan_.place.servers.empty()) return true;
  if (plan_.fleet != nullptr && !told_ranks_ended_) {
    plan_.fleet->tell_ranks_ended(plan_.place.attempt);
    told_ranks_ended_ = true;
  }
  const bool everywhere = plan_.fleet == nullptr || ranks_ended_everywhere_ || !start_error_.ok();
  if (!everywhere) return servers_.all_ended();
  if (stop_signal_ == 0 && ending_all_) {
    servers_.finish(kServersFailMs, false);  // another attempt may follow
  } else {
    servers_.finish(std::max(kServersEndMs, plan_.grace_ms), true);
  }
  return servers_.all_ended();
}

/// One that does not live is what the ranks of all nodes wait for in vain.
void Supervisor::on_server_failure() {
  // What ended the ranks before counts.
  const bool over = all_ended() && (plan_.fleet == nullptr || ranks_ended_everywhere_);
  if (over && (first_ >= 0 || stop_signal_ != 0)) return;
  start_error_ = servers_.failure();
  if (plan_.fleet != nullptr) plan_.fleet->tell_server_failure(plan_.place.attempt);
  end_ranks(std::min(kTermAfterMs, plan_.grace_ms / 2), true);
}

void Supervisor::watch(int fd, short events, Watched watched) {
  if (fd < 0) return;
  poll_set_.push_back({fd, events, 0});
  watched_.push_back(watched);
}

void Supervisor::build_poll_set() {
  poll_set_.clear();
  watched_.clear();
  watch(signals_.fd(), POLLIN, {Watched::kSignals, -1, Stream::kStdout});
  for (const int fd : output_.waiting_fds()) {
    watch(fd, POLLOUT, {Watched::kSink, -1, Stream::kStdout});
  }
  if (plan_.fleet != nullptr) {
    watch(plan_.fleet->wake_fd(), POLLIN, {Watched::kFleet, -1, Stream::kStdout});
  }
  if (plan_.lost_ranks != nullptr) {
    watch(plan_.lost_ranks->wake_fd(), POLLIN, {Watched::kLost, -1, Stream::kStdout});
  }
  watch(stdin_relay_.read_fd(), POLLIN, {Watched::kStdinRead, 0, Stream::kStdout});
  watch(stdin_relay_.write_fd(), POLLOUT, {Watched::kStdinWrite, 0, Stream::kStdout});
  for (const Stream stream : kStreams) {
    if (!output_.accepts(stream)) continue;
    for (size_t rank = 0; rank < pipes_.size(); ++rank) {
      watch(pipes_[rank].output.fd(stream), POLLIN,
            {Watched::kRankStream, static_cast<int>(rank), stream});
    }
    for (int server = 0; server < servers_.count(); ++server) {
      watch(servers_.fd(server, stream), POLLIN, {Watched::kServerStream, server, stream});
    }
  }
}

int Supervisor::poll_timeout_ms() const {
  const bool can_drain = output_.accepts(Stream::kStdout) && output_.accepts(Stream::kStderr);
  if (phase_ == Phase::kDraining && can_drain) return 0;
  const Deadline next = pass_on_at_.earlier(term_at_)
                            .earlier(kill_at_)
                            .earlier(kill_lost_at_)
                            .earlier(sweep_until_)
                            .earlier(servers_.next_deadline());
  if (phase_ == Phase::kRunning && all_ended() && servers_.all_ended()) return 0;
  if (next.is_never()) return -1;  // the ranks decide, or the other nodes
  return static_cast<int>(std::clamp<int64_t>(next.remaining_ms(), 0, INT_MAX));
}

void Supervisor::handle(const Watched& watched) {
  switch (watched.kind) {
    case Watched::kSignals: handle_signals(); break;
    case Watched::kSink: break;  // the next step begins with it
    case Watched::kStdinRead: stdin_relay_.on_readable(); break;
    case Watched::kStdinWrite: stdin_relay_.on_writable(); break;
    case Watched::kRankStream:
      pipes_[static_cast<size_t>(watched.rank)].output.read_some(watched.stream, watched.rank,
                                                                 &output_);
      break;
    case Watched::kServerStream: servers_.read_some(watched.rank, watched.stream); break;
    case Watched::kFleet: handle_news(); break;
    case Watched::kLost: note_lost(); break;
  }
}

// As much is read as the readers of dt's own output take.
void Supervisor::drain() {
  for (const Stream stream : kStreams) {
    for (size_t rank = 0; rank < pipes_.size(); ++rank) {
      if (!pipes_[rank].output.drain(stream, static_cast<int>(rank), &output_)) return;
    }
    if (!servers_.drain(stream)) return;
  }
  settle();
}

void Supervisor::settle() {
  if (plan_.fleet != nullptr) {
    phase_ = Phase::kSettling;
    const Status settling =
        plan_.fleet->settle(plan_.place.attempt, node_ends(), plan_.first_failure);
    if (settling.ok()) return;
    OutcomeFacts alone;
    alone.node_count = plan_.place.node_count;
    alone.lost_node = settling.message();
    report(decide({node_ends()}, alone));
    return;
  }
  OutcomeFacts facts;
  facts.attempt = plan_.place.attempt;
  facts.max_restarts = plan_.place.max_restarts;
  facts.others_go_on = !plan_.end_on_failure;
  if (plan_.first_failure) facts.note_told(plan_.first_failure());
  report(decide({node_ends()}, facts));
}

void Supervisor::report(Outcome outcome) {
  outcome_ = std::move(outcome);
  if (!outcome_.headline.empty()) output_.message(outcome_.headline);
  if (outcome_.rank >= 0) output_.show_tail(outcome_.rank, outcome_.tail);
  if (!outcome_.followers.empty()) output_.message(outcome_.followers);
  phase_ = Phase::kReported;
}

}  // namespace dt::cli
