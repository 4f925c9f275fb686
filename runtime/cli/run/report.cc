// SPDX-License-Identifier: Apache-2.0
#include "cli/run/report.h"

#include <sys/wait.h>

#include <utility>

#include "base/status.h"
#include "cli/run/processes.h"

namespace dt::cli {
namespace {

// "0-2, 5"
std::string ranges(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace

bool RankEnd::killed_by(int signal) const {
  return has_ended() && WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == signal;
}

int RankEnd::exit_code() const {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string RankEnd::how() const {
  if (WIFSIGNALED(wait_status)) return "killed by " + signal_name(WTERMSIG(wait_status));
  return format("exited with code %d", WEXITSTATUS(wait_status));
}

std::string first_failure_line(int rank, const RankEnd& end, const std::string& host) {
  return format("rank %d (host %s pid %d) %s after %.1f s", rank, host.c_str(), end.pid,
                end.how().c_str(), static_cast<double>(end.ended_ns - end.started_ns) / 1e9);
}

std::string outcome_list(const std::vector<RankEnd>& ends, int except) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;  // in the order of their first rank
  for (size_t i = 0; i < ends.size(); ++i) {
    const int rank = static_cast<int>(i);
    if (rank == except || !ends[i].failed()) continue;
    const std::string how = ends[i].how();
    size_t at = 0;
    while (at < groups.size() && groups[at].first != how) ++at;
    if (at == groups.size()) groups.emplace_back(how, std::vector<int>());
    groups[at].second.push_back(rank);
  }
  std::string text;
  for (const auto& group : groups) {
    if (!text.empty()) text += "; ";
    text +=
        (group.second.size() == 1 ? "rank " : "ranks ") + ranges(group.second) + " " + group.first;
  }
  return text;
}

std::string followers_line(const std::vector<RankEnd>& ends, int first) {
  int count = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    if (static_cast<int>(i) != first && ends[i].failed()) ++count;
  }
  if (count == 0) return {};
  return format("%d rank%s ended because of it: ", count, count == 1 ? "" : "s") +
         outcome_list(ends, first);
}

}  // namespace dt::cli
