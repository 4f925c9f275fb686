// SPDX-License-Identifier: Apache-2.0
// `dt run`: how a job ends, and that nothing is left of it.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "dt_run.h"

using namespace dt::test;

namespace {

constexpr int kGoneMs = 2000;  // what dt promises after it was killed

// The numbers between "ready " or "pids " and " end" on each line.
std::vector<pid_t> pids_in(const std::string& text) {
  std::vector<pid_t> pids;
  for (const std::string& line : lines_of(text)) {
    int first = 0;
    int second = 0;
    const size_t at = line.find("pids ");
    const size_t ready = line.find("ready ");
    if (at != std::string::npos) {
      sscanf(line.c_str() + at, "pids %d %d", &first, &second);
    } else if (ready != std::string::npos) {
      sscanf(line.c_str() + ready, "ready %d", &first);
    }
    if (first > 0) pids.push_back(first);
    if (second > 0) pids.push_back(second);
  }
  return pids;
}

}  // namespace

TEST_CASE("all ranks end with 0: nothing is said") {
  Process run(dt_run({"-n", "2"}, {"lines", "0"}));
  CHECK(run.wait() == 0);
  CHECK(run.out.empty());
  CHECK(run.err.empty());
}

TEST_CASE("the first failure is the first line, its exit code is dt's, the others are summed up") {
  Process run(dt_run({"-n", "4", "--grace-ms", "200"}, {"fail", "2", "7"}));
  CHECK(run.wait() == 7);
  const Strings lines = lines_of(run.err);
  REQUIRE(lines.size() == 3);
  int rank = 0, code = 0, pid = 0;
  float seconds = -1;
  const std::string pattern =
      "rank %d (host " + host_name() + " pid %d) exited with code %d after %f s";
  CHECK(sscanf(lines[0].c_str(), pattern.c_str(), &rank, &pid, &code, &seconds) == 4);
  CHECK(rank == 2);
  CHECK(code == 7);
  CHECK(seconds >= 0);
  CHECK(lines[1] == "[2] about to fail");
  CHECK(lines[2] == "3 ranks ended because of it: ranks 0-1, 3 killed by SIGTERM");
}

TEST_CASE("--show-lines limits the last lines of the report") {
  Process run(dt_run({"-n", "2", "--show-lines", "0", "--grace-ms", "0"}, {"fail", "0", "255"}));
  CHECK(run.wait() == 255);
  CHECK(count_of(run.err, "about to fail") == 0);
  CHECK(count_of(run.err, "1 rank ended because of it: rank 1 killed by SIGKILL\n") == 1);
}

TEST_CASE("a rank that is killed is named with its signal, and who ignores SIGTERM is killed") {
  Process run(dt_run({"-n", "3", "--grace-ms", "300"}, {"ignore-term"}));
  REQUIRE(run.wait_for_output(" end", 3));
  const Watch watch(pids_in(run.out));
  const pid_t victim = pid_of_rank(run.out, 1);
  REQUIRE(victim > 0);
  kill(victim, SIGKILL);
  CHECK(run.wait() == 128 + SIGKILL);
  CHECK(starts_with(run.err, "rank 1 (host " + host_name() + " pid " + std::to_string(victim) +
                                 ") killed by SIGKILL after "));
  CHECK(count_of(run.err, "2 ranks ended because of it: ranks 0, 2 killed by SIGKILL\n") == 1);
  CHECK(watch.all_ended(0));
}

TEST_CASE("with --on-failure continue the others go on, and the failure is told at once and last") {
  Process run(dt_run({"-n", "3", "--on-failure", "continue"}, {"usr1"}));
  REQUIRE(run.wait_for_output("ready ", 3));
  kill(pid_of_rank(run.out, 1), SIGKILL);
  REQUIRE(run.wait_for_error("; the others go on\n"));
  run.send(SIGUSR1);
  CHECK(run.wait() == 0);
  CHECK(count_of(run.out, "got 1\n") == 2);
  const std::string first = "rank 1 (host " + host_name() + " pid ";
  CHECK(starts_with(run.err, "dt run: " + first));
  CHECK(count_of(run.err, first) == 2);
  CHECK(count_of(run.err, "; the others went on and ended well\n") == 1);
  CHECK(count_of(run.err, "because of it") == 0);
}

