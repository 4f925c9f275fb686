// SPDX-License-Identifier: Apache-2.0
#include "cli/run/report.h"

#include <sys/wait.h>

#include <utility>

#include "base/status.h"
#include "cli/command.h"
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

// "libdt.so.0" of "./hello: error while loading shared libraries: libdt.so.0: cannot open shared
// object file: No such file or directory", and of what dlopen() and Python say; otherwise empty.
std::string missing_library(const std::string& line) {
  const size_t end = line.find(": cannot open shared object file");
  if (end == std::string::npos) return {};
  const std::string name = line.substr(0, end);
  const size_t colon = name.rfind(": ");
  return colon == std::string::npos ? name : name.substr(colon + 2);
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

std::string how_text(const RankEnd& end) {
  return format("%s after %.1f s", end.how().c_str(),
                static_cast<double>(end.ended_ns - end.started_ns) / 1e9);
}

std::string end_line(const std::string& who, const RankEnd& end, const std::string& host) {
  return format("%s (host %s pid %d) %s", who.c_str(), host.c_str(), end.pid,
                how_text(end).c_str());
}

std::string first_failure_line(int rank, const RankEnd& end, const std::string& host) {
  return end_line("rank " + std::to_string(rank), end, host);
}

std::string why_not_run(const RankEnd& end, const std::vector<std::string>& last_lines) {
  if (!end.failed() || WIFSIGNALED(end.wait_status)) return {};
  const bool not_found = end.exit_code() == kExitNotFound;
  for (size_t i = last_lines.size(); i > 0; --i) {
    const std::string library = missing_library(last_lines[i - 1]);
    if (!library.empty()) {
      return "; the loader did not find " + library +
             ": link the program with -Wl,-rpath,FOLDER (pkg-config --libs dt does for libdt), or "
             "add its folder to LD_LIBRARY_PATH";
    }
    if (!not_found) break;  // only a last line is the reason; one before may be a mere warning
  }
  if (!not_found) return {};
  return "; 127 means that a program, or a shared library that it needs, was not found";
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
