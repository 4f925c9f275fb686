// SPDX-License-Identifier: Apache-2.0
// Real ranks, killed: the others get the named error wherever they are blocked, in time.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "../sanitizers.h"
#include "dt_run.h"
#include "held_port.h"

using namespace dt::test;

namespace {

constexpr bool kSanitizer = dt::test::kThreadSanitizer || dt::test::kAddressSanitizer;
constexpr int kNamedMs = kSanitizer ? 10'000 : 2'000;  // what dt promises: two seconds

std::vector<std::string> shared_memory_files() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (count_of(name, "dt") > 0) files.push_back(name);
  }
  return files;
}

}  // namespace

TEST_CASE("a killed rank is named to every other rank within two seconds, wherever it is blocked") {
  for (const char* mode : {"train", "reduce", "wait", "store", "finalize", "children", "named"}) {
    for (const int victim : {1, 0}) {
      const std::string how = mode;
      if (victim == 0 && how != "train" && how != "reduce" && how != "named")
        continue;  // rank 1 plays the odd part
      CAPTURE(how);
      CAPTURE(victim);
      Process run(dt_run({"-n", "3"}, {mode}));
      REQUIRE(run.wait_for_output("ready ", 3));
      const pid_t dead = pid_of_rank(run.out, victim);
      REQUIRE(dead > 0);
      const Watch others(ready_pids(run.out));
      const auto killed = std::chrono::steady_clock::now();
      REQUIRE(kill(dead, SIGKILL) == 0);
      CHECK(others.all_ended(kNamedMs));
      const auto took = std::chrono::steady_clock::now() - killed;
      INFO("ms until all ended: ",
           std::chrono::duration_cast<std::chrono::milliseconds>(took).count());
      CHECK(run.wait() == 128 + SIGKILL);
      INFO(run.out);
      INFO(run.err);
      const std::string named = "DT_ERR_PEER_LOST of rank " + std::to_string(victim) +
                                " host named pid " + std::to_string(dead);
      CHECK(count_of(run.out, named) == 2);
      CHECK(starts_with(run.err, "rank " + std::to_string(victim) + " (host "));
      CHECK(count_of(lines_of(run.err)[0], "killed by SIGKILL") == 1);
    }
  }
  CHECK(shared_memory_files().empty());
}

TEST_CASE("a killed rank that brought others what lay on another NUMA node is named") {
  for (const char* mode : {"train", "reduce"}) {
    CAPTURE(mode);
    Process::Options options;
    options.environment = {"DT_HOST_NUMA=0,0,1,1"};
    Process run(dt_run({"-n", "4"}, {mode}), options);
    REQUIRE(run.wait_for_output("ready ", 4));
    const pid_t dead = pid_of_rank(run.out, 2);
    REQUIRE(dead > 0);
    REQUIRE(kill(dead, SIGKILL) == 0);
    CHECK(run.wait() == 128 + SIGKILL);
    INFO(run.out);
    INFO(run.err);
    CHECK(count_of(run.out, "DT_ERR_PEER_LOST of rank 2 host named pid " + std::to_string(dead)) ==
          3);
  }
}

TEST_CASE("without a launcher: rank 0 serves the store, its death is named too") {
  for (const int victim : {0, 2}) {
    CAPTURE(victim);
    std::vector<std::unique_ptr<Process>> ranks;
    {
      const HeldPort held;
      for (int rank = 0; rank < 3; ++rank) {
        Process::Options options;
        options.environment = {"DT_RANK=" + std::to_string(rank), "DT_WORLD_SIZE=3",
                               "DT_MASTER_ADDR=127.0.0.1",
                               "DT_MASTER_PORT=" + std::to_string(held.port())};
        ranks.push_back(std::make_unique<Process>(
            std::vector<std::string>{dt::test::required_variable("RUN_PROGRAM"), "reduce"},
            options));
      }
      for (auto& rank : ranks) REQUIRE(rank->wait_for_output("ready "));
    }
    const pid_t dead = ranks[static_cast<size_t>(victim)]->pid();
    REQUIRE(kill(dead, SIGKILL) == 0);
    for (int rank = 0; rank < 3; ++rank) {
      Process& process = *ranks[static_cast<size_t>(rank)];
      const int code = process.wait();
      if (rank == victim) continue;
      INFO(process.out);
      INFO(process.err);
      CHECK(code == 9);
      CHECK(count_of(process.out, "DT_ERR_PEER_LOST of rank " + std::to_string(victim) +
                                      " host named pid " + std::to_string(dead)) == 1);
    }
  }
}

TEST_CASE("kill -9 of dt run: no rank lives two seconds later") {
  Process run(dt_run({"-n", "3"}, {"reduce"}));
  REQUIRE(run.wait_for_output("ready ", 3));
  const Watch ranks(ready_pids(run.out));
  run.send(SIGKILL);
  CHECK(ranks.all_ended(2000));
  CHECK(shared_memory_files().empty());
}

TEST_CASE("a clean job prints nothing of its own and leaves nothing behind") {
  Process run(dt_run({"-n", "4"}, {"nothing"}));
  CHECK(run.wait() == 0);
  CHECK(run.err.empty());
  CHECK(count_of(run.out, "ready ") == 4);
  CHECK(lines_of(run.out).size() == 4);
  CHECK(shared_memory_files().empty());
}

