// SPDX-License-Identifier: Apache-2.0
#include "cli/run/guardian.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <vector>

namespace dt::cli {
namespace {

// What goes through the pipe is one int32 each: a group, a group negated when it is empty, or this.
constexpr int32_t kGoodbye = 0;
constexpr int kGoodbyeTimeoutMs = 2000;  // it only has to leave a read()
constexpr int kMostFiles = 65'536;       // of an agent that has just started

bool tell(int fd, int32_t word) {
  ssize_t written;
  do {
    written = write(fd, &word, sizeof word);  // below PIPE_BUF: whole or not at all
  } while (written < 0 && errno == EINTR);
  return written == static_cast<ssize_t>(sizeof word);
}

// Waits without a deadline: the kernel closes the pipe when the agent is gone, however it went.
[[noreturn]] void guard(int pipe_fd) {
  setsid();
  prctl(PR_SET_NAME, "dt-guardian");
  // It must hold open nothing that somebody else waits for: no output pipe, no working directory.
  const int null = open("/dev/null", O_RDWR);
  for (int fd = 0; fd <= 2; ++fd) dup2(null, fd);
  dup2(pipe_fd, 3);
  if (syscall(SYS_close_range, 4u, ~0u, 0u) != 0) {  // before Linux 5.9, or not allowed
    rlimit most{};
    const bool known = getrlimit(RLIMIT_NOFILE, &most) == 0 && most.rlim_cur < kMostFiles;
    for (int fd = 4; fd < (known ? static_cast<int>(most.rlim_cur) : kMostFiles); ++fd) close(fd);
  }
  if (chdir("/") != 0) _exit(1);

  std::vector<pid_t> groups;
  for (;;) {
    int32_t word = kGoodbye;
    const ssize_t bytes = read(3, &word, sizeof word);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes != static_cast<ssize_t>(sizeof word)) break;
    if (word == kGoodbye) _exit(0);
    if (word > 0) groups.push_back(word);
    if (word < 0) groups.erase(std::remove(groups.begin(), groups.end(), -word), groups.end());
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  _exit(0);
}

}  // namespace

Result<std::unique_ptr<Guardian>> Guardian::start() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return Status(Code::kSystem, "dt run: no pipe for the guardian: " + errno_text(errno));
  }
  Fd reader(ends[0]);
  Fd writer(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) {
    return Status(Code::kSystem, "dt run: cannot start the guardian: " + errno_text(errno) +
                                     "; is the limit of processes reached (ulimit -u)?");
  }
  if (pid == 0) {
    writer.reset();  // or it would never see the end of its own pipe
    guard(reader.get());
  }
  return std::unique_ptr<Guardian>(new Guardian(pid, std::move(writer)));
}

bool Guardian::announce(int fd, pid_t group) { return tell(fd, group); }

void Guardian::forget(pid_t group) { tell(pipe_.get(), -group); }

Guardian::~Guardian() {
  if (pid_ < 0) return;
  tell(pipe_.get(), kGoodbye);
  Fd process(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  pollfd ended{process.get(), POLLIN, 0};
  if (!process.is_open() || poll(&ended, 1, kGoodbyeTimeoutMs) != 1) kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace dt::cli
