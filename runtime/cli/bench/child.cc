// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "cli/run/fd.h"
#include "cli/run/processes.h"

namespace dt::cli::bench {
namespace {

constexpr int64_t kStopMs = 3'000;  // from SIGTERM to SIGKILL: mpirun and dt run end their ranks
constexpr int kDieMs = 2'000;       // for a killed process to be gone
constexpr int kKillPasses = 16;     // a dying process may have forked before
constexpr size_t kTailLines = 12;
constexpr size_t kMaxOutputBytes = 64 << 20;

using Clock = std::chrono::steady_clock;

int left_ms(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000'000));
}

Fd open_pidfd(pid_t pid) { return Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

constexpr int kStoppingSignals[] = {SIGINT, SIGTERM, SIGHUP};

sigset_t stopping_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kStoppingSignals) sigaddset(&signals, signal);
  return signals;
}

// Can be read when a signal came that is held back. Never is: the signal stays to be met later.
Fd open_signalfd() {
  sigset_t blocked;
  sigprocmask(SIG_BLOCK, nullptr, &blocked);
  sigset_t held;
  sigemptyset(&held);
  for (const int signal : kStoppingSignals) {
    if (sigismember(&blocked, signal) == 1) sigaddset(&held, signal);
  }
  return Fd(signalfd(-1, &held, SFD_CLOEXEC));
}

struct Pipe {
  Fd read;
  Fd write;
};
Result<Pipe> make_pipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return Status(Code::kSystem, "cannot make a pipe: " + errno_text(errno));
  }
  return Pipe{Fd(fds[0]), Fd(fds[1])};
}

[[noreturn]] void become(const ChildPlan& plan, const std::string& path, pid_t parent,
                         const Pipe& out, const Pipe& err) {
  setpgid(0, 0);  // ^C reaches dt bench alone, whose end then reaches this child
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);
  const sigset_t stopping = stopping_signals();
  sigprocmask(SIG_UNBLOCK, &stopping, nullptr);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(out.write.get(), STDOUT_FILENO);
  dup2(err.write.get(), STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : plan.command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  for (const std::string& setting : plan.environment) {
    putenv(const_cast<char*>(setting.c_str()));
  }
  execv(path.c_str(), arguments.data());
  const std::string text = "cannot run " + path + ": " + errno_text(errno) + "\n";
  const ssize_t ignored = write(STDERR_FILENO, text.data(), text.size());
  _exit(ignored < 0 ? 126 : 127);
}

// Appends what is there; closes at the end of the file.
void take(Fd* fd, std::string* text) {
  char buffer[65536];
  const ssize_t bytes = read(fd->get(), buffer, sizeof buffer);
  if (bytes > 0 && text->size() < kMaxOutputBytes) text->append(buffer, static_cast<size_t>(bytes));
  if (bytes == 0 || (bytes < 0 && errno != EINTR && errno != EAGAIN)) fd->reset();
}

struct Outcome {
  std::string out;
  std::string err;
  bool in_time = true;
  bool stopped = false;  // by a signal to this process
};

// Collects output until the child has ended; true when that was before the deadline and any signal.
bool collect(const Fd& pidfd, const Fd& signals, Clock::time_point deadline, Pipe* out, Pipe* err,
             Outcome* outcome) {
  while (true) {
    pollfd fds[] = {{pidfd.get(), POLLIN, 0},
                    {out->read.get(), POLLIN, 0},  // closed: -1, which poll skips
                    {err->read.get(), POLLIN, 0},
                    {signals.get(), POLLIN, 0}};
    const int left = left_ms(deadline);
    const int ready = poll(fds, 4, left);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    outcome->stopped = fds[3].revents != 0;
    if (outcome->stopped) return false;
    if (fds[1].revents != 0) take(&out->read, &outcome->out);
    if (fds[2].revents != 0) take(&err->read, &outcome->err);
    if (fds[0].revents != 0 && fds[1].revents == 0 && fds[2].revents == 0) return true;
  }
}

