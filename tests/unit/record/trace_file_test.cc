// SPDX-License-Identifier: Apache-2.0
#include "record/trace_file.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "../contains.h"

using dt::Code;
using dt::record::decode_trace;
using dt::record::encode;
using dt::record::read_trace;
using dt::record::Trace;
using dt::record::write_trace;
using dt::test::contains;

namespace {

struct TempFolder {
  TempFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "dt-trace-XXXXXX";
    path = mkdtemp(pattern.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path); }
  std::string path;
};

Trace example() {
  Trace trace;
  trace.identity = {"job", 2, 0x1234567890abcdef, 3, 8, "hostB", 4242};
  trace.reason = dt::record::Reason::kFailed;
  trace.failure = {Code::kTimeout, "allreduce #7: timed out", 5, "hostC", 77, "allreduce", 7};
  trace.failure_scope = "grad";
  trace.failure_realtime_ns = 1'700'000'000'000'000'000;
  trace.recorded.dropped = 1;
  trace.recorded.monotonic_ns = 5'000'000'000;
  trace.recorded.realtime_ns = 1'700'000'000'000'000'001;
  trace.recorded.communicators = {{"world", 3, {0, 1, 2, 3, 4, 5, 6, 7}, 12, false, false},
                                  {"world/0.1", 1, {1, 3, 5, 7}, 1, true, true}};
  for (int i = 0; i < 5; ++i) {
    dt::record::Entry entry;
    entry.communicator = static_cast<uint32_t>(i % 2);
    entry.kind = static_cast<uint8_t>(i);
    entry.dtype = 8;
    entry.op = 1;
    entry.state = static_cast<dt::record::State>(i % 3);
    entry.root = i - 1;
    entry.status = i == 2 ? Code::kTimeout : Code::kOk;
    entry.position = i + 1;
    entry.count = 100 * i;
    entry.bytes = 400 * i;
    entry.enqueued_ns = 1000 + i;
    entry.started_ns = 2000 + i;
    entry.completed_ns = 3000 + i;
    if (i == 3) entry.label = "bucket 3";
    trace.recorded.entries.push_back(entry);
  }
  return trace;
}

std::string why_not(const std::string& bytes) {
  const auto trace = decode_trace(bytes);
  return trace.ok() ? "it was read" : trace.status().message();
}

/// The checksum over everything before it, as docs/trace.md says.
void sign(std::string* bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = 0; i + 8 < bytes->size(); ++i) {
    hash = (hash ^ static_cast<unsigned char>((*bytes)[i])) * 0x100000001b3;
  }
  for (size_t i = 0; i < 8; ++i) {
    (*bytes)[bytes->size() - 8 + i] = static_cast<char>(hash >> (8 * i));
  }
}

}  // namespace

TEST_CASE("what is written is read") {
  const TempFolder folder;
  const Trace trace = example();
  const auto path = write_trace(folder.path + "/new/deeper", trace);
  REQUIRE(path.ok());
  CHECK(path.value() == folder.path + "/new/deeper/rank-00003.attempt-2.dttrace");
  const auto read = read_trace(path.value());
  REQUIRE(read.ok());
  const Trace& again = read.value();
  CHECK(encode(again) == encode(trace));
  CHECK(again.identity.job_id == "job");
  CHECK(again.identity.session == 0x1234567890abcdef);
  CHECK(again.identity.host == "hostB");
  CHECK(again.identity.pid == 4242);
  CHECK(again.failure.message == trace.failure.message);
  CHECK(again.failure_scope == "grad");
  CHECK(again.recorded.communicators[1].world_ranks == std::vector<int32_t>{1, 3, 5, 7});
  CHECK(again.recorded.communicators[1].on_device);
  CHECK(again.recorded.entries[3].label == "bucket 3");
  CHECK(again.recorded.entries[2].status == Code::kTimeout);
  // Again, over it; and nothing else stays in the folder.
  REQUIRE(write_trace(folder.path + "/new/deeper", trace).ok());
  size_t files = 0;
  for ([[maybe_unused]] const auto& each :
       std::filesystem::directory_iterator(folder.path + "/new/deeper")) {
    ++files;
  }
  CHECK(files == 1);
}

TEST_CASE("a large job's trace leaves out the oldest communicators that ended without an entry") {
  constexpr int32_t kRanks = 16'384;
  Trace trace = example();
  trace.identity.world_size = kRanks;
  std::vector<int32_t> ranks(kRanks);
  for (int32_t rank = 0; rank < kRanks; ++rank) ranks[static_cast<size_t>(rank)] = rank;
  auto& communicators = trace.recorded.communicators;
  communicators = {{"world", 3, ranks, 12, false, false}};
  for (int i = 0; i < 300; ++i) {
    communicators.push_back({"old " + std::to_string(i), 3, ranks, 1, false, true});
  }
  communicators.push_back({"live", 3, ranks, 1, false, false});
  for (size_t i = 0; i < trace.recorded.entries.size(); ++i) {
    trace.recorded.entries[i].communicator = i % 2 == 0 ? 5 : 301;  // "old 4" and "live"
  }
  const auto read = decode_trace(encode(trace));
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  const auto& kept = read.value().recorded.communicators;
  REQUIRE(kept.size() == 256);  // 4 Mi ranks
  CHECK(kept[0].name == "world");
  CHECK(kept[1].name == "old 4");
  CHECK(kept[2].name == "old 47");
  CHECK(kept[255].name == "live");
  const auto& entries = read.value().recorded.entries;
  REQUIRE(entries.size() == trace.recorded.entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    CHECK(entries[i].communicator == (i % 2 == 0 ? 1 : 255));
    CHECK(entries[i].position == trace.recorded.entries[i].position);
  }
}

