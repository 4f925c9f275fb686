// SPDX-License-Identifier: Apache-2.0
// A job that has nothing to do wakes nobody but for its heartbeats.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <utility>

#include "../sanitizers.h"
#include "base/wait.h"
#include "dt_run.h"
#include "held_port.h"

using namespace dt::test;

namespace {

constexpr int64_t kBeatMs = 100;
constexpr int kLookMs = 2000;  // whoever wakes up less often costs nothing
constexpr int kLooks = 5;      // what was under way comes to its end, however busy the machine

struct Thread {
  std::string name;
  int64_t slept = 0;    ///< how often it gave its processor up
  int64_t stopped = 0;  ///< and how often it had to
};
/// By process and thread.
using Threads = std::map<std::pair<pid_t, pid_t>, Thread>;

/// What is written behind `key` in a status file.
std::string field(const std::string& status, const std::string& key) {
  const size_t at = status.find("\n" + key + ":\t");
  if (at == std::string::npos) return {};
  const size_t begin = at + key.size() + 3;
  return status.substr(begin, status.find('\n', begin) - begin);
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// Of a process and all that it has started.
void look_at(pid_t pid, Threads* out) {
  std::error_code ended;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", ended)) {
    const auto tid = static_cast<pid_t>(std::stol(task.path().filename().string()));
    const std::string status = "\n" + contents(task.path() / "status");
    Thread thread{field(status, "Name"), 0, 0};
    // ThreadSanitizer has a thread of its own in each process, which wakes up ten times a second.
    if (dt::test::kThreadSanitizer && tid != pid && !starts_with(thread.name, "dt-")) continue;
    const std::string slept = field(status, "voluntary_ctxt_switches");
    const std::string stopped = field(status, "nonvoluntary_ctxt_switches");
    if (slept.empty() || stopped.empty()) continue;  // it has just ended: another number of threads
    thread.slept = std::stoll(slept);
    thread.stopped = std::stoll(stopped);
    (*out)[{pid, tid}] = thread;
    std::string children = contents(task.path() / "children");
    for (size_t at = 0; at < children.size();) {
      const size_t end = children.find(' ', at);
      look_at(atoi(children.c_str() + at), out);
      at = end == std::string::npos ? children.size() : end + 1;
    }
  }
}

/// The agents of one job, one for each of its hosts.
class Job {
 public:
  Job(int hosts, int ranks_each, int64_t beat_ms) : ranks_(hosts * ranks_each) {
    for (int host = 0; host < hosts; ++host) {
      Strings command{required_variable("DT_COMMAND"), "run", "-n", std::to_string(ranks_each)};
      if (hosts > 1) {
        const Strings node{"--nnodes",     std::to_string(hosts),
                           "--node-rank",  std::to_string(host),
                           "--rendezvous", "127.0.0.1:" + std::to_string(port_.port())};
        command.insert(command.end(), node.begin(), node.end());
      }
      command.push_back(required_variable("RUN_PROGRAM"));
      command.push_back("idle");
      Process::Options options;
      options.environment = {"DT_HOST_ID=host" + std::to_string(host),
                             "DT_HEARTBEAT_INTERVAL_MS=" + std::to_string(beat_ms)};
      agents_.push_back(std::make_unique<Process>(command, options));
    }
    for (const auto& agent : agents_) {
      REQUIRE(agent->wait_for_output("] idle", static_cast<size_t>(ranks_each)));
    }
  }
  ~Job() {
    for (const auto& agent : agents_) agent->send(SIGTERM);
    for (const auto& agent : agents_) (void)agent->wait();
  }
  int ranks() const { return ranks_; }
  int hosts() const { return static_cast<int>(agents_.size()); }
  Threads threads() const {
    Threads all;
    for (const auto& agent : agents_) look_at(agent->pid(), &all);
    return all;
  }
  /// True if it is still there when they are over.
  bool lives_for_ms(int ms) const {
    std::vector<pid_t> pids;
    for (const auto& agent : agents_) pids.push_back(agent->pid());
    return !Watch(pids).all_ended(ms);
  }

 private:
  const int ranks_;
  HeldPort port_;
  std::vector<std::unique_ptr<Process>> agents_;
};

/// How often a thread may wake up in so many intervals between two heartbeats.
int64_t due(const std::string& thread, const Job& job, int64_t intervals) {
  // A rank gives its sign of life and gets that of the store.
  if (thread == "dt-io") return 2 * intervals;
  // Whoever serves a store hears each that has joined, besides.
  if (thread == "dt-store") return (job.ranks() + 2) * intervals;
  if (thread == "dt-agents") return (job.hosts() + 2) * intervals;
  return 0;
}

/// Those that woke up more often between two looks than they should.
Strings restless(const Threads& before, const Threads& after, const Job& job, int64_t intervals) {
  Strings found;
  if (before.size() != after.size()) {
    found.push_back("threads: first " + std::to_string(before.size()) + ", then " +
                    std::to_string(after.size()));
  }
  for (const auto& [ids, thread] : after) {
    const auto old = before.find(ids);
    if (old == before.end()) continue;
    const int64_t slept = thread.slept - old->second.slept;
    const int64_t stopped = thread.stopped - old->second.stopped;
    const int64_t most = due(thread.name, job, intervals);
    // Who runs for a heartbeat may be held up by others.
    if (slept <= most && (stopped == 0 || most > 0)) continue;
    found.push_back(thread.name + " of process " + std::to_string(ids.first) + ": " +
                    std::to_string(slept) + " and " + std::to_string(stopped) + " times, not " +
                    std::to_string(most));
  }
  return found;
}

void check_rest(const Job& job, int64_t beat_ms) {
  Strings found;
  for (int look = 0; look < kLooks; ++look) {
    const int64_t begin_ns = dt::monotonic_ns();
    const Threads before = job.threads();
    REQUIRE(job.lives_for_ms(kLookMs));
    const Threads after = job.threads();
    const int64_t ms = (dt::monotonic_ns() - begin_ns) / 1'000'000;
    // Each rank has its main thread, that of its heartbeats, and that of its works.
    CHECK(after.size() >= static_cast<size_t>(3 * job.ranks()));
    // One more that began before, and one that ends after.
    found = restless(before, after, job, beat_ms == 0 ? 0 : ms / beat_ms + 2);
    if (found.empty()) return;
  }
  for (const std::string& thread : found) FAIL_CHECK(thread);
}

}  // namespace

TEST_CASE("idle: without heartbeats no thread of a job wakes up at all, on one host") {
  check_rest(Job(1, 4, 0), 0);
}

TEST_CASE("idle: without heartbeats no thread of a job wakes up at all, on two hosts") {
  check_rest(Job(2, 2, 0), 0);
}

TEST_CASE("idle: with heartbeats only the threads that give and hear them wake up") {
  check_rest(Job(1, 4, kBeatMs), kBeatMs);
  check_rest(Job(2, 2, kBeatMs), kBeatMs);
}
