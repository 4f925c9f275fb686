// SPDX-License-Identifier: Apache-2.0
#include "cli/trace/load.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>

#include "cli/trace/words.h"
#include "record/trace_file.h"

namespace dt::cli::trace {
namespace {

using Job = std::tuple<std::string, int32_t, uint64_t, int32_t>;  // id, attempt, session, size

Job job_of(const record::Trace& trace) {
  const record::Identity& it = trace.identity;
  return {it.job_id, it.attempt, it.session, it.world_size};
}

/// Jobs whose latest traces are this close together ended together.
constexpr int64_t kTogetherNs = int64_t{60} * 1'000'000'000;

struct Weight {
  size_t traces = 0;
  int64_t latest_ns = 0;         ///< when the last of its traces was written
  int64_t begin_ns = INT64_MAX;  ///< of its first operation that is recorded
};

void weigh(const record::Trace& trace, Weight* weight) {
  const record::Recorded& recorded = trace.recorded;
  ++weight->traces;
  weight->latest_ns = std::max(weight->latest_ns, recorded.realtime_ns);
  weight->begin_ns = std::min(weight->begin_ns, recorded.realtime_ns);
  for (const record::Entry& entry : recorded.entries) {
    weight->begin_ns = std::min(weight->begin_ns, realtime_of(trace, entry.enqueued_ns));
  }
}

using Jobs = std::map<Job, Weight>;

/// The id of the job with the latest trace. Of jobs that ended together, the one with most traces.
const std::string& latest_id(const Jobs& jobs) {
  int64_t latest_ns = 0;
  for (const auto& [job, weight] : jobs) latest_ns = std::max(latest_ns, weight.latest_ns);
  const auto rank_of = [&](const Weight& weight) {
    const bool is_late = weight.latest_ns >= latest_ns - kTogetherNs;
    return std::tuple(is_late, is_late ? weight.traces : 0, weight.latest_ns);
  };
  return std::get<0>(std::max_element(jobs.begin(), jobs.end(), [&](const auto& a, const auto& b) {
                       return rank_of(a.second) < rank_of(b.second);
                     })->first);
}

/// The last attempt of the run with the latest trace. An earlier run of the same name may have come
/// to a later attempt: all its traces are older than the other one's first operation.
const Job& last_attempt(const Jobs& jobs) {
  const Weight& latest =
      std::max_element(jobs.begin(), jobs.end(), [](const auto& a, const auto& b) {
        return a.second.latest_ns < b.second.latest_ns;
      })->second;
  const auto rank_of = [&](const std::pair<const Job, Weight>& each) {
    const Weight& weight = each.second;
    return std::tuple(weight.latest_ns >= latest.begin_ns, std::get<1>(each.first), weight.traces,
                      weight.latest_ns);
  };
  return std::max_element(jobs.begin(), jobs.end(),
                          [&](const auto& a, const auto& b) { return rank_of(a) < rank_of(b); })
      ->first;
}

}  // namespace

Loaded choose(std::vector<std::pair<std::string, record::Trace>> read,
              std::optional<int32_t> attempt) {
  Jobs all;
  Jobs wanted;  // of the attempt that is asked for
  for (const auto& [path, trace] : read) {
    weigh(trace, &all[job_of(trace)]);
    if (!attempt || trace.identity.attempt == *attempt) weigh(trace, &wanted[job_of(trace)]);
  }
  Loaded loaded;
  if (wanted.empty()) {
    for (const auto& [path, trace] : read) {
      loaded.problems.push_back(format("%s: of attempt %d", path.c_str(), trace.identity.attempt));
    }
    return loaded;
  }
  std::string id = latest_id(all);
  const auto of_id = [&](const auto& each) { return std::get<0>(each.first) == id; };
  if (std::none_of(wanted.begin(), wanted.end(), of_id)) id = latest_id(wanted);
  std::erase_if(wanted, [&](const auto& each) { return !of_id(each); });
  const Job chosen = last_attempt(wanted);
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
