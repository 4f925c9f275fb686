// SPDX-License-Identifier: Apache-2.0
// Checkpoints of processes that are killed while they write, and of disks that are full.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "dt_run.h"

using namespace dt::test;

namespace {

/// Loads it with `ranks` ranks: "loaded NUMBER" or the failure, once a rank.
std::string loaded(int ranks, const std::string& path) {
  Process load(dt_run({"-n", std::to_string(ranks)}, {"load", path}));
  REQUIRE(load.wait() == 0);
  INFO(load.out);
  const size_t at = load.out.find("loaded ");
  REQUIRE(at != std::string::npos);
  const std::string line = load.out.substr(at, load.out.find('\n', at) - at);
  CHECK(count_of(load.out, line + "\n") == static_cast<size_t>(ranks));
  return line;
}

bool saves(const std::string& path, const std::string& number) {
  Process save(dt_run({"-n", "2"}, {"once", path, number}));
  return save.wait() == 0;
}

/// Looks without a pause: what it waits for is there for a moment only.
bool wait_for_file(const std::string& path) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  while (access(path.c_str(), F_OK) != 0) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

bool can_mount(const TempFolder& folder) {
  Process probe({"/bin/sh", "-c", "unshare -rm mount -t tmpfs none " + folder.path()});
  if (probe.wait() == 0) return true;
  MESSAGE("skipped: no file system can be mounted here");
  return false;
}

}  // namespace

TEST_CASE("checkpoint: a rank that is killed while it writes leaves the older file whole") {
  const TempFolder folder;
  const std::string path = folder.path() + "/model";
  for (const int victim : {0, 1, 2, 0, 1, 2}) {
    CAPTURE(victim);
    Process run(dt_run({"-n", "3"}, {"save", path}));
    REQUIRE(run.wait_for_output("saved 2\n"));
    const pid_t dead = pid_of_rank(run.out, victim);
    REQUIRE(dead > 0);
    REQUIRE(wait_for_file(path + ".partial"));
    REQUIRE(kill(dead, SIGKILL) == 0);
    CHECK(run.wait() == 128 + SIGKILL);
    size_t last = 2;
    while (count_of(run.out, "saved " + std::to_string(last + 1) + "\n") > 0) ++last;
    const std::string found = loaded(2, path);
    // The last one that rank 0 printed, or the one after it.
    const bool fits =
        found == "loaded " + std::to_string(last) || found == "loaded " + std::to_string(last + 1);
    CHECK_MESSAGE(fits, found, " after ", last);
  }
  std::ofstream(path + ".partial") << "of a job that was killed";
  REQUIRE(saves(path, "7000"));
  CHECK(loaded(3, path) == "loaded 7000");
  CHECK(access((path + ".partial").c_str(), F_OK) != 0);
}

TEST_CASE("checkpoint: what one rank may not write fails on all, and does not end it") {
  const TempFolder folder;
  const std::string path = folder.path() + "/model";
  REQUIRE(saves(path, "1"));
  Process save(dt_run({"-n", "3"}, {"limit", path, "2"}));
  CHECK(save.wait() == 9);
  INFO(save.out);
  CHECK(count_of(save.out, "failed: dt_shard_save on comm \"world\": rank 1 (") == 3);
  CHECK(count_of(save.out, "File too large; raise the limit of a file's size (ulimit -f)") == 3);
  CHECK(loaded(1, path) == "loaded 1");
}

TEST_CASE("checkpoint: a disk without room for it is found before anything is written") {
  const TempFolder folder;
  if (!can_mount(folder)) return;
  const std::string path = folder.path() + "/model";
  const std::string dt = required_variable("DT_COMMAND");
  const std::string program = required_variable("RUN_PROGRAM");
  // A file of 2 MB fits, a second one does not.
  const auto ranks = [&](const std::string& count, const std::string& mode) {
    return dt + " run -n " + count + " " + program + " " + mode;
  };
  Process run({"/bin/sh", "-c",
               "unshare -rm sh -c 'mount -t tmpfs -o size=3m none " + folder.path() + " && " +
                   ranks("2", "once " + path + " 1") + " && ! " +
                   ranks("2", "once " + path + " 2") + " && ls " + folder.path() + " && " +
                   ranks("3", "load " + path) + "'"});
  CHECK(run.wait() == 0);
  INFO(run.out);
  INFO(run.err);
  CHECK(count_of(run.out, "saved 1\n") == 2);
  CHECK(count_of(run.out, "failed: dt_shard_save on comm \"world\": rank 0 (") == 2);
  CHECK(count_of(run.out, "No space left on device; make room, or give a path with more") == 2);
  CHECK(count_of(run.out, "model.partial\n") == 0);
  CHECK(count_of(run.out, "loaded 1\n") == 3);
}

TEST_CASE("offload: a disk without room for its files is found when they are made") {
  const TempFolder folder;
  if (!can_mount(folder)) return;
  // The pieces of all ranks have 2 MB, their state 4 MB.
  const auto made_in = [&](const std::string& size) {
    Process run({"/bin/sh", "-c",
                 "unshare -rm sh -c 'mount -t tmpfs -o size=" + size + " none " + folder.path() +
                     " && " + required_variable("DT_COMMAND") + " run -n 2 " +
                     required_variable("RUN_PROGRAM") + " offload " + folder.path() + "'"});
    (void)run.wait();
    return run.out;
  };
  const std::string reason = "\": No space left on device; make room, or give a path with more";
  const std::string no_pieces = made_in("1m");
  INFO(no_pieces);
  CHECK(count_of(no_pieces, "failed: dt_shard_create on comm \"world\": rank ") == 2);
  CHECK(count_of(no_pieces, reason) == 2);
  const std::string no_state = made_in("3m");
  INFO(no_state);
  CHECK(count_of(no_state, "failed: dt_optimizer_adamw on comm \"world\": cannot get ") >= 1);
  CHECK(count_of(no_state, reason) >= 1);
  const std::string enough = made_in("10m");
  INFO(enough);
  CHECK(count_of(enough, "made\n") == 2);
}
