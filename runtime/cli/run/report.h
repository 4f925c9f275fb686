// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dt::cli {

/// How one rank ended.
struct RankEnd {
  pid_t pid = 0;
  int64_t started_ns = 0;  ///< monotonic
  int64_t ended_ns = 0;    ///< 0 while it runs
  int wait_status = 0;     ///< of waitpid, once it has ended
  int64_t lost_ns = 0;     ///< when the job took it for lost, while it ran; 0: never
  bool stopped = false;    ///< as by SIGSTOP, when the ranks were ended

  bool has_ended() const { return ended_ns != 0; }
  bool failed() const { return has_ended() && wait_status != 0; }
  bool killed_by(int signal) const;
  /// As a shell says it: the exit code, or 128 + signal.
  int exit_code() const;
  /// "killed by SIGKILL" or "exited with code 7".
  std::string how() const;
};

/// "killed by SIGKILL after 41.2 s".
std::string how_text(const RankEnd& end);
/// "WHO (host n1 pid 811) killed by SIGKILL after 41.2 s".
std::string end_line(const std::string& who, const RankEnd& end, const std::string& host);
/// "rank 3 (host n1 pid 811) killed by SIGKILL after 41.2 s".
std::string first_failure_line(int rank, const RankEnd& end, const std::string& host);

/// What is behind exit code 127 and a shared library that was not found, by the rank's last lines,
/// and what to do: "; ..." for the end of the line above, or empty.
std::string why_not_run(const RankEnd& end, const std::vector<std::string>& last_lines);

/// "7 ranks ended because of it: 0-2, 4-6 exited with code 1; 7 killed by SIGTERM": all that failed
/// but `first`; empty when none did.
std::string followers_line(const std::vector<RankEnd>& ends, int first);

/// "ranks 0-3 killed by SIGTERM; rank 4 exited with code 1"
std::string outcome_list(const std::vector<RankEnd>& ends, int except);

}  // namespace dt::cli
