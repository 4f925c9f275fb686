// SPDX-License-Identifier: Apache-2.0
#include "cli/run/signals.h"

#include <sys/signalfd.h>

#include <cerrno>

namespace dt::cli {
namespace {

constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP};

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

Result<Signals> Signals::block() {
  Signals signals;
  sigset_t heard;
  sigemptyset(&heard);
  sigaddset(&heard, SIGCHLD);
  for (const int signal : kPassedOn) {
    if (!is_ignored(signal)) sigaddset(&heard, signal);
  }
  sigset_t blocked = heard;
  // These turn into EPIPE and EIO, and into output from the background.
  for (const int signal : {SIGPIPE, SIGTTIN, SIGTTOU}) sigaddset(&blocked, signal);
  // With SIGCHLD ignored the kernel would reap the ranks and forget how they ended.
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  if (sigaction(SIGCHLD, &standard, nullptr) != 0 ||
      sigprocmask(SIG_BLOCK, &blocked, &signals.original_mask_) != 0) {
    return Status(Code::kSystem, "cannot set up signals: " + errno_text(errno));
  }
  signals.fd_.reset(signalfd(-1, &heard, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.fd_.is_open()) {
    return Status(Code::kSystem, "cannot set up signals: " + errno_text(errno));
  }
  return signals;
}

int Signals::next() {
  signalfd_siginfo info;
  const ssize_t bytes = read(fd_.get(), &info, sizeof info);
  return bytes == static_cast<ssize_t>(sizeof info) ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace dt::cli