TEST_CASE("of ends found at the same time, failures count as before ranks that ended with 0") {
  for (const bool killed : {true, false}) {
    CAPTURE(killed);
    Process run(dt_run({"-n", "2", "--on-failure", "continue"}, {"part"}));
    REQUIRE(run.wait_for_output(" end", 2));
    const std::vector<pid_t> ranks = {pid_of_rank(run.out, 0), pid_of_rank(run.out, 1)};
    const Watch watch(ranks);
    run.send(SIGSTOP);
    kill(ranks[1], killed ? SIGKILL : SIGUSR2);
    kill(ranks[0], SIGUSR1);
    CHECK(watch.all_ended(20'000));
    run.send(SIGCONT);
    CHECK(run.wait() == 0);
    CHECK(count_of(run.err, killed ? "killed by SIGKILL" : "exited with code ") >= 1);
    CHECK(count_of(run.err, "; the others went on and ended well\n") == 1);
  }
}

TEST_CASE("a rank that ends early with 0 is no failure") {
  Process run(dt_run({"-n", "2"}, {"listen"}));
  CHECK(run.wait() == 0);
  CHECK(run.err.empty());
}

TEST_CASE("children that outlive a failed rank are gone when dt returns") {
  for (const char* mode : {"leave", "leave-session"}) {
    Process run(dt_run({"-n", "2", "--grace-ms", "200"}, {mode, "5"}));
    CHECK(run.wait() == 5);
    const std::vector<pid_t> pids = pids_in(run.out);
    CHECK(pids.size() >= 2);
    CHECK(Watch(pids).all_ended(0));
  }
}

TEST_CASE("children that outlive a clean end are gone, too, and it stays silent") {
  for (const char* mode : {"leave", "leave-session"}) {
    Process run(dt_run({"-n", "2"}, {mode, "0"}));
    CHECK(run.wait() == 0);
    CHECK(run.err.empty());
    const std::vector<pid_t> pids = pids_in(run.out);
    CHECK(pids.size() == 4);
    CHECK(Watch(pids).all_ended(0));
  }
}

TEST_CASE("a process of the shell that became dt run is not of the job") {
  Strings command{"/bin/bash", "-c", "exec 2> >(cat >&2); exec \"$@\"", "shell"};
  for (const std::string& word : dt_run({"-n", "2", "--grace-ms", "200"}, {"fail", "1", "7"})) {
    command.push_back(word);
  }
  Process run(command);
  CHECK(run.wait() == 7);
  CHECK(count_of(run.err, "rank 1 (host ") == 1);  // through the shell's `cat`
}

TEST_CASE("the folder of errors is removed, and that of an agent that was killed by the next one") {
  const TempFolder folder;
  const std::string left = folder.path() + "/dt-errors-left";
  const std::string held = folder.path() + "/dt-errors-held";
  REQUIRE(mkdir(left.c_str(), 0700) == 0);
  REQUIRE(mkdir(held.c_str(), 0700) == 0);
  const int fd = open(held.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  REQUIRE(flock(fd, LOCK_EX) == 0);
  Process::Options options;
  options.environment = {"TMPDIR=" + folder.path()};
  const Strings say{"sh", "-c", "echo $TORCHELASTIC_ERROR_FILE"};
  Strings command{required_variable("DT_COMMAND"), "run", "-n", "1"};
  command.insert(command.end(), say.begin(), say.end());
  Process run(command, options);
  CHECK(run.wait() == 0);
  CHECK(starts_with(run.out, folder.path() + "/dt-errors-"));
  size_t folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    CHECK(entry.path() == held);
    ++folders;
  }
  CHECK(folders == 1);
  close(fd);
  options.environment = {"TMPDIR=" + folder.path() + "/none"};
  Process elsewhere(command, options);
  CHECK(elsewhere.wait() == 0);
  CHECK(starts_with(elsewhere.out, "/tmp/dt-errors-"));
}

TEST_CASE("kill -9 of dt run leaves no rank and no child of a rank") {
  Process run(dt_run({"-n", "3"}, {"leave", "stay"}));
  REQUIRE(run.wait_for_output(" end", 3));
  const std::vector<pid_t> pids = pids_in(run.out);
  REQUIRE(pids.size() == 6);
  const Watch watch(pids);
  CHECK_FALSE(watch.all_ended(0));
  run.send(SIGKILL);
  CHECK(watch.all_ended(kGoneMs));
  CHECK(run.wait() == 128 + SIGKILL);
}

TEST_CASE("SIGUSR1 reaches the ranks, which decide") {
  Process run(dt_run({"-n", "3"}, {"usr1"}));
  REQUIRE(run.wait_for_output("ready ", 3));
  run.send(SIGUSR1);
  CHECK(run.wait() == 0);
  CHECK(count_of(run.out, "got 1\n") == 3);
  CHECK(run.err.empty());
}

TEST_CASE("a rank that dies of a passed-on SIGUSR1 has failed") {
  Process run(dt_run({"-n", "1"}, {"stay"}));
  REQUIRE(run.wait_for_output(" end"));
  run.send(SIGUSR1);
  CHECK(run.wait() == 128 + SIGUSR1);
  CHECK(starts_with(run.err, "rank 0 (host "));
  CHECK(count_of(run.err, " killed by SIGUSR1 after ") == 1);
}

TEST_CASE("SIGTERM and SIGINT end the ranks and are told as what they are") {
  const std::pair<int, std::string> signals[] = {
      {SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGHUP, "SIGHUP"}, {SIGQUIT, "SIGQUIT"}};
  for (const auto& [signal, name] : signals) {
    Process run(dt_run({"-n", "2"}, {"stay"}));
    REQUIRE(run.wait_for_output(" end", 2));
    run.send(signal);
    CHECK(run.wait() == 128 + signal);
    CHECK(run.err == "dt run: stopped by " + name + ": ranks 0-1 killed by " + name + "\n");
  }
}

TEST_CASE("ranks that catch SIGTERM and end with its code were stopped, they did not fail") {
  Process run(dt_run({"-n", "2"}, {"catch-term"}));
  REQUIRE(run.wait_for_output(" end", 2));
  run.send(SIGTERM);
  CHECK(run.wait() == 128 + SIGTERM);
  CHECK(run.err == "dt run: stopped by SIGTERM: ranks 0-1 exited with code 143\n");
}

TEST_CASE("a second SIGINT kills ranks that ignore the first") {
  Process run(dt_run({"-n", "2"}, {"ignore-term"}));
  REQUIRE(run.wait_for_output(" end", 2));
  const Watch watch(pids_in(run.out));
  run.send(SIGINT);
  REQUIRE(run.wait_for_output("ignored", 2));  // a second one before would be lost
  run.send(SIGINT);
  CHECK(run.wait() == 128 + SIGINT);
  CHECK(run.err == "dt run: stopped by SIGINT: ranks 0-1 killed by SIGKILL\n");
  CHECK(watch.all_ended(0));
}

TEST_CASE("after SIGTERM ranks are killed only when a grace was asked for") {
  Process run(dt_run({"-n", "2", "--grace-ms", "100"}, {"ignore-term"}));
  REQUIRE(run.wait_for_output(" end", 2));
  run.send(SIGTERM);
  CHECK(run.wait() == 128 + SIGTERM);
  CHECK(run.err == "dt run: stopped by SIGTERM: ranks 0-1 killed by SIGKILL\n");
}

TEST_CASE("SIGHUP that was ignored at start stays ignored") {
  signal(SIGHUP, SIG_IGN);
  Process run(dt_run({"-n", "1"}, {"usr1"}));
  signal(SIGHUP, SIG_DFL);
  REQUIRE(run.wait_for_output("ready "));
  run.send(SIGHUP);
  run.send(SIGUSR1);
  CHECK(run.wait() == 0);
}

TEST_CASE("when the reader of the output leaves, ranks hear of it as without dt") {
  Process run(dt_run({"-n", "1"}, {"endless"}));
  REQUIRE(run.wait_for_output("more\n"));
  run.close_stdout();
  CHECK(run.wait() == 128 + SIGPIPE);
}

TEST_CASE("a program that cannot run is one clear error before anything starts") {
  const std::string dt = dt::test::required_variable("DT_COMMAND");
  Process missing({dt, "run", "-n", "2", "no-such-program"});
  CHECK(missing.wait() == 127);
  CHECK(missing.err ==
        "dt run: program no-such-program not found in PATH; give its path, or correct PATH\n");
  Process folder({dt, "run", "/tmp"});
  CHECK(folder.wait() == 127);
  CHECK(folder.err == "dt run: program /tmp is a folder, not a file\n");
  Process data({dt, "run", "/etc/passwd"});
  CHECK(data.wait() == 127);
  CHECK(starts_with(data.err, "dt run: program /etc/passwd is not executable; "));
}

TEST_CASE("a program that a rank's shell does not find is explained once") {
  Process run(
      {dt::test::required_variable("DT_COMMAND"), "run", "-n", "3", "sh", "-c", "no-such-program"});
  CHECK(run.wait() == 127);
  CHECK(count_of(run.err, "exited with code 127 after ") == 1);
  CHECK(count_of(run.err,
                 "; 127 means that a program, or a shared library that it needs, was not "
                 "found\n") == 1);
}

TEST_CASE("a wrong number of ranks, option or command is refused") {
  const std::string dt = dt::test::required_variable("DT_COMMAND");
  for (const char* count : {"0", "-1", "100000", "two", "99999999999999999999"}) {
    Process run({dt, "run", "-n", count, "true"});
    CHECK(run.wait() == 2);
    CHECK(run.err == std::string("dt run: -n ") + count +
                         ": the number of ranks on one machine is 1 to 4096, or gpu, or auto; see "
                         "dt run --help\n");
  }
  Process option({dt, "run", "--no-such-option", "true"});
  CHECK(option.wait() == 2);
  CHECK(option.err == "dt run: unknown option --no-such-option; see dt run --help\n");
  Process both({dt, "run", "--on-failure", "continue", "--max-restarts", "1", "true"});
  CHECK(both.wait() == 2);
  CHECK(count_of(both.err, "exclude each other") == 1);
  Process nothing({dt, "run", "-n", "2"});
  CHECK(nothing.wait() == 2);
  Process command({dt, "dance"});
  CHECK(command.wait() == 2);
  CHECK(starts_with(command.err, "dt: unknown command \"dance\"; there are: "));
  CHECK(count_of(command.err, "run, ") == 1);
  Process version({dt, "--version"});
  CHECK(version.wait() == 0);
  CHECK(starts_with(version.out, "dt "));
}

TEST_CASE("--max-restarts starts all ranks again, with the next attempt") {
  Process run(
      dt_run({"-n", "3", "--max-restarts", "2", "--grace-ms", "100"}, {"fail-attempt", "1", "0"}));
  CHECK(run.wait() == 0);
  CHECK(starts_with(run.err, "dt run: restart 1 of 2 after rank 1 (host " + host_name() + " pid "));
  CHECK(count_of(run.err, ") exited with code 5 after ") == 1);
  // The others may be ended before they say anything.
  CHECK(count_of(run.out, "attempt 0 0\n") >= 1);
  CHECK(count_of(run.out, "attempt 1 1\n") == 3);
}

TEST_CASE("when the restarts are used up the job ends as without them") {
  Process run(dt_run({"-n", "2", "--max-restarts", "2", "--grace-ms", "100"}, {"fail", "1", "6"}));
  CHECK(run.wait() == 6);
  CHECK(count_of(run.err, "dt run: restart 1 of 2 after rank 1 (") == 1);
  CHECK(count_of(run.err, "dt run: restart 2 of 2 after rank 1 (") == 1);
  CHECK(count_of(run.err, "\nrank 1 (host ") == 1);
}

TEST_CASE("a stop is never followed by a restart") {
  for (const char* mode : {"stay", "ignore-term"}) {
    Process run(dt_run({"-n", "2", "--max-restarts", "9", "--grace-ms", "100"}, {mode}));
    REQUIRE(run.wait_for_output(" end", 2));
    run.send(SIGTERM);
    CHECK(run.wait() == 128 + SIGTERM);
    CHECK(starts_with(run.err, "dt run: stopped by SIGTERM: ranks 0-1 killed by SIG"));
    CHECK(count_of(run.out, "ready ") == 2);
  }
}

TEST_CASE("what says which node this is must fit together") {
  const std::string dt = dt::test::required_variable("DT_COMMAND");
  Process run({dt, "run", "--nnodes", "2", "true"});
  CHECK(run.wait() == 2);
  CHECK(starts_with(run.err, "dt run: --nnodes 2 without a node rank; "));
  CHECK(count_of(run.err, "; see dt run --help\n") == 1);
}
