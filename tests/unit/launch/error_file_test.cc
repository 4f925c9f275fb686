// SPDX-License-Identifier: Apache-2.0
#include "launch/error_file.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

using namespace dt;
using launch::ErrorFile;

namespace {

// torchrun's folder of an attempt with three local ranks, 4 to 6 of the job.
struct Attempt {
  char path[32] = "/tmp/dt-error-XXXXXX";
  Attempt() {
    REQUIRE(mkdtemp(path) != nullptr);
    for (const char* rank : {"0", "1", "2"}) std::filesystem::create_directory(folder(rank));
  }
  ~Attempt() { std::filesystem::remove_all(path); }
  std::string folder(const std::string& rank) const { return std::string(path) + "/" + rank; }
  std::string file(int local_rank) const {
    return folder(std::to_string(local_rank)) + "/error.json";
  }
  ErrorFile of(int local_rank, int32_t rank_of_job = -1) const {
    const std::string rank = std::to_string(4 + local_rank);
    return {{{"TORCHELASTIC_ERROR_FILE", file(local_rank)},
             {"RANK", rank},
             {"LOCAL_RANK", std::to_string(local_rank)},
             {"LOCAL_WORLD_SIZE", "3"}},
            rank_of_job < 0 ? 4 + local_rank : rank_of_job};
  }
  bool has(int local_rank) const { return std::filesystem::exists(file(local_rank)); }
  // "second message"
  std::string read(int local_rank) const {
    std::ifstream in(file(local_rank));
    std::stringstream all;
    all << in.rdbuf();
    const auto json = nlohmann::json::parse(all.str());
    const auto& message = json["message"];
    CHECK(message["message"] == message["extraInfo"]["py_callstack"]);
    return message["extraInfo"]["timestamp"].get<std::string>() + " " +
           message["message"].get<std::string>();
  }
  size_t entries() const {
    const auto all = std::filesystem::recursive_directory_iterator(path);
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }
};

Status lost(int32_t rank, const std::string& message = "gone") {
  ErrorInfo info;
  info.code = Code::kPeerLost;
  info.rank = rank;
  info.message = message;
  return Status(std::move(info));
}

}  // namespace

TEST_CASE("error file: the rank behind a failure has the earliest second, whoever writes it") {
  const Attempt attempt;
  attempt.of(0).write(lost(5), 1000);
  attempt.of(2).write(lost(5, "gone too"), 1000);
  CHECK(attempt.read(0) == "1000 PEER_LOST: gone");
  CHECK(attempt.read(1) == "999 PEER_LOST: gone");  // the first word of it stays
  CHECK(attempt.read(2) == "1000 PEER_LOST: gone too");
  attempt.of(1).write(Status(Code::kSystem, "its own word"), 1001);
  CHECK(attempt.read(1) == "1000 SYSTEM: its own word");
  attempt.of(2).write(lost(6, "itself"), 1002);
  CHECK(attempt.read(2) == "1001 PEER_LOST: itself");
  CHECK(attempt.entries() == 6);  // no draft is left
}

TEST_CASE("error file: only files of ranks that are known to be here are written") {
  const Attempt attempt;
  attempt.of(1).write(lost(3), 7);  // of another torchrun
  attempt.of(1).write(lost(7), 7);
  attempt.of(1).write(lost(INT32_MAX), 7);
  attempt.of(1, 0).write(lost(4), 7);  // the job counts other ranks than torchrun
  CHECK(attempt.entries() == 4);
  CHECK(attempt.read(1) == "7 PEER_LOST: gone");
  const std::string elsewhere = std::string(attempt.path) + "/rank-0004.error.json";
  const ErrorFile named({{"TORCHELASTIC_ERROR_FILE", elsewhere},
                         {"RANK", "4"},
                         {"LOCAL_RANK", "0"},
                         {"LOCAL_WORLD_SIZE", "3"}},
                        4);
  named.write(lost(5), 7);
  CHECK(attempt.entries() == 5);
  CHECK(std::filesystem::exists(elsewhere));
  ErrorFile({}, 4).write(lost(5), 7);
  ErrorFile({{"TORCHELASTIC_ERROR_FILE", "/nowhere/error.json"}}, 4).write(lost(5), 7);
  attempt.of(0).write({}, 7);
  CHECK(attempt.entries() == 5);
}

TEST_CASE("error file: what a message holds does not break it") {
  const Attempt attempt;
  attempt.of(0).write(Status(Code::kAborted, "a \"b\"\n\x01 \xff \xc3\xa4"), 7);
  CHECK(attempt.read(0) == "6 ABORTED: a \"b\"\n\x01 \xef\xbf\xbd \xc3\xa4");
}
