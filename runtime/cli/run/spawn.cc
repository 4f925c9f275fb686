// SPDX-License-Identifier: Apache-2.0
#include "cli/run/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/numa.h"
#include "cli/run/fd.h"
#include "cli/run/guardian.h"

namespace dt::cli {
namespace {

constexpr int kExecTimeoutMs = 60'000;  // a program on a file system that does not answer

struct Prepared {
  const SpawnPlan& plan;
  std::vector<char*> args;
  std::vector<char*> environment;
  pid_t agent;
  int error_fd;
  std::vector<unsigned long> cpu_mask;  // bits as in cpu_set_t; empty: not bound
};

// What the child tells when it could not run the program.
struct Failure {
  int error = 0;
  bool binding = false;
};

std::vector<unsigned long> mask_of(const std::vector<int>& cpus) {
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask;
  for (const int cpu : cpus) {
    const size_t word = static_cast<size_t>(cpu) / kBits;
    if (mask.size() <= word) mask.resize(word + 1);
    mask[word] |= 1ul << (static_cast<size_t>(cpu) % kBits);
  }
  return mask;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& string : strings) result.push_back(const_cast<char*>(string.c_str()));
  result.push_back(nullptr);
  return result;
}

// Between fork and exec of a process with threads: async-signal-safe calls only.
[[noreturn]] void become_rank(const Prepared& prepared) {
  const SpawnPlan& plan = prepared.plan;
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != prepared.agent) _exit(127);  // it died before the line above
  Guardian::announce(plan.guardian_fd, getpid());
  Failure failure;
  int& error = failure.error;
  const int fds[] = {plan.stdin_fd, plan.stdout_fd, plan.stderr_fd};
  for (int fd = 0; fd <= 2; ++fd) {
    if (fds[fd] != fd && dup2(fds[fd], fd) < 0) error = errno;
  }
  if (error == 0 && plan.kept_fd >= 0 && fcntl(plan.kept_fd, F_SETFD, 0) != 0) error = errno;
  const std::vector<unsigned long>& mask = prepared.cpu_mask;
  if (error == 0 && !mask.empty() &&
      sched_setaffinity(0, mask.size() * sizeof(unsigned long),
                        reinterpret_cast<const cpu_set_t*>(mask.data())) != 0) {
    error = errno;
    failure.binding = true;
  }
  if (error == 0) {
    setrlimit(RLIMIT_NOFILE, &plan.open_files);
    sigprocmask(SIG_SETMASK, &plan.signal_mask, nullptr);
    execve(plan.program.c_str(), prepared.args.data(), prepared.environment.data());
    error = errno;
  }
  [[maybe_unused]] const ssize_t written = write(prepared.error_fd, &failure, sizeof failure);
  _exit(127);
}

Status exec_error(const std::string& program, int error) {
  std::string text = "cannot run " + program + ": " + errno_text(error);
  if (error == ENOEXEC) text += "; a script needs a first line such as #!/bin/sh";
  if (error == ENOENT) text += "; is the interpreter in its first line installed?";
  if (error == E2BIG) text += "; the arguments and environment variables are too long";
  return Status(Code::kSystem, text);
}

// The error pipe closes when exec succeeds, and carries a Failure when it does not.
Status await_exec(const SpawnPlan& plan, int error_fd, pid_t pid) {
  pollfd ready{error_fd, POLLIN, 0};
  int count;
  do {
    count = poll(&ready, 1, kExecTimeoutMs);
  } while (count < 0 && errno == EINTR);
  const int poll_error = errno;
  Failure failure;
  ssize_t bytes = 0;
  if (count == 1) bytes = read(error_fd, &failure, sizeof failure);
  if (count == 1 && bytes <= 0) return {};
  kill(pid, SIGKILL);
  // After the time-out it may not die even so: the agent finds it among its children at the end.
  if (count == 1) {
    waitpid(pid, nullptr, 0);
    Guardian::announce(plan.guardian_fd, -pid);  // it has announced itself
  }
  if (failure.binding) {
    return Status(Code::kSystem, "cannot bind " + plan.program + " to the processors " +
                                     cpu_list_text(plan.cpus) + ": " + errno_text(failure.error) +
                                     "; leave --bind out");
  }
  if (count < 0) {
    return Status(Code::kSystem,
                  "cannot wait for " + plan.program + " to start: " + errno_text(poll_error));
  }
  if (count == 0) {
    return Status(Code::kSystem,
                  format("the kernel has not started %s within %d s; does the file system that it "
                         "is on answer? Try: cat %s > /dev/null",
                         plan.program.c_str(), kExecTimeoutMs / 1000, plan.program.c_str()));
  }
  return exec_error(plan.program, failure.error);
}

enum class Found { kNo, kNotAFile, kNotExecutable, kYes };

Found look_at(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return Found::kNo;
  if (!S_ISREG(info.st_mode)) return Found::kNotAFile;
  return access(path.c_str(), X_OK) == 0 ? Found::kYes : Found::kNotExecutable;
}

}  // namespace

Result<pid_t> spawn(const SpawnPlan& plan) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return Status(Code::kSystem, "no pipe for " + plan.program + ": " + errno_text(errno));
  }
  Fd reader(ends[0]);
  Fd writer(ends[1]);
  const Prepared prepared{plan,     pointers(plan.args), pointers(plan.environment),
                          getpid(), writer.get(),        mask_of(plan.cpus)};
  const pid_t pid = fork();
  if (pid < 0) {
    return Status(Code::kSystem, "cannot start " + plan.program + ": " + errno_text(errno) +
                                     "; is the limit of processes reached (ulimit -u)?");
  }
  if (pid == 0) become_rank(prepared);
  writer.reset();
  DT_TRY(await_exec(plan, reader.get(), pid));
  return pid;
}

Result<std::string> find_program(const std::string& name) {
  if (name.empty()) return Status(Code::kInvalidArgument, "the program's name is empty");
  Found worst = Found::kNo;
  std::string where = name;
  if (name.find('/') != std::string::npos) {
    worst = look_at(name);
    if (worst == Found::kYes) return name;
    if (worst == Found::kNo) {
      return Status(Code::kInvalidArgument, "program " + name + " not found");
    }
  } else {
    const char* variable = getenv("PATH");
    const std::string path = variable != nullptr ? variable : "/usr/local/bin:/usr/bin:/bin";
    for (size_t begin = 0; begin <= path.size();) {
      const size_t end = std::min(path.find(':', begin), path.size());
      const std::string folder = path.substr(begin, end - begin);
      const std::string candidate = folder.empty() ? "./" + name : folder + "/" + name;
      const Found found = look_at(candidate);
      if (found == Found::kYes) return candidate;
      if (found == Found::kNotExecutable) worst = found, where = candidate;
      begin = end + 1;
    }
  }
  if (worst == Found::kNotExecutable) {
    return Status(Code::kInvalidArgument,
                  "program " + where +
                      " is not executable; chmod +x it, or put its interpreter "
                      "(python3, java, ...) in front");
  }
  if (worst == Found::kNotAFile) {
    return Status(Code::kInvalidArgument, "program " + name + " is a folder, not a file");
  }
  const std::string next = look_at("./" + name) == Found::kNo
                               ? "give its path, or correct PATH"
                               : "there is a file of that name here: run it as ./" + name;
  return Status(Code::kInvalidArgument, "program " + name + " not found in PATH; " + next);
}

}  // namespace dt::cli