TEST_CASE("under dt run the same ranks make one job after the other") {
  for (const char* relay : {"false", "true"}) {
    for (const char* mode : {"jobs", "early"}) {
      for (const int ranks : {2, 4}) {
        CAPTURE(relay);
        CAPTURE(mode);
        CAPTURE(ranks);
        Process::Options options;
        options.environment = {std::string("DT_STORE_RELAY=") + relay};
        Process run(dt_run({"-n", std::to_string(ranks)}, {mode}), options);
        CHECK(run.wait() == 0);
        INFO(run.out);
        INFO(run.err);
        CHECK(run.err.empty());
        for (const char* good : {"job 1 is good\n", "job 2 is good\n", "job 3 is good\n"}) {
          CHECK(count_of(run.out, good) == static_cast<size_t>(ranks));
        }
        CHECK(lines_of(run.out).size() == static_cast<size_t>(4 * ranks));
      }
    }
  }
  CHECK(shared_memory_files().empty());
}

TEST_CASE("two programs in turn as one rank of dt run make a job each") {
  const std::string program = required_variable("RUN_PROGRAM");
  Process run({required_variable("DT_COMMAND"), "run", "-n", "2", "sh", "-c",
               program + " nothing && exec " + program + " nothing"});
  CHECK(run.wait() == 0);
  INFO(run.out);
  CHECK(run.err.empty());
  CHECK(count_of(run.out, "ready ") == 4);
}

TEST_CASE("after a death no other job follows in an attempt of dt run, and that is told at once") {
  for (const char* relay : {"false", "true"}) {
    CAPTURE(relay);
    Process::Options options;
    options.environment = {std::string("DT_STORE_RELAY=") + relay};
    Process run(dt_run({"-n", "3", "--on-failure", "continue"}, {"lost"}), options);
    CHECK(run.wait() == 5);
    INFO(run.out);
    INFO(run.err);
    for (const int rank : {0, 2}) {
      const std::string process = " pid " + std::to_string(pid_of_rank(run.out, rank)) + ")";
      const std::string number = "rank " + std::to_string(rank);
      CHECK(count_of(run.out, number + " saw DT_ERR_CONFIG of " + number) == 1);
      CHECK(count_of(run.out, process + " has left attempt 0, in which rank 1 died; (") == 1);
      CHECK(count_of(run.out,
                     process + " cannot take its place: start a new attempt; under dt run a rank "
                               "may join another job of the same attempt after all ranks have "
                               "left the one before with dt_finalize\n") == 1);
    }
  }
}

TEST_CASE("a rank that ends and makes no second job is named to those that do, at once") {
  Process run(dt_run({"-n", "2", "--on-failure", "continue"}, {"fewer"}));
  CHECK(run.wait() == 9);
  INFO(run.out);
  CHECK(count_of(run.out, "rank 0 saw DT_ERR_PEER_LOST of rank 1") == 1);
  CHECK(count_of(run.out, " exited with code 0 after ") == 1);
  CHECK(count_of(run.out, ", before all ranks were there; look at its log, then") == 1);
}

TEST_CASE("a rank that leaves and ends with 0 is named to those that still need it") {
  for (const char* relay : {"false", "true"}) {
    CAPTURE(relay);
    Process::Options options;
    options.environment = {std::string("DT_STORE_RELAY=") + relay};
    Process run(dt_run({"-n", "3"}, {"leaves"}), options);
    CHECK(run.wait() == 0);
    INFO(run.out);
    CHECK(run.err.empty());
    for (const char* rank : {"rank 0 heard: ", "rank 2 heard: "})
      CHECK(count_of(run.out, rank) == 1);
    CHECK(count_of(run.out, "rank 1 (") == 2);
    CHECK(count_of(run.out, ") has left the job with dt_finalize, and this operation needs it") ==
          2);
  }
}

TEST_CASE("a rank that ends before it joins fails the join of the others") {
  const std::string program = required_variable("RUN_PROGRAM");
  for (const char* end : {"kill -9 $$", "exit 3", "exit 0"}) {
    for (const char* relay : {"false", "true"}) {
      CAPTURE(end);
      CAPTURE(relay);
      Process::Options options;
      options.environment = {std::string("DT_STORE_RELAY=") + relay};
      const std::string script =
          std::string("test $DT_RANK != 1 || ") + end + "; exec " + program + " reduce";
      Process run({required_variable("DT_COMMAND"), "run", "-n", "3", "--on-failure", "continue",
                   "sh", "-c", script},
                  options);
      CHECK(run.wait() != 0);
      INFO(run.out);
      INFO(run.err);
      CHECK(count_of(run.out, "saw DT_ERR_PEER_LOST of rank 1") == 2);
      CHECK(count_of(run.out, "join: rank 1 (") == 2);
    }
  }
}

TEST_CASE("a second job under dt run works with a store that rank 0 serves") {
  Process run(dt_run({"-n", "3"}, {"next"}));
  CHECK(run.wait() == 0);
  INFO(run.out);
  INFO(run.err);
  CHECK(count_of(run.out, "next 6\n") == 3);
}
