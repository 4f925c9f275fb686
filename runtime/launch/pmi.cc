// SPDX-License-Identifier: Apache-2.0
// The order of the pairs and the remarks in msg= differ between Hydra and Slurm: answers are read
// by name.
#include "launch/pmi.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "config/value.h"
#include "launch/variables.h"

namespace dt::launch {
namespace {

constexpr size_t kLongestLine = 4096;  // PMI-1 allows 1024 for a value
constexpr const char* kPmiKey = "dt.store";
constexpr int64_t kLookMs = 100;  // how soon an interrupt is seen
constexpr const char* kPmiNext =
    "; set MASTER_ADDR and MASTER_PORT to the host of rank 0 and a free port there, also where the "
    "program calls MPI_Init or starts a second job, since PMI serves one of them";

Status pmi_failed(const std::string& what) {
  return launch_error("no_rendezvous", "the launcher's PMI service " + what + kPmiNext);
}

/// The value of `name` in "cmd=x name=value ...", empty when it is not there.
std::string value_of(const std::string& line, const std::string& name) {
  size_t at = 0;
  while (at < line.size()) {
    const size_t end = std::min(line.find(' ', at), line.size());
    if (line.compare(at, name.size(), name) == 0 && line[at + name.size()] == '=') {
      return line.substr(at + name.size() + 1, end - at - name.size() - 1);
    }
    at = end + 1;
  }
  return {};
}

/// For a message: without what may be a token, which comes and goes here as a part of a value.
std::string without_digits(const std::string& line) {
  constexpr size_t kLongestShown = 15;
  constexpr const char* kDigits = "0123456789abcdefABCDEF";
  std::string text;
  for (size_t at = 0; at < line.size();) {
    const size_t end = std::min(line.find_first_not_of(kDigits, at), line.size());
    text += end - at > kLongestShown ? "..." : line.substr(at, end - at);
    if (end < line.size()) text += line[end];
    at = end + 1;
  }
  return config::quoted(text);
}

}  // namespace

Status PmiClient::wait_for(short events) const {
  while (!wait_.deadline.passed()) {
    if (wait_.interrupted()) return wait_.interrupt->status();
    pollfd entry{fd_, events, 0};
    const int ready =
        poll(&entry, 1, static_cast<int>(std::min(wait_.deadline.remaining_ms(), kLookMs)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR)
      return pmi_failed("cannot be waited for: " + errno_text(errno));
  }
  return Status(
      Code::kTimeout,
      "rendezvous: not all ranks came to the exchange over PMI in time; MASTER_ADDR and "
      "MASTER_PORT may be set on some hosts only: mpirun -x MASTER_ADDR -x MASTER_PORT carries "
      "them to all; look at the ranks that printed nothing, or raise rendezvous.timeout_ms");
}

Status PmiClient::send(const std::string& line) const {
  std::string text = line + "\n";
  while (!text.empty()) {
    DT_TRY(wait_for(POLLOUT));
    const ssize_t sent = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      text.erase(0, static_cast<size_t>(sent));
    } else if (sent < 0 && errno != EINTR && errno != EAGAIN) {
      return pmi_failed(
          format("(PMI_FD=%d) cannot be written to: %s", fd_, errno_text(errno).c_str()));
    }
  }
  return {};
}

Result<std::string> PmiClient::receive() {
  for (;;) {
    const size_t end = received_.find('\n');
    if (end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    if (received_.size() > kLongestLine) return pmi_failed("sent a line without an end");
    DT_TRY(wait_for(POLLIN));
    char buffer[1024];
    const ssize_t got = recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got > 0) {
      received_.append(buffer, static_cast<size_t>(got));
    } else if (got == 0) {
      return pmi_failed("has closed the connection");
    } else if (errno != EINTR && errno != EAGAIN) {
      return pmi_failed(format("(PMI_FD=%d) cannot be read: %s", fd_, errno_text(errno).c_str()));
    }
  }
}

Result<std::string> PmiClient::ask(const std::string& line, const char* expected) {
  DT_TRY(send(line));
  DT_TRY_VALUE(std::string answer, receive());
  const std::string code = value_of(answer, "rc");
  if (value_of(answer, "cmd") != expected || (!code.empty() && code != "0")) {
    return pmi_failed("answered " + without_digits(answer) + " to " + without_digits(line));
  }
  return answer;
}

Result<std::string> PmiClient::exchange(int32_t rank, const std::string& mine) {
  DT_TRY(ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init").status());
  DT_TRY(ask("cmd=get_maxes", "maxes").status());
  DT_TRY_VALUE(const std::string kvs, ask("cmd=get_my_kvsname", "my_kvsname"));
  const std::string space = "kvsname=" + value_of(kvs, "kvsname") + " key=" + kPmiKey;
  if (rank == 0) DT_TRY(ask("cmd=put " + space + " value=" + mine, "put_result").status());
  DT_TRY(ask("cmd=barrier_in", "barrier_out").status());
  DT_TRY_VALUE(const std::string answer, ask("cmd=get " + space, "get_result"));
  DT_TRY(ask("cmd=finalize", "finalize_ack").status());
  return value_of(answer, "value");
}

}  // namespace dt::launch
