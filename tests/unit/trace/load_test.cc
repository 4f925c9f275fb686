// SPDX-License-Identifier: Apache-2.0
#include "cli/trace/load.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "../contains.h"
#include "built.h"
#include "cli/trace/report.h"
#include "record/trace_file.h"

using dt::cli::trace::load;
using dt::cli::trace::Loaded;
using dt::record::Trace;
using dt::record::write_trace;
using dt::test::Built;
using dt::test::contains;
using nlohmann::json;

namespace {

struct Folder {
  Folder() {
    std::string pattern = std::filesystem::temp_directory_path() / "dt-load-XXXXXX";
    path = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

}  // namespace

TEST_CASE("what cannot be used is named, and the rest is") {
  const Folder folder;
  for (int32_t rank = 0; rank < 3; ++rank) {
    REQUIRE(write_trace(folder.path, Built(rank, 6).allreduce(1, 2)).ok());
  }
  Built other(3, 6);
  other.trace().identity.session = 99;
  REQUIRE(write_trace(folder.path, other).ok());
  std::ofstream(folder.path + "/rank-00004.dttrace") << "DTTRACE\n and then nothing of use";
  std::ofstream(folder.path + "/rank-00005.dttrace") << "PNG";
  std::ofstream(folder.path + "/notes.txt") << "not looked at";
  std::filesystem::copy_file(folder.path + "/rank-00001.dttrace",
                             folder.path + "/rank-00001-copy.dttrace");
  const auto loaded = load(folder.path);
  REQUIRE(loaded.ok());
  const Loaded& got = loaded.value();
  REQUIRE(got.traces.size() == 3);
  for (int32_t rank = 0; rank < 3; ++rank) {
    CHECK(got.traces[static_cast<size_t>(rank)].identity.rank == rank);
  }
  REQUIRE(got.problems.size() == 4);
  std::string all;
  for (const std::string& problem : got.problems) all += problem + "\n";
  CHECK(contains(all, folder.path + "/rank-00003.dttrace: of another job than the others: job "
                                    "\"job\", attempt 0, rank 3 of 6, host host3"));
  CHECK(contains(all, folder.path + "/rank-00004.dttrace: its format has version"));
  CHECK(contains(all, folder.path + "/rank-00005.dttrace: it is no trace of dt"));
  CHECK(contains(all, "a second trace of rank 1"));
}

TEST_CASE("of several attempts the last one is taken, or the one that is asked for") {
  const Folder folder;
  for (int32_t attempt = 0; attempt < 3; ++attempt) {
    // The last attempt has fewer ranks, and so fewer files, than the others.
    const int32_t size = attempt == 2 ? 2 : 3;
    for (int32_t rank = 0; rank < size; ++rank) {
      Built built(rank, size);
      built.trace().identity.attempt = attempt;
      built.trace().identity.session = 7 + static_cast<uint64_t>(attempt);
      REQUIRE(write_trace(folder.path, built.allreduce(1, 2)).ok());
    }
  }
  const auto last = load(folder.path);
  REQUIRE(last.ok());
  CHECK(last.value().traces.size() == 2);
  CHECK(last.value().traces[0].identity.attempt == 2);
  CHECK(last.value().problems.empty());
  CHECK(last.value().other_attempts == std::vector<int32_t>{0, 1});
  const auto first = load(folder.path, 0);
  REQUIRE(first.ok());
  CHECK(first.value().traces.size() == 3);
  CHECK(first.value().traces[2].identity.attempt == 0);
  CHECK(first.value().other_attempts == std::vector<int32_t>{1, 2});
  const auto none = load(folder.path, 5);
  REQUIRE_FALSE(none.ok());
  CHECK(contains(none.status().message(),
                 folder.path + "/rank-00001.attempt-2.dttrace: of attempt 2"));
}

TEST_CASE(
    "of several jobs the one with the latest trace is taken, however many files others have") {
  std::vector<std::pair<std::string, Trace>> read;
  const auto add = [&](const std::string& job, int32_t attempt, uint64_t session, int32_t rank,
                       double begin_s, double end_s) {
    Built built(rank, 3, end_s);
    built.allreduce(begin_s, end_s - 1);
    built.trace().identity.job_id = job;
    built.trace().identity.attempt = attempt;
    built.trace().identity.session = session;
    read.emplace_back("file " + std::to_string(read.size()), built);
  };
  for (int32_t attempt = 0; attempt < 3; ++attempt) {
    for (int32_t rank = 0; rank < 3; ++rank) add("old", attempt, 1, rank, 10, 100);
  }
  for (int32_t rank = 0; rank < 2; ++rank) add("new", 1, 2, rank, 1000, 1100);
  add("little", 0, 3, 0, 1090, 1101);  // at the same time, with fewer files
  Loaded got = dt::cli::trace::choose(read);
  REQUIRE(got.traces.size() == 2);
  CHECK(got.traces[0].identity.job_id == "new");
  CHECK(got.other_attempts.empty());
  // The same name again, which begins with attempt 0.
  for (int32_t rank = 0; rank < 2; ++rank) add("new", 0, 4, rank, 2000, 2100);
  got = dt::cli::trace::choose(read);
  REQUIRE(got.traces.size() == 2);
  CHECK(got.traces[0].identity.session == 4);
  CHECK(got.other_attempts == std::vector<int32_t>{1});
  CHECK(dt::cli::trace::choose(read, 1).traces[0].identity.session == 2);
  CHECK(dt::cli::trace::choose(read, 2).traces[0].identity.job_id == "old");
  // A rank of an attempt may write after the next one has begun.
  add("new", 1, 5, 0, 2110, 2200);
  add("new", 0, 4, 2, 2000, 2201);
  CHECK(dt::cli::trace::choose(read).traces[0].identity.session == 5);
}

TEST_CASE("no usable file is an error with every reason") {
  const Folder folder;
  std::ofstream(folder.path + "/rank-00005.dttrace") << "PNG";
  const auto loaded = load(folder.path);
  REQUIRE_FALSE(loaded.ok());
  CHECK(contains(loaded.status().message(), "no trace that can be read (rank-*.dttrace)"));
  CHECK(contains(loaded.status().message(), "rank-00005.dttrace: it is no trace of dt"));
  const auto nowhere = load(folder.path + "/none");
  REQUIRE_FALSE(nowhere.ok());
  CHECK(nowhere.status().message() == folder.path + "/none: No such file or directory");
}

TEST_CASE("the timeline: one time for all hosts, a row for each communicator, names of buckets") {
  const std::vector<Trace> traces = {
      Built(0, 2).allreduce(1, 2).labelled("bucket 0").allreduce(1.5, -1),
      Built(1, 2).allreduce(1.25, 2).labelled("bucket 0")};
  const json timeline = json::parse(dt::cli::trace::timeline_json(traces), nullptr, false);
  REQUIRE(timeline.is_object());
  std::set<std::string> names;
  std::vector<json> operations;
  for (const json& event : timeline["traceEvents"]) {
    if (event["ph"] == "M") names.insert(event["args"].value("name", ""));
    if (event["ph"] == "X") operations.push_back(event);
  }
  CHECK(names.count("rank 0 (host0 pid 1000)") == 1);
  CHECK(names.count("world") == 1);
  CHECK(names.count("world (2)") == 1);  // what overlaps has a row of its own
  REQUIRE(operations.size() == 3);
  CHECK(operations[0]["name"] == "bucket 0");
  CHECK(operations[0]["ts"] == 0);
  CHECK(operations[0]["dur"] == 1e6);
  CHECK(operations[0]["args"]["count"] == 8);
  CHECK(operations[0]["args"]["dtype"] == "f32");
  CHECK(operations[0]["args"]["sequence"] == 1);
  CHECK(operations[0]["args"]["status"] == "OK");
  CHECK(operations[1]["name"] == "allreduce");
  CHECK(operations[1]["args"]["status"] == "not completed");
  CHECK(operations[1]["dur"] == 98.5e6);  // until the trace was written
  CHECK(operations[2]["pid"] == 1);
  CHECK(operations[2]["ts"] == 0.25e6);
}

TEST_CASE("the report for programs") {
  const std::vector<Trace> traces = {Built(0, 2).allreduce(1, -1), Built(1, 2)};
  const json report = json::parse(
      dt::cli::trace::report_json(dt::cli::trace::judge(traces), {traces, {"a: b"}, {2}}), nullptr,
      false);
  CHECK(report["attempt"] == 0);
  CHECK(report["other_attempts"] == json{2});
  CHECK(report["case"] == "missing call");
  CHECK(report["ranks"] == json{1});
  CHECK(report["problems"] == json{"a: b"});
  CHECK(report["table"].size() == 2);
  CHECK(report["table"][0]["outcome"] == "inside");
}
