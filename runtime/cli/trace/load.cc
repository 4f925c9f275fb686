// SPDX-License-Identifier: Apache-2.0
#include "cli/trace/load.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <tuple>

#include "record/trace_file.h"

namespace dt::cli::trace {
namespace {

using Job = std::tuple<std::string, int32_t, uint64_t, int32_t>;  // id, attempt, session, size

Job job_of(const record::Trace& trace) {
  const record::Identity& it = trace.identity;
  return {it.job_id, it.attempt, it.session, it.world_size};
}

struct Weight {
  size_t traces = 0;
  int64_t latest_ns = 0;
  bool operator<(const Weight& other) const {
    return std::tie(traces, latest_ns) < std::tie(other.traces, other.latest_ns);
  }
};

}  // namespace

Loaded choose(std::vector<std::pair<std::string, record::Trace>> read) {
  std::map<Job, Weight> jobs;
  for (const auto& [path, trace] : read) {
    Weight& weight = jobs[job_of(trace)];
    ++weight.traces;
    weight.latest_ns = std::max(weight.latest_ns, trace.recorded.realtime_ns);
  }
  Loaded loaded;
  if (jobs.empty()) return loaded;
  const Job chosen = std::max_element(jobs.begin(), jobs.end(), [](const auto& a, const auto& b) {
                       return a.second < b.second;
                     })->first;
  // Of one rank the latest comes first.
  std::stable_sort(read.begin(), read.end(), [](const auto& a, const auto& b) {
    if (a.second.identity.rank != b.second.identity.rank) {
      return a.second.identity.rank < b.second.identity.rank;
    }
    return a.second.recorded.realtime_ns > b.second.recorded.realtime_ns;
  });
  for (auto& [path, trace] : read) {
    const record::Identity& it = trace.identity;
    if (job_of(trace) != chosen) {
      loaded.problems.push_back(format(
          "%s: of another job than the others: job \"%s\", attempt %d, rank %d of %d, "
          "host %s",
          path.c_str(), it.job_id.c_str(), it.attempt, it.rank, it.world_size, it.host.c_str()));
    } else if (!loaded.traces.empty() && loaded.traces.back().identity.rank == it.rank) {
      loaded.problems.push_back(
          format("%s: a second trace of rank %d, older than the other", path.c_str(), it.rank));
    } else {
      loaded.traces.push_back(std::move(trace));
    }
  }
  return loaded;
}

Result<Loaded> load(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> paths;
  auto entry = std::filesystem::directory_iterator(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (record::is_trace_file_name(entry->path().filename().string())) {
      paths.push_back(entry->path().string());
    }
  }
  if (error) return Status(Code::kConfig, directory + ": " + error.message());
  std::sort(paths.begin(), paths.end());
  std::vector<std::pair<std::string, record::Trace>> read;
  std::vector<std::string> problems;
  for (const std::string& path : paths) {
    Result<record::Trace> trace = record::read_trace(path);
    if (trace.ok()) {
      read.emplace_back(path, std::move(trace).value());
    } else {
      problems.push_back(trace.status().message());
    }
  }
  Loaded loaded = choose(std::move(read));
  loaded.problems.insert(loaded.problems.begin(), problems.begin(), problems.end());
  if (!loaded.traces.empty()) return loaded;
  std::string text = directory + ": no trace that can be read (rank-*.dttrace)";
  for (const std::string& problem : loaded.problems) text += "\n  " + problem;
  return Status(Code::kConfig, text);
}

}  // namespace dt::cli::trace