TEST_CASE("a link that somebody put in the place of the file is not followed") {
  const TempFolder folder;
  const std::string victim = folder.path + "/victim";
  std::ofstream(victim) << "precious";
  const std::string temporary = dt::format("%s/.rank-00003.attempt-2.dttrace.%d.%d",
                                           folder.path.c_str(), int{getpid()}, int{gettid()});
  std::filesystem::create_symlink(victim, temporary);
  const auto path = write_trace(folder.path, example());
  REQUIRE(path.ok());
  CHECK(read_trace(path.value()).ok());
  std::string kept;
  std::ifstream(victim) >> kept;
  CHECK(kept == "precious");
}

TEST_CASE("each kind of damage has its text") {
  const std::string good = encode(example());
  CHECK(contains(why_not(""), "no trace of dt"));
  CHECK(contains(why_not("hello, this is something else"), "no trace of dt"));
  CHECK(contains(why_not(good.substr(0, 12)), "cut off"));
  CHECK(contains(why_not(good.substr(0, good.size() - 1)), "cut off, or damaged"));
  CHECK(contains(why_not(good + "x"), "cut off, or damaged"));
  std::string flipped = good;
  flipped[40] = static_cast<char>(flipped[40] ^ 1);
  CHECK(contains(why_not(flipped), "checksum is wrong"));
  std::string later = good;
  later[8] = 9;
  CHECK(contains(why_not(later), "version 9, this dt reads 1"));
}

TEST_CASE("no byte of a trace is believed, even with the right checksum") {
  const std::string good = encode(example());
  for (size_t at = 20; at + 8 < good.size(); ++at) {
    for (const int value : {0, 0x7f, 0xff}) {
      std::string bad = good;
      bad[at] = static_cast<char>(value);
      sign(&bad);
      const auto trace = decode_trace(bad);
      if (!trace.ok()) {
        CHECK(contains(trace.status().message(), "make no sense"));
        continue;
      }
      const auto& recorded = trace.value().recorded;
      for (const auto& entry : recorded.entries) {
        REQUIRE(entry.communicator < recorded.communicators.size());
        REQUIRE(entry.enqueued_ns >= 0);
        REQUIRE(entry.count >= 0);
      }
      for (const auto& each : recorded.communicators) {
        REQUIRE(static_cast<size_t>(each.rank) < each.world_ranks.size());
      }
    }
  }
}

TEST_CASE("bytes that a terminal would act on are not kept") {
  Trace trace = example();
  trace.identity.host = "evil\x1b[2Jhost";
  const auto read = decode_trace(encode(trace));
  REQUIRE(read.ok());
  CHECK(read.value().identity.host == "evil?[2Jhost");
}

TEST_CASE("errors name the file and the reason") {
  const TempFolder folder;
  const auto absent = read_trace(folder.path + "/rank-00000.dttrace");
  REQUIRE_FALSE(absent.ok());
  CHECK(absent.status().message() ==
        folder.path + "/rank-00000.dttrace: No such file or directory");
  const auto no_file = read_trace(folder.path);
  REQUIRE_FALSE(no_file.ok());
  CHECK(no_file.status().message() == folder.path + ": it is no ordinary file");
  std::ofstream(folder.path + "/plain") << "x";
  const auto written = write_trace(folder.path + "/plain", example());
  REQUIRE_FALSE(written.ok());
  CHECK(written.status().code() == Code::kSystem);
  CHECK(contains(written.status().message(), "trace of rank 3 (host hostB): cannot make "));
  CHECK(contains(written.status().message(), "trace.dir"));
}

TEST_CASE("names of files") {
  CHECK(dt::record::trace_file_name(3, 0) == "rank-00003.dttrace");
  CHECK(dt::record::trace_file_name(123456, 0) == "rank-123456.dttrace");
  CHECK(dt::record::trace_file_name(3, 2) == "rank-00003.attempt-2.dttrace");
  CHECK(dt::record::is_trace_file_name("rank-00003.attempt-2.dttrace"));
  CHECK(dt::record::is_trace_file_name("rank-00003.dttrace"));
  CHECK_FALSE(dt::record::is_trace_file_name(".rank-00003.dttrace.12.12"));
  CHECK_FALSE(dt::record::is_trace_file_name("rank-00003.txt"));
}
