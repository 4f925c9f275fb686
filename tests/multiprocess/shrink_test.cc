// SPDX-License-Identifier: Apache-2.0
// Ranks that are left after a failure go on in a smaller communicator, with the right sums.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "dt_run.h"
#include "held_port.h"

using namespace dt::test;

namespace {

std::vector<std::string> surviving(int ranks, const std::vector<std::string>& mode) {
  return dt_run({"-n", std::to_string(ranks), "--on-failure", "continue"}, mode);
}

void kill_rank(const Process& run, int rank, int signal = SIGKILL) {
  const pid_t pid = pid_of_rank(run.out, rank);
  REQUIRE(pid > 0);
  REQUIRE(kill(pid, signal) == 0);
}

void check_end(Process* run, int left) {
  const int exit_code = run->wait();
  INFO(run->out);
  INFO(run->err);
  CHECK(exit_code == 0);
  CHECK(count_of(run->out, "good with " + std::to_string(left)) == static_cast<size_t>(left));
  CHECK(count_of(run->out, " is wrong") == 0);
  CHECK(count_of(run->out, " saw ") == 0);
}

}  // namespace

TEST_CASE("one of four is killed: the others go on, and end well") {
  for (const int victim : {2, 0}) {  // dt run serves the store, so rank 0 is one as all others
    CAPTURE(victim);
    Process run(surviving(4, {"survive", "3"}));
    REQUIRE(run.wait_for_output("ready ", 4));
    kill_rank(run, victim);
    check_end(&run, 3);
  }
}

TEST_CASE("one after the other is killed, down to one") {
  Process run(surviving(4, {"survive", "1"}));
  REQUIRE(run.wait_for_output("ready ", 4));
  kill_rank(run, 1);
  REQUIRE(run.wait_for_output("shrunk to 3", 3));
  kill_rank(run, 0);
  REQUIRE(run.wait_for_output("shrunk to 2", 2));
  kill_rank(run, 3);
  check_end(&run, 1);
}

TEST_CASE("two at once are killed") {
  Process run(surviving(5, {"survive", "3"}));
  REQUIRE(run.wait_for_output("ready ", 5));
  kill_rank(run, 1);
  kill_rank(run, 4);
  check_end(&run, 3);
}

TEST_CASE("a rank that is killed while it shrinks is left out, too") {
  Process run(surviving(4, {"survive", "2"}));
  REQUIRE(run.wait_for_output("ready ", 4));
  kill_rank(run, 1);
  REQUIRE(run.wait_for_output("asks", 1));
  kill_rank(run, 3);
  check_end(&run, 2);
}

TEST_CASE("a rank that ends instead of asking is left out") {
  Process run(surviving(4, {"quit", "2"}));
  REQUIRE(run.wait_for_output("ready ", 4));
  kill_rank(run, 1);
  check_end(&run, 2);
  CHECK(count_of(run.out, "[2] stays away") == 1);
}

TEST_CASE("eight ranks, two of which are killed one after the other") {
  Process run(surviving(8, {"survive", "6"}));
  REQUIRE(run.wait_for_output("ready ", 8));
  kill_rank(run, 7);
  REQUIRE(run.wait_for_output("shrunk to 7", 7));
  kill_rank(run, 3);
  check_end(&run, 6);
}

TEST_CASE("over several hosts: a rank, a host, and the rest of it") {
  Process::Options options;
  options.environment = {"HOSTS=001122"};
  Process run(surviving(6, {"survive", "2"}), options);
  REQUIRE(run.wait_for_output("ready ", 6));
  kill_rank(run, 4);
  REQUIRE(run.wait_for_output("shrunk to 5", 5));
  kill_rank(run, 0);
  kill_rank(run, 1);
  // They may be found one after the other; then there is one host less, and one rank.
  REQUIRE(run.wait_for_output("shrunk to 3", 3));
  kill_rank(run, 5);
  check_end(&run, 2);
}

TEST_CASE("local ranks in another order than the ranks: those that are left keep their order") {
  struct Case {
    std::vector<std::string> environment;
    int ranks;
    std::vector<int> victims;
  };
  const Case cases[] = {{{"LOCAL_RANKS=0213"}, 4, {1}},
                        {{"LOCAL_RANKS=3120"}, 4, {0, 3}},
                        {{"HOSTS=000111", "LOCAL_RANKS=021210"}, 6, {1, 3}}};
  for (const Case& each : cases) {
    CAPTURE(each.environment.back());
    Process::Options options;
    options.environment = each.environment;
    const int last = each.ranks - static_cast<int>(each.victims.size());
    Process run(surviving(each.ranks, {"survive", std::to_string(last)}), options);
    REQUIRE(run.wait_for_output("ready ", static_cast<size_t>(each.ranks)));
    int left = each.ranks;
    for (const int victim : each.victims) {
      kill_rank(run, victim);
      --left;
      REQUIRE(run.wait_for_output("shrunk to " + std::to_string(left), static_cast<size_t>(left)));
    }
    check_end(&run, last);
  }
}

