// SPDX-License-Identifier: Apache-2.0
#include "cli/run/stdin_relay.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace dt::cli {

Result<StdinRelay> StdinRelay::create(int stdin_fd) {
  StdinRelay relay;
  relay.stdin_fd_ = stdin_fd;
  if (isatty(stdin_fd) != 1) return relay;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return Status(Code::kSystem, "no pipe for rank 0's input: " + errno_text(errno));
  }
  relay.child_end_.reset(ends[0]);
  relay.agent_end_.reset(ends[1]);
  fcntl(ends[1], F_SETFL, O_NONBLOCK);
  return relay;
}

void StdinRelay::on_readable() {
  char buffer[4096];
  const ssize_t bytes = read(stdin_fd_, buffer, sizeof buffer);
  if (bytes > 0) {
    pending_.assign(buffer, static_cast<size_t>(bytes));
    on_writable();
  } else if (bytes < 0 && errno == EIO) {
    reading_ = false;  // the terminal belongs to another job now
  } else if (bytes == 0 || (errno != EAGAIN && errno != EINTR)) {
    agent_end_.reset();  // control-D: the end for rank 0 too
  }
}

void StdinRelay::on_writable() {
  const ssize_t bytes = write(agent_end_.get(), pending_.data(), pending_.size());
  if (bytes > 0) {
    pending_.erase(0, static_cast<size_t>(bytes));
  } else if (errno != EAGAIN && errno != EINTR) {
    pending_.clear();
    agent_end_.reset();  // rank 0 does not read
  }
}

}  // namespace dt::cli
