// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace dt::test {

using Strings = std::vector<std::string>;

inline constexpr int kPatienceMs = 30'000;  ///< far above what a loaded machine needs

/// A program under test, its output collected. Every wait has a deadline of its own, after which it
/// counts as failed.
class Process {
 public:
  struct Options {
    bool terminal = false;                 ///< stdout and stderr are one pseudo-terminal
    std::string input;                     ///< what it reads, then end of file
    std::vector<std::string> environment;  ///< "NAME=value", added to this process's
    int silence_ms = 30'000;               ///< how long it may print nothing: far above any need
  };

  explicit Process(const std::vector<std::string>& command) : Process(command, Options()) {}
  Process(const std::vector<std::string>& command, const Options& options);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  /// Reads until stdout has `count` occurrences of `text`; false at the deadline or at its end.
  bool wait_for_output(const std::string& text, size_t count = 1);
  /// The same of stderr.
  bool wait_for_error(const std::string& text);
  /// Reads all there is and waits for the end. As a shell says it; -1 at the deadline.
  int wait();
  void send(int signal) const;
  /// Nobody reads its stdout from now on.
  void close_stdout();

  std::string out;  ///< of a terminal: both
  std::string err;

 private:
  bool wait_for(const std::string& stream, const std::string& text, size_t count);
  bool read_more();

  const int silence_ms_;
  pid_t pid_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  int exit_code_ = -1;
  bool reaped_ = false;
};

/// Descriptors that tell when processes have ended, also those that are not ours.
class Watch {
 public:
  explicit Watch(const std::vector<pid_t>& pids);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  /// True when all have ended before the time is over.
  bool all_ended(int timeout_ms) const;

 private:
  std::vector<int> fds_;
};

std::string host_name();
std::string content_of(const std::filesystem::path& file);
size_t count_of(const std::string& text, const std::string& part);
std::vector<std::string> lines_of(const std::string& text);
bool starts_with(const std::string& text, const std::string& beginning);

}  // namespace dt::test