TEST_CASE("a stopped rank that goes on after the shrink is told so, and disturbs nobody") {
  const std::string folder =
      std::filesystem::temp_directory_path() / ("dt-shrink-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::string stop = folder + "/stop";
  Process::Options options;
  options.environment = {"DT_HEARTBEAT_INTERVAL_MS=100", "DT_HEARTBEAT_TIMEOUT_MS=6000"};
  Process run(surviving(4, {"until", stop}), options);
  REQUIRE(run.wait_for_output("ready ", 4));
  const pid_t stopped = pid_of_rank(run.out, 1);
  kill_rank(run, 1, SIGSTOP);
  REQUIRE(run.wait_for_output("shrunk to 3", 3));
  kill_rank(run, 1, SIGCONT);
  const bool told = run.wait_for_output("[1] rank 1 saw DT_ERR_ABORTED ");
  std::ofstream(stop) << "now";
  (void)run.wait();
  std::filesystem::remove_all(folder);
  INFO(run.out);
  INFO(run.err);
  CHECK(told);
  CHECK(count_of(run.out, "DT_ERR_ABORTED of rank 1 host named pid " + std::to_string(stopped)) ==
        1);
  CHECK(count_of(run.out, " was declared lost: ") == 1);
  CHECK(count_of(run.out, "good with 3") == 3);
  CHECK(count_of(run.out, " is wrong") == 0);
}

TEST_CASE("a rank that stays stopped is ended when the others have ended, and dt run ends") {
  Process::Options options;
  options.environment = {"DT_HEARTBEAT_INTERVAL_MS=100", "DT_HEARTBEAT_TIMEOUT_MS=2000",
                         "DT_RUN_GRACE_MS=500"};
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  for (const int victim : {1, 0}) {
    CAPTURE(victim);
    Process run(surviving(4, {"survive", "3"}), options);
    REQUIRE(run.wait_for_output("ready ", 4));
    const pid_t stopped = pid_of_rank(run.out, victim);
    kill_rank(run, victim, SIGSTOP);
    check_end(&run, 3);
    const std::string rank = "rank " + std::to_string(victim) + " (host " + host + " pid " +
                             std::to_string(stopped) + ")";
    const std::vector<std::string> said = dt::test::lines_of(run.err);
    REQUIRE(said.size() == 3);
    CHECK(said[0] == "dt run: " + rank +
                         " gave no sign of life, the job goes on without it, and no other rank is "
                         "left on this host: it gets SIGKILL in 0.5 s");
    CHECK(dt::test::starts_with(said[1], rank + " killed by SIGKILL after "));
    CHECK(count_of(said[1],
                   "; before, it gave no sign of life, and the others took it for lost; "
                   "the others went on and ended well") == 1);
  }
}

TEST_CASE("a rank that lives and does not call it is named to the others") {
  Process run(surviving(4, {"absent", "2"}));
  REQUIRE(run.wait_for_output("ready ", 4));
  const pid_t absent = pid_of_rank(run.out, 2);
  kill_rank(run, 1);
  CHECK(run.wait_for_output(" saw DT_ERR_TIMEOUT ", 2));
  kill_rank(run, 2);
  (void)run.wait();
  INFO(run.out);
  CHECK(count_of(run.out, "DT_ERR_TIMEOUT of rank 2 host named pid " + std::to_string(absent) +
                              ": dt_comm_shrink of comm \"world\": 2 of 3 living ranks came within "
                              "10.0 s; missing: rank 2 (") == 2);
}

TEST_CASE("without the store nothing can be agreed, which is said") {
  std::vector<std::unique_ptr<Process>> ranks;
  {
    const HeldPort held;
    for (int rank = 0; rank < 3; ++rank) {
      Process::Options options;
      options.environment = {"DT_RANK=" + std::to_string(rank), "DT_WORLD_SIZE=3",
                             "DT_MASTER_ADDR=127.0.0.1",
                             "DT_MASTER_PORT=" + std::to_string(held.port())};
      ranks.push_back(std::make_unique<Process>(
          std::vector<std::string>{dt::test::required_variable("RUN_PROGRAM"), "survive", "1"},
          options));
    }
    for (auto& rank : ranks) REQUIRE(rank->wait_for_output("ready "));
  }
  REQUIRE(kill(ranks[2]->pid(), SIGKILL) == 0);
  REQUIRE(ranks[0]->wait_for_output("shrunk to 2"));  // which it serves
  REQUIRE(ranks[1]->wait_for_output("shrunk to 2"));
  const pid_t server = ranks[0]->pid();
  REQUIRE(kill(server, SIGKILL) == 0);
  CHECK(ranks[1]->wait() == 9);
  INFO(ranks[1]->out);
  CHECK(count_of(ranks[1]->out, "DT_ERR_PEER_LOST of rank 0 host named pid " +
                                    std::to_string(server) + ": dt_comm_shrink of comm \"world~") ==
        1);
  CHECK(count_of(ranks[1]->out,
                 "the ranks that are left can agree on nothing without the store, which a rank "
                 "served; under dt run its own process does") == 1);
}
