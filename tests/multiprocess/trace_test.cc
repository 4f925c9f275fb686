// SPDX-License-Identifier: Apache-2.0
// Real ranks that go wrong in one way each: the traces that they leave name the rank and the way.
#include <doctest/doctest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "dt_run.h"
#include "held_port.h"

using namespace dt::test;
using nlohmann::json;

namespace {

constexpr int kRanks = 3;

struct TraceFolder {
  TraceFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "dt-trace-job-XXXXXX";
    path = mkdtemp(pattern.data());
  }
  ~TraceFolder() { std::filesystem::remove_all(path); }
  std::string path;
};

/// Three ranks in one mode; rank 0 serves the store.
struct TracedJob {
  TracedJob(const std::string& mode, const std::string& folder, const std::string& timeout_ms) {
    const HeldPort held;
    port = held.port();
    for (int rank = 0; rank < kRanks; ++rank) {
      Process::Options options;
      options.silence_ms = 60'000;  // a deadline is noticed late where twenty programs share a core
      options.environment = {"DT_RANK=" + std::to_string(rank),
                             "DT_WORLD_SIZE=3",
                             "DT_MASTER_ADDR=127.0.0.1",
                             "DT_MASTER_PORT=" + std::to_string(port),
                             "DT_COLLECTIVE_TIMEOUT_MS=" + timeout_ms,
                             "DT_TRACE_DIR=" + folder,
                             "DT_JOB_ID=traced"};
      ranks.push_back(std::make_unique<Process>(
          std::vector<std::string>{required_variable("RUN_PROGRAM"), mode}, options));
    }
    for (auto& rank : ranks) REQUIRE(rank->wait_for_output("ready "));
  }
  void kill(int rank, int signal) const { ranks[static_cast<size_t>(rank)]->send(signal); }
  void require_end(int rank, int code) {
    Process& process = *ranks[static_cast<size_t>(rank)];
    const int got = process.wait();
    INFO(process.out);
    INFO(process.err);
    REQUIRE(got == code);
  }

  int port = 0;
  std::vector<std::unique_ptr<Process>> ranks;
};

json report_of(const std::string& folder, const std::string& slow_ms = "1000") {
  Process report(
      {required_variable("DT_COMMAND"), "trace", "report", folder, "--json", "--slow-ms", slow_ms});
  const int code = report.wait();
  INFO(report.err);
  REQUIRE(code == 0);
  const json found = json::parse(report.out, nullptr, false);
  REQUIRE(found.is_object());
  CHECK(found["problems"].empty());
  return found;
}

std::string text_of(const std::string& folder) {
  Process report({required_variable("DT_COMMAND"), "trace", "report", folder});
  REQUIRE(report.wait() == 0);
  CHECK(report.err.empty());
  return report.out;
}

}  // namespace

TEST_CASE("a rank that skips a call: named, with what it did last") {
  const TraceFolder folder;
  TracedJob job("skip", folder.path, "1500");
  for (int rank = 0; rank < kRanks; ++rank) job.require_end(rank, 9);
  const json found = report_of(folder.path);
  INFO(found.dump(2));
  CHECK(found["case"] == "missing call");
  CHECK(found["ranks"] == json{1});
  CHECK(found["position"] == 6);
  CHECK(found["communicator"] == "world");
  const std::string text = text_of(folder.path);
  CHECK(count_of(text,
                 " never called allreduce #6 on comm \"world\", in which ranks 0, 2 wait: "
                 "it is in no operation; it last completed allreduce #5") == 1);
  CHECK(count_of(text, "(inside, ") == 2);
}

TEST_CASE("a rank with another size: both sides") {
  const TraceFolder folder;
  TracedJob job("size", folder.path, "20000");
  for (int rank = 0; rank < kRanks; ++rank) job.require_end(rank, 9);
  const json found = report_of(folder.path);
  INFO(found.dump(2));
  CHECK(found["case"] == "other size, dtype or reduction");
  CHECK(found["ranks"] == json{1});
  const std::string sentence = found["sentence"];
  CHECK(count_of(sentence,
                 "calls allreduce of 4 x f32, sum, but ranks 0, 2 call allreduce of 8 x "
                 "f32, sum") == 1);
}

TEST_CASE("a rank that calls something else") {
  const TraceFolder folder;
  TracedJob job("order", folder.path, "20000");
  for (int rank = 0; rank < kRanks; ++rank) job.require_end(rank, 9);
  const json found = report_of(folder.path);
  INFO(found.dump(2));
  CHECK(found["case"] == "other order");
  CHECK(found["ranks"] == json{1});
}