// Ranks that outlived their launcher: they are our children now, since we are a subreaper.
void kill_descendants() {
  for (int pass = 0; pass < kKillPasses; ++pass) {
    const std::vector<pid_t> left = own_descendants();
    if (left.empty()) break;
    for (const pid_t pid : left) {
      const Fd pidfd = open_pidfd(pid);
      kill(pid, SIGKILL);
      pollfd fd{pidfd.get(), POLLIN, 0};
      poll(&fd, 1, kDieMs);
    }
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
  while (waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

std::string tail(const std::string& text) {
  size_t begin = text.find_last_not_of('\n');
  if (begin == std::string::npos) return {};
  const size_t end = begin + 1;
  for (size_t lines = 0; begin > 0; --begin) {
    if (text[begin - 1] == '\n' && ++lines == kTailLines) break;
  }
  std::string result = "\n    ";
  for (size_t i = begin; i < end; ++i) {
    result += text[i];
    if (text[i] == '\n') result += "    ";
  }
  return result;
}

Status failure(const ChildPlan& plan, const Outcome& outcome, int status) {
  std::string why;
  if (outcome.stopped) {
    why = "was ended by a signal to dt bench";
  } else if (!outcome.in_time) {
    why = format("was not done after %lld s and was ended; raise --timeout or lower -e",
                 static_cast<long long>(plan.timeout_ms / 1000));
  } else if (WIFSIGNALED(status)) {
    why = "was killed by " + signal_name(WTERMSIG(status));
  } else {
    why = format("ended with exit code %d", WEXITSTATUS(status));
  }
  const std::string last = tail(outcome.err.empty() ? outcome.out : outcome.err);
  const Code code = outcome.stopped ? Code::kAborted : Code::kSystem;
  return Status(
      code, plan.command.front() + " " + why +
                (last.empty() ? " and printed nothing" : "; the last lines it printed:" + last));
}

}  // namespace

std::string program_path(const std::string& name) {
  if (name.find('/') != std::string::npos) return access(name.c_str(), X_OK) == 0 ? name : "";
  const char* const variable = getenv("PATH");
  const std::string path = variable != nullptr ? variable : "/usr/local/bin:/usr/bin:/bin";
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const std::string file = path.substr(begin, end - begin) + "/" + name;
    if (access(file.c_str(), X_OK) == 0) return file;
    begin = end + 1;
  }
  return {};
}

HeldSignals::HeldSignals() {
  sigset_t held = stopping_signals();
  for (const int signal : kStoppingSignals) {
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler == SIG_IGN) sigdelset(&held, signal);
  }
  sigprocmask(SIG_BLOCK, &held, &before_);
}

HeldSignals::~HeldSignals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

Result<std::string> run_child(const ChildPlan& plan) {
  const std::string path = program_path(plan.command.front());
  if (path.empty()) {
    return Status(Code::kSystem, plan.command.front() + " is not installed or not in PATH");
  }
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  DT_TRY_VALUE(Pipe out, make_pipe());
  DT_TRY_VALUE(Pipe err, make_pipe());
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return Status(Code::kSystem, "cannot start a process: " + errno_text(errno));
  if (child == 0) become(plan, path, parent, out, err);
  out.write.reset();
  err.write.reset();
  const Fd pidfd = open_pidfd(child);
  const Fd signals = open_signalfd();
  Outcome outcome;
  outcome.in_time =
      pidfd.is_open() &&
      collect(pidfd, signals, Clock::now() + std::chrono::milliseconds(plan.timeout_ms), &out, &err,
              &outcome);
  if (!outcome.in_time) {
    kill(child, SIGTERM);
    if (!pidfd.is_open() || !collect(pidfd, Fd(), Clock::now() + std::chrono::milliseconds(kStopMs),
                                     &out, &err, &outcome)) {
      kill(child, SIGKILL);
    }
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  kill_descendants();
  if (!outcome.in_time || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return failure(plan, outcome, status);
  }
  return outcome.out;
}

}  // namespace dt::cli::bench
