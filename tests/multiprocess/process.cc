// SPDX-License-Identifier: Apache-2.0
#include "process.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/wait.h"

namespace dt::test {
namespace {

int pidfd_open(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

// A file that is read from the start, without a name.
int input_file(const std::string& input) {
  const int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, input.data(), input.size()) != static_cast<ssize_t>(input.size())) {
    abort();
  }
  lseek(fd, 0, SEEK_SET);
  return fd;
}

}  // namespace

Process::Process(const std::vector<std::string>& command, const Options& options)
    : silence_ms_(options.silence_ms) {
  int outputs[2];
  int errors[2] = {-1, -1};
  if (options.terminal) {
    winsize size{24, 80, 0, 0};
    if (openpty(&outputs[0], &outputs[1], nullptr, nullptr, &size) != 0) abort();
    for (const int fd : outputs) fcntl(fd, F_SETFD, FD_CLOEXEC);
  } else if (pipe2(outputs, O_CLOEXEC) != 0 || pipe2(errors, O_CLOEXEC) != 0) {
    abort();
  }
  const int in = input_file(options.input);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(in, 0);
    dup2(outputs[1], 1);
    dup2(options.terminal ? outputs[1] : errors[1], 2);
    syscall(SYS_close_range, 3u, ~0u, 0u);  // what this process was given by its own parent
    for (const std::string& variable : options.environment) {
      putenv(const_cast<char*>(variable.c_str()));
    }
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(in);
  close(outputs[1]);
  if (errors[1] >= 0) close(errors[1]);
  out_fd_ = outputs[0];
  err_fd_ = errors[0];
}

Process::~Process() {
  if (!reaped_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close_stdout();
  if (err_fd_ >= 0) close(err_fd_);
}

void Process::close_stdout() {
  if (out_fd_ >= 0) close(out_fd_);
  out_fd_ = -1;
}

// False when both have ended, or nothing came in time.
bool Process::read_more() {
  pollfd fds[2] = {{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}};
  if (out_fd_ < 0 && err_fd_ < 0) return false;
  if (poll(fds, 2, silence_ms_) <= 0) return false;
  char buffer[65536];
  for (int i = 0; i < 2; ++i) {
    if (fds[i].revents == 0) continue;
    const ssize_t bytes = read(fds[i].fd, buffer, sizeof buffer);
    if (bytes > 0) {
      (i == 0 ? out : err).append(buffer, static_cast<size_t>(bytes));
    } else {  // a terminal says EIO when its last user is gone
      close(fds[i].fd);
      (i == 0 ? out_fd_ : err_fd_) = -1;
    }
  }
  return true;
}

bool Process::wait_for_output(const std::string& text, size_t count) {
  return wait_for(out, text, count);
}

bool Process::wait_for_error(const std::string& text) { return wait_for(err, text, 1); }

bool Process::wait_for(const std::string& stream, const std::string& text, size_t count) {
  while (count_of(stream, text) < count) {
    if (!read_more()) return false;
  }
  return true;
}

int Process::wait() {
  while (read_more()) {
  }
  if (out_fd_ >= 0 || err_fd_ >= 0) return -1;
  const int ended = pidfd_open(pid_);
  pollfd ready{ended, POLLIN, 0};
  const bool in_time = poll(&ready, 1, silence_ms_) == 1;
  close(ended);
  if (!in_time) return -1;
  int status = 0;
  waitpid(pid_, &status, 0);
  reaped_ = true;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void Process::send(int signal) const { kill(pid_, signal); }

Watch::Watch(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) {
    const int fd = pidfd_open(pid);
    if (fd >= 0) fds_.push_back(fd);  // else it has ended already
  }
}

Watch::~Watch() {
  for (const int fd : fds_) close(fd);
}

bool Watch::all_ended(int timeout_ms) const {
  const Deadline deadline = Deadline::after_ms(timeout_ms);
  for (const int fd : fds_) {
    pollfd ready{fd, POLLIN, 0};
    const int64_t left_ms = deadline.remaining_ms();
    if (poll(&ready, 1, left_ms > 0 ? static_cast<int>(left_ms) : 0) != 1) return false;
  }
  return true;
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

std::string content_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      lines.push_back(text.substr(begin) + "(no line end)");
      break;
    }
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

bool starts_with(const std::string& text, const std::string& beginning) {
  return text.compare(0, beginning.size(), beginning) == 0;
}

}  // namespace dt::test
