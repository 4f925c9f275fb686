// SPDX-License-Identifier: Apache-2.0
#include "cli/trace/load.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
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

void weigh(const record::Trace& trace, Weight* weight) {
  ++weight->traces;
  weight->latest_ns = std::max(weight->latest_ns, trace.recorded.realtime_ns);
}

std::string heaviest(const std::map<std::string, Weight>& ids) {
  return std::max_element(ids.begin(), ids.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

}  // namespace

Loaded choose(std::vector<std::pair<std::string, record::Trace>> read,
              std::optional<int32_t> attempt) {
  std::map<std::string, Weight> ids;
  std::map<Job, Weight> jobs;
  for (const auto& [path, trace] : read) {
    weigh(trace, &ids[trace.identity.job_id]);
    if (!attempt || trace.identity.attempt == *attempt) weigh(trace, &jobs[job_of(trace)]);
  }
  Loaded loaded;
  if (jobs.empty()) {
    for (const auto& [path, trace] : read) {
      loaded.problems.push_back(format("%s: of attempt %d", path.c_str(), trace.identity.attempt));
    }
    return loaded;
  }
  const std::string id = heaviest(ids);
  const auto rank_of = [&](const std::pair<const Job, Weight>& each) {
    const auto& [job_id, job_attempt, session, size] = each.first;
    const bool wanted = job_id == id;
    return std::tuple(wanted, wanted ? job_attempt : 0, each.second);
  };
  const Job chosen = std::max_element(jobs.begin(), jobs.end(), [&](const auto& a, const auto& b) {
                       return rank_of(a) < rank_of(b);
                     })->first;
  std::set<int32_t> others;
  // Of one rank the latest comes first.
  std::stable_sort(read.begin(), read.end(), [](const auto& a, const auto& b) {
    if (a.second.identity.rank != b.second.identity.rank) {
      return a.second.identity.rank < b.second.identity.rank;
    }
    return a.second.recorded.realtime_ns > b.second.recorded.realtime_ns;
  });
  for (auto& [path, trace] : read) {
    const record::Identity& it = trace.identity;
    if (it.job_id == std::get<0>(chosen) && it.attempt != std::get<1>(chosen)) {
      others.insert(it.attempt);
    } else if (job_of(trace) != chosen) {
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
  loaded.other_attempts.assign(others.begin(), others.end());
  return loaded;
}

Result<Loaded> load(const std::string& directory, std::optional<int32_t> attempt) {
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
  Loaded loaded = choose(std::move(read), attempt);
  loaded.problems.insert(loaded.problems.begin(), problems.begin(), problems.end());
  if (!loaded.traces.empty()) return loaded;
  std::string text = directory + ": no trace that can be read (rank-*.dttrace)";
  for (const std::string& problem : loaded.problems) text += "\n  " + problem;
  return Status(Code::kConfig, text);
}

}  // namespace dt::cli::trace