TEST_CASE("a rank that is killed") {
  const TraceFolder folder;
  TracedJob job("hang", folder.path, "20000");
  job.kill(1, SIGKILL);
  job.require_end(0, 9);
  job.require_end(2, 9);
  const json found = report_of(folder.path);
  INFO(found.dump(2));
  CHECK(found["case"] == "rank dead");
  CHECK(found["ranks"] == json{1});
  CHECK(found["table"][1]["traced"] == false);
}

TEST_CASE("a rank that is stopped: silent, while the others wait") {
  const TraceFolder folder;
  TracedJob job("hang", folder.path, "1500");
  job.kill(1, SIGSTOP);
  job.require_end(0, 9);
  job.require_end(2, 9);
  const json found = report_of(folder.path);
  INFO(found.dump(2));
  CHECK(found["case"] == "rank silent");
  CHECK(found["ranks"] == json{1});
  job.kill(1, SIGKILL);
}

TEST_CASE("a job that hangs is asked from outside; the timeline has all ranks") {
  const TraceFolder folder;
  TracedJob job("hang", "", "60000");
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  json found;
  // The ranks may not have come to where they hang yet.
  do {
    Process dump({required_variable("DT_COMMAND"), "trace", "dump",
                  "127.0.0.1:" + std::to_string(job.port), "--dir", folder.path, "--timeout-ms",
                  "30000"});
    const int code = dump.wait();
    INFO(dump.out);
    INFO(dump.err);
    REQUIRE(code == 0);
    for (int rank = 0; rank < kRanks; ++rank) {
      CHECK(count_of(dump.out, "rank " + std::to_string(rank) + " (") == 1);
      CHECK(count_of(dump.out, " wrote " + folder.path + "/rank-0000" + std::to_string(rank) +
                                   ".dttrace\n") == 1);
    }
    found = report_of(folder.path, "1");
  } while (found["case"] != "missing call" && std::chrono::steady_clock::now() < give_up);
  INFO(found.dump(2));
  CHECK(found["case"] == "missing call");
  CHECK(found["ranks"] == json{1});

  Process timeline({required_variable("DT_COMMAND"), "trace", "timeline", folder.path, "-o",
                    folder.path + "/timeline.json"});
  REQUIRE(timeline.wait() == 0);
  Process show({"/bin/cat", folder.path + "/timeline.json"});
  REQUIRE(show.wait() == 0);
  const json events = json::parse(show.out, nullptr, false);
  REQUIRE(events.is_object());
  std::set<int> processes;
  size_t operations = 0;
  for (const json& event : events["traceEvents"]) {
    if (event["ph"] != "X") continue;
    processes.insert(event["pid"].get<int>());
    ++operations;
    CHECK(event["ts"].get<double>() >= 0);
  }
  CHECK(processes == std::set<int>{0, 1, 2});
  CHECK(operations == 17);  // five of each, and what two of them are in

  // A stopped rank does not answer; the others do.
  job.kill(2, SIGSTOP);
  Process dump({required_variable("DT_COMMAND"), "trace", "dump",
                "127.0.0.1:" + std::to_string(job.port), "--dir", folder.path, "--timeout-ms",
                "2000"});
  CHECK(dump.wait() == 1);
  INFO(dump.out);
  CHECK(count_of(dump.out, " wrote ") == 2);
  CHECK(count_of(dump.out, "did not answer: stopped, or cut off") == 1);
  CHECK(count_of(dump.err, "2 of 3 ranks wrote their traces within 2.0 s") == 1);

  Process nowhere({required_variable("DT_COMMAND"), "trace", "dump",
                   "127.0.0.1:" + std::to_string(job.port), "--timeout-ms", "2000"});
  CHECK(nowhere.wait() == 1);
  CHECK(count_of(nowhere.out, "could not: rank 0 knows no directory for its trace") == 1);
  for (int rank = 0; rank < kRanks; ++rank) job.kill(rank, SIGKILL);
}

TEST_CASE("a directory without traces is an error") {
  const TraceFolder folder;
  Process report({required_variable("DT_COMMAND"), "trace", "report", folder.path});
  CHECK(report.wait() == 1);
  CHECK(count_of(report.err, "no trace that can be read (rank-*.dttrace)") == 1);
}
