// SPDX-License-Identifier: Apache-2.0
#include "cli/run/servers.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include "cli/run/environment.h"
#include "cli/run/processes.h"
#include "cli/run/spawn.h"
#include "store/text.h"

namespace dt::cli {

Servers::Servers(const SupervisorPlan& plan, const Signals& signals, Guardian& guardian,
                 Output& output)
    : plan_(plan), signals_(signals), guardian_(guardian), output_(output) {}

std::string Servers::name(int server) const {
  return format("parameter server %d", plan_.place.first_server + server);
}

Status Servers::start_all() {
  for (int server = 0; server < plan_.place.local_servers; ++server) {
    servers_.emplace_back();
    if (Status started = start(server); !started.ok()) {
      servers_.pop_back();
      return started.within(name(server));
    }
  }
  return {};
}

Status Servers::start(int server) {
  const int socket = plan_.server_fds[static_cast<size_t>(server)];
  SpawnPlan spawn_plan;
  spawn_plan.program = plan_.program;
  spawn_plan.args = plan_.args;
  spawn_plan.environment = server_environment(plan_.place, server, socket, current_environment());
  spawn_plan.guardian_fd = guardian_.fd();
  spawn_plan.kept_fd = socket;
  spawn_plan.signal_mask = signals_.original_mask();
  spawn_plan.open_files = plan_.open_files;
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  spawn_plan.stdin_fd = null.get();
  std::array<Fd, kStreams.size()> child_ends;
  DT_TRY_VALUE(OutputPipes pipes, OutputPipes::create(&child_ends));
  spawn_plan.stdout_fd = child_ends[0].get();
  spawn_plan.stderr_fd = child_ends[1].get();
  RankEnd end;
  end.started_ns = monotonic_ns();
  DT_TRY_VALUE(end.pid, spawn(spawn_plan));
  Server& entry = servers_[static_cast<size_t>(server)];
  entry.end = end;
  entry.pipes = std::move(pipes);
  return {};
}

bool Servers::all_ended() const {
  return std::all_of(servers_.begin(), servers_.end(),
                     [](const Server& server) { return server.end.has_ended(); });
}

bool Servers::has(pid_t pid) const {
  return std::any_of(servers_.begin(), servers_.end(), [pid](const Server& server) {
    return server.end.pid == pid && !server.end.has_ended();
  });
}

void Servers::on_end(pid_t pid, int wait_status) {
  for (int server = 0; server < count(); ++server) {
    RankEnd& end = servers_[static_cast<size_t>(server)].end;
    if (end.pid != pid || end.has_ended()) continue;
    end.ended_ns = monotonic_ns();
    end.wait_status = wait_status;
    groups_.insert(pid);
    if (!end.failed()) return;
    kill(-pid, SIGKILL);  // what it leaves behind
    if (!asked_) on_failure(server);
    return;
  }
}

void Servers::on_failure(int server) {
  Server& entry = servers_[static_cast<size_t>(server)];
  for (const Stream stream : kStreams) {
    entry.pipes.finish_read(stream, source(server), &output_);
  }
  std::string text = end_line(name(server), entry.end, plan_.host) +
                     why_not_run(entry.end, output_.tail(source(server)));
  const int code = entry.end.exit_code();
  const bool again = !finishing_ && failure_.ok() && entry.restarts < plan_.server_restarts;
  Status started;
  if (again) {
    ++entry.restarts;
    started = start(server);
    text += started.ok() ? format("; it is started again (%d of %d times), the ranks go on",
                                  entry.restarts, plan_.server_restarts)
                         : "; it cannot be started again, so the job ends";
  } else if (finishing_) {
    text += ", after all ranks had ended";
  } else if (failure_.ok()) {
    text += format("; it was started again %d time%s (--max-restarts), so the job ends",
                   entry.restarts, entry.restarts == 1 ? "" : "s");
  }
  output_.message("dt run: " + text);
  output_.show_server_tail(server);
  if ((again && started.ok()) || !failure_.ok()) return;
  failure_ = again ? started.within(name(server)) : Status(Code::kSystem, text);
  failure_code_ = again ? 1 : code;
}

void Servers::finish(int64_t patience_ms, bool for_good) {
  if (for_good && !finishing_) {
    for (const int socket : plan_.server_fds) (void)shutdown(socket, SHUT_RD);
  }
  if (!finishing_) patience_ms_ = patience_ms;
  for_good_ |= for_good;
  finishing_ = true;
  if (!asked_ && !all_ended()) term_at_ = term_at_.earlier(Deadline::after_ms(patience_ms));
}

void Servers::signal_groups(int signal) {
  for (const Server& server : servers_) {
    if (!server.end.has_ended()) kill(-server.end.pid, signal);
  }
}

void Servers::pass_on(int signal) {
  for (const Server& server : servers_) {
    if (!server.end.has_ended()) kill(server.end.pid, signal);
  }
}

void Servers::kill_all() {
  asked_ = true;
  term_at_ = kill_at_ = Deadline::never();
  signal_groups(SIGKILL);
}

void Servers::check_deadlines() {
  if (all_ended()) term_at_ = kill_at_ = Deadline::never();
  if (term_at_.passed()) {
    asked_ = true;
    term_at_ = Deadline::never();
    for (int server = 0; for_good_ && server < count(); ++server) {
      if (servers_[static_cast<size_t>(server)].end.has_ended()) continue;
      output_.message(
          format("dt run: %s has not ended, %s after the ranks, and gets SIGTERM; if it "
                 "was writing a checkpoint, give it more time with --grace-ms",
                 name(server).c_str(), store::seconds_text(patience_ms_).c_str()));
    }
    kill_at_ = Deadline::after_ms(plan_.grace_ms);
    signal_groups(SIGTERM);
    signal_groups(SIGCONT);  // a stopped process acts on it only then
  }
  if (!kill_at_.passed()) return;
  for (int server = 0; server < count(); ++server) {
    if (servers_[static_cast<size_t>(server)].end.has_ended()) continue;
    output_.message(format("dt run: %s does not end, %s after SIGTERM, and is killed",
                           name(server).c_str(), store::seconds_text(plan_.grace_ms).c_str()));
  }
  kill_all();
}

void Servers::note_empty_groups() {
  for (auto group = groups_.begin(); group != groups_.end();) {
    if (group_exists(*group)) {
      ++group;
      continue;
    }
    guardian_.forget(*group);
    group = groups_.erase(group);
  }
}

int Servers::fd(int server, Stream stream) const {
  return servers_[static_cast<size_t>(server)].pipes.fd(stream);
}

void Servers::read_some(int server, Stream stream) {
  servers_[static_cast<size_t>(server)].pipes.read_some(stream, source(server), &output_);
}

bool Servers::drain(Stream stream) {
  for (int server = 0; server < count(); ++server) {
    if (!servers_[static_cast<size_t>(server)].pipes.drain(stream, source(server), &output_)) {
      return false;
    }
  }
  return true;
}

}  // namespace dt::cli
