// SPDX-License-Identifier: Apache-2.0
// `dt run`: what the ranks get, and what becomes of what they write.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "dt_run.h"

using namespace dt::test;

namespace {

// What a terminal of unlimited height shows in the end.
Strings screen_of(const std::string& bytes) {
  Strings lines{""};
  size_t column = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string& line = lines.back();
    if (bytes[i] == '\n') {
      lines.emplace_back();
    } else if (bytes[i] == '\r') {
      column = 0;
    } else if (bytes[i] == '\x1b') {
      const size_t end = bytes.find_first_of("Km", i);
      if (bytes[end] == 'K') line.resize(std::min(column, line.size()));
      i = end;
    } else {
      line.resize(std::max(line.size(), column + 1), ' ');
      line[column++] = bytes[i];
    }
  }
  return lines;
}

}  // namespace

TEST_CASE("concurrent output keeps whole lines, in order, each with its rank") {
  constexpr int kRanks = 11;
  constexpr int kLines = 10'000;
  Process run(dt_run({"-n", "11"}, {"lines", std::to_string(kLines)}));
  CHECK(run.wait() == 0);
  CHECK(run.err.empty());
  std::vector<int> next(kRanks, 0);
  int wrong = 0;
  for (const std::string& line : lines_of(run.out)) {
    int rank = -1;
    sscanf(line.c_str(), "[%d]", &rank);
    if (rank < 0 || rank >= kRanks) {
      ++wrong;
      continue;
    }
    const int i = next[static_cast<size_t>(rank)]++;
    char expected[128];
    snprintf(expected, sizeof expected, "[%2d] rank %d line %d %.*s", rank, rank, i, i % 50,
             "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz");
    if (line != expected) ++wrong;
  }
  CHECK(wrong == 0);
  CHECK(next == std::vector<int>(kRanks, kLines));
}

TEST_CASE("stdout goes to stdout and stderr to stderr") {
  Process run(dt_run({"-n", "2"}, {"both"}));
  CHECK(run.wait() == 0);
  Strings out = lines_of(run.out);
  Strings err = lines_of(run.err);
  std::sort(out.begin(), out.end());
  std::sort(err.begin(), err.end());
  CHECK(out == Strings{"[0] to stdout", "[1] to stdout"});
  CHECK(err == Strings{"[0] to stderr", "[1] to stderr"});
}

TEST_CASE("one rank has no prefix unless it is asked for") {
  Process plain(dt_run({"-n", "1"}, {"both"}));
  CHECK(plain.wait() == 0);
  CHECK(plain.out == "to stdout\n");
  Process prefixed(dt_run({"-n", "1", "--prefix"}, {"both"}));
  CHECK(prefixed.wait() == 0);
  CHECK(prefixed.out == "[0] to stdout\n");
  Process bare(dt_run({"-n", "2", "--no-prefix"}, {"both"}));
  CHECK(bare.wait() == 0);
  CHECK(bare.out == "to stdout\nto stdout\n");
}

TEST_CASE("any byte passes, the last state of a progress line stays, and a last line gets an end") {
  Process run(dt_run({}, {"bytes"}));
  CHECK(run.wait() == 0);
  CHECK(run.out == std::string("a\0b\xff\nfull\ndos\nlast\n", 19));
}

TEST_CASE("a line above 64 KiB comes in pieces and loses nothing") {
  constexpr size_t kBytes = 200'000;
  Process run(dt_run({"--prefix"}, {"huge", std::to_string(kBytes)}));
  CHECK(run.wait() == 0);
  const Strings lines = lines_of(run.out);
  REQUIRE(lines.size() == 4);  // 3 * 65536 + 3392
  for (const std::string& line : lines) CHECK(starts_with(line, "[0] xxx"));
  CHECK(lines.front().size() == 4 + 65536);
  CHECK(count_of(run.out, "x") == kBytes);
}

TEST_CASE("--show passes on the ranks that it names") {
  Process one(dt_run({"-n", "3", "--show", "1-2"}, {"both"}));
  CHECK(one.wait() == 0);
  CHECK(count_of(one.out, "[0]") == 0);
  CHECK(count_of(one.out, "to stdout") == 2);
  Process errors(dt_run({"-n", "2", "--show", "errors"}, {"fail", "1", "3"}));
  CHECK(errors.wait() == 3);
  CHECK(errors.out.empty());
  CHECK(count_of(errors.err, "[1] about to fail\n") == 1);
  Process wrong(dt_run({"-n", "2", "--show", "2"}, {"both"}));
  CHECK(wrong.wait() == 2);
  CHECK(wrong.err == "dt run: --show names rank 2, but the ranks are 0 to 1; see dt run --help\n");
}

TEST_CASE("--log-dir has each rank's output as it was written") {
  const TempFolder folder;
  const std::filesystem::path logs = std::filesystem::path(folder.path()) / "made" / "here";
  Process run(dt_run({"-n", "2", "--show", "0", "--log-dir", logs.string()}, {"bytes"}));
  CHECK(run.wait() == 0);
  const std::string whole("a\0b\xff\n10%\r20%\rfull\ndos\r\nlast", 27);
  CHECK(content_of(logs / "rank-0000.out") == whole);
  CHECK(content_of(logs / "rank-0001.out") == whole);
  CHECK(content_of(logs / "rank-0001.err").empty());

  Process refused(dt_run({"--log-dir", "/proc/none"}, {"both"}));
  CHECK(refused.wait() == 1);
  CHECK(starts_with(refused.err, "dt run: --log-dir: cannot create /proc/none: "));
  CHECK(refused.out.empty());
}

TEST_CASE("warnings of the settings are given once, also where a restart fails") {
  const TempFolder folder;
  std::ofstream(folder.path() + "/dt.toml") << "schema = 99\nnext = 1\n";
  Process::Options options;
  options.environment = {"DT_CONFIG=" + folder.path() + "/dt.toml",
                         "LOGS=" + folder.path() + "/logs"};
  const std::string dt = dt::test::required_variable("DT_COMMAND");
  Process run({dt, "run", "--max-restarts", "1", "--log-dir", folder.path() + "/logs", "sh", "-c",
               dt + " config >/dev/null; rm -r $LOGS; touch $LOGS; exit 3"},
              options);
  CHECK(run.wait() == 1);
  INFO(run.err);
  CHECK(count_of(run.err,
                 "dt run: --log-dir: cannot create " + folder.path() + "/logs/attempt-1: ") == 1);
  CHECK(count_of(run.err, "dt config: warning: ") == 1);
  CHECK(count_of(run.err, "dt run: warning: ") == 0);
}

TEST_CASE("--log-dir empties regular files only, of one name") {
  const TempFolder folder;
  const std::filesystem::path logs = folder.path();
  const std::filesystem::path log = logs / "rank-0000.out";
  const std::filesystem::path other = logs / "notes";
  const auto refused = [&](const std::string& why) {
    Process run(dt_run({"--log-dir", logs.string()}, {"both"}));
    CHECK(run.wait() == 1);
    CHECK(run.err == "dt run: --log-dir: cannot write " + log.string() + ": " + why + "\n");
    CHECK(run.out.empty());
    std::filesystem::remove(log);
  };
  std::ofstream(other) << "worth keeping";
  std::filesystem::create_symlink("notes", log);
  refused("it is a symbolic link; remove it or name another folder");
  std::filesystem::create_symlink("none", log);
  refused("it is a symbolic link; remove it or name another folder");
  CHECK_FALSE(std::filesystem::exists(logs / "none"));
  std::filesystem::create_hard_link(other, log);
  refused("it is one file under several names (hard links); remove it");
  CHECK(content_of(other) == "worth keeping");

  const std::string not_regular = "it is not a regular file; remove it or name another folder";
  REQUIRE(mkfifo(log.c_str(), 0600) == 0);
  refused(not_regular);
  REQUIRE(mkfifo(log.c_str(), 0600) == 0);
  const int reader = open(log.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  refused(not_regular);
  close(reader);

  std::ofstream(log) << "a longer text of the run before";
  Process again(dt_run({"--log-dir", logs.string()}, {"both"}));
  CHECK(again.wait() == 0);
  CHECK(content_of(log) == "to stdout\n");
}

TEST_CASE("output that cannot be written is told, and the job has not ended well") {
  const std::string dt = dt::test::required_variable("DT_COMMAND");
  Process full({"/bin/sh", "-c", dt + " run -n 2 echo hello >/dev/full"});
  CHECK(full.wait() == 1);
  CHECK(full.err ==
        "dt run: cannot write to stdout: No space left on device; what the ranks print from here "
        "on is lost\n");
  const TempFolder folder;
  // 1 MiB: ThreadSanitizer writes a file of 512 KiB when a program starts.
  Process limited({"/bin/sh", "-c",
                   "trap '' XFSZ; ulimit -f 2048; " + dt + " run --log-dir " + folder.path() +
                       " head -c 2000000 /dev/zero"});
  CHECK(limited.wait() == 1);
  CHECK(std::count(limited.out.begin(), limited.out.end(), '\0') == 2000000);
  CHECK(limited.err ==
        "dt run: the log file of rank 0 is cut short: File too large; make room for it, or name "
        "another folder with --log-dir\n");
}

TEST_CASE("a terminal shows only rank 0's progress, and no line is torn by it") {
  constexpr int kSteps = 200;
  Process::Options options;
  options.terminal = true;
  options.environment = {"NO_COLOR=1"};
  Process run(dt_run({"-n", "3"}, {"progress", std::to_string(kSteps)}), options);
  REQUIRE(run.wait_for_output("[0] step 199"));
  REQUIRE(run.wait_for_output(" line 199", 2));
  run.send(SIGUSR1);
  CHECK(run.wait() == 0);
  CHECK(count_of(run.out, "hidden") == 0);
  Strings expected{"", "[0] begin", "[0] done", "[1] begin", "[1] done", "[2] begin", "[2] done"};
  for (int i = 0; i < kSteps; ++i) {
    for (const char* rank : {"[1]", "[2]"}) {
      expected.push_back(std::string(rank) + " line " + std::to_string(i));
    }
  }
  Strings screen = screen_of(run.out);
  std::sort(screen.begin(), screen.end());
  std::sort(expected.begin(), expected.end());
  CHECK(screen == expected);
}

TEST_CASE("a file keeps no progress at all") {
  Process run(dt_run({"-n", "2"}, {"progress", "20"}));
  REQUIRE(run.wait_for_output("begin\n", 2));
  REQUIRE(run.wait_for_output("[1] line 19\n"));
  run.send(SIGUSR1);
  CHECK(run.wait() == 0);
  CHECK(count_of(run.out, "\r") == 0);
  CHECK(count_of(run.out, "\x1b") == 0);
  CHECK(count_of(run.out, "[0] ") == 2);
  CHECK(count_of(run.out, "[0] done\n") == 1);
  CHECK(count_of(run.out, "[1] ") == 22);
}

TEST_CASE("colours are for terminals whose user has nothing against them") {
  Process::Options options;
  options.terminal = true;
  options.environment = {"NO_COLOR="};
  Process colored(dt_run({"-n", "2"}, {"both"}), options);
  CHECK(colored.wait() == 0);
  CHECK(count_of(colored.out, "\x1b[36m[0] \x1b[0mto stdout\r\n") == 1);
  CHECK(count_of(colored.out, "\x1b[33m[1] \x1b[0mto stdout\r\n") == 1);
}

TEST_CASE("a live line fills the terminal but for one column, and its colours end") {
  Process::Options options;
  options.terminal = true;  // of unknown size: 80 columns
  options.environment = {"NO_COLOR="};
  Process run({dt::test::required_variable("DT_COMMAND"), "run", "--prefix", "/bin/sh", "-c",
               "printf '\\033[32m%0200d\\033[0m' 0; exec sleep 60"},
              options);
  CHECK(run.wait_for_output("\x1b[36m[0] \x1b[0m\x1b[32m" + std::string(75, '0') + "\x1b[0m"));
  run.send(SIGTERM);
  CHECK(run.wait() == 128 + SIGTERM);
}

TEST_CASE("ranks get the settings of NCCL, which win over inherited variables or yield to them") {
  const auto run_with = [](const Strings& environment) {
    Process::Options options;
    options.environment = environment;
    options.environment.push_back("NCCL_ALGO=Tree");
    options.environment.push_back("DT_NCCL_ALGO=Ring");
    options.environment.push_back("DT_NCCL_NVLS_ENABLE=false");
    Strings command = {dt::test::required_variable("DT_COMMAND"), "run", "sh", "-c",
                       "echo $NCCL_ALGO $NCCL_NVLS_ENABLE $NCCL_MAX_CTAS"};
    return std::make_unique<Process>(command, options);
  };
  auto run = run_with({});
  CHECK(run->wait() == 0);
  CHECK(run->out == "Ring 0\n");
  CHECK(run->err ==
        "dt run: warning: NCCL_ALGO=Ring (nccl.algo, environment DT_NCCL_ALGO) replaces the "
        "inherited Tree; unset it, or keep it by nccl.inherit = \"override\"\n");
  run = run_with({"DT_NCCL_INHERIT=override"});
  CHECK(run->wait() == 0);
  CHECK(run->out == "Tree 0\n");
  CHECK(run->err.empty());
  run = run_with({"DT_NCCL_MIN_CTAS=2"});
  CHECK(run->wait() == 1);
  CHECK(starts_with(run->err, "dt run: nccl.min_ctas is 2 without nccl.max_ctas"));
}

TEST_CASE("each job on a host has a port of its own for NCCL's RAS service") {
  const auto command = [](const char* script) {
    return Strings{dt::test::required_variable("DT_COMMAND"), "run", "-n", "2", "sh", "-c", script};
  };
  const auto address_of = [](const std::string& line) { return line.substr(line.find(' ') + 1); };
  Process first(command("echo $NCCL_RAS_ADDR; exec sleep 60"));
  REQUIRE(first.wait_for_output("] 127.0.0.1:", 2));
  Process second(command("echo $NCCL_RAS_ADDR"));
  CHECK(second.wait() == 0);
  const Strings there = lines_of(first.out), here = lines_of(second.out);
  REQUIRE(there.size() == 2);
  REQUIRE(here.size() == 2);
  CHECK(address_of(there[0]) == address_of(there[1]));
  CHECK(address_of(here[0]) == address_of(here[1]));
  CHECK(address_of(there[0]) != address_of(here[0]));
  first.send(SIGTERM);
  CHECK(first.wait() == 128 + SIGTERM);
  Process::Options own;
  own.environment = {"NCCL_RAS_ADDR=localhost:1"};
  Process third(command("echo $NCCL_RAS_ADDR"), own);
  CHECK(third.wait() == 0);
  CHECK(count_of(third.out, "] localhost:1\n") == 2);
}

TEST_CASE("ranks are told where they stand, as dt and as torchrun say it") {
  const Strings names = {"DT_RANK",      "DT_WORLD_SIZE",    "DT_LOCAL_RANK", "DT_LOCAL_SIZE",
                         "DT_NODE_RANK", "DT_NODE_COUNT",    "DT_ATTEMPT",    "DT_MASTER_ADDR",
                         "DT_RUN_TTY",   "DT_STORE_SERVED",  "RANK",          "WORLD_SIZE",
                         "LOCAL_RANK",   "LOCAL_WORLD_SIZE", "GROUP_RANK",    "NODE_RANK",
                         "MASTER_ADDR",  "OMP_NUM_THREADS"};
  const Strings values = {"1",    "2", "1", "2", "0", "1", "0", "127.0.0.1", "0",
                          "true", "1", "2", "1", "2", "0", "0", "127.0.0.1", "5"};
  Process::Options options;
  options.environment = {"OMP_NUM_THREADS=5", "DT_RANK=77", "DT_RUN_TTY=1"};
  for (size_t i = 0; i < names.size(); i += 2) {
    Process run(
        dt_run({"-n", "2", "--show", "1", "--no-prefix"}, {"variables", names[i], names[i + 1]}),
        options);
    CHECK(run.wait() == 0);
    CHECK(run.out == names[i] + "=" + values[i] + "\n" + names[i + 1] + "=" + values[i + 1] + "\n");
  }
}

TEST_CASE("OMP_NUM_THREADS shares the cores when it is not set, and -v says so") {
  unsetenv("OMP_NUM_THREADS");
  Process small(dt_run({"-v"}, {"variables", "OMP_NUM_THREADS", "DT_LAUNCHER_PID"}));
  CHECK(small.wait() == 0);
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  int threads = 0;
  CHECK(sscanf(small.out.c_str(), "OMP_NUM_THREADS=%d", &threads) == 1);
  CHECK(threads >= 1);
  CHECK(threads <= cores);
  CHECK(count_of(small.out, "DT_LAUNCHER_PID=" + std::to_string(small.pid()) + "\n") == 1);
  CHECK(count_of(small.err, "dt run: OMP_NUM_THREADS=" + std::to_string(threads)) == 1);
}

TEST_CASE("a program that does not use dt can listen on MASTER_PORT, which is not the store's") {
  Process run(dt_run({"-n", "2", "-v"}, {"listen"}));
  CHECK(run.wait() == 0);
  CHECK(run.out == "[0] listening\n");
}

TEST_CASE("ranks get no descriptor of the agent's") {
  Process run(dt_run({"-n", "3"}, {"descriptors"}));
  CHECK(run.wait() == 0);
  CHECK(count_of(run.out, "descriptors 3\n") == 3);
}

TEST_CASE("rank 0 reads the input and the others nothing") {
  Process::Options options;
  options.input = std::string(100'000, 'i');
  Process run(dt_run({"-n", "2"}, {"input"}), options);
  CHECK(run.wait() == 0);
  CHECK(count_of(run.out, "[0] read 100000\n") == 1);
  CHECK(count_of(run.out, "[1] read 0\n") == 1);
}

TEST_CASE("--bind cores gives each rank processors of its own, if there are enough") {
  Process free(dt_run({"-n", "1"}, {"cpus"}));
  CHECK(free.wait() == 0);
  Process bound(dt_run({"-n", "2", "--bind", "cores"}, {"cpus"}));
  CHECK(bound.wait() == 0);
  const size_t all = count_of(free.out, " ");
  if (bound.err.empty()) {
    CHECK(count_of(bound.out, " ") == all + 2);  // together as many, and a prefix each
  } else {
    CHECK(bound.err == "dt run: --bind cores: 1 core for 2 ranks, so nothing is bound\n");
  }
  Process wrong(dt_run({"--bind", "sockets"}, {"cpus"}));
  CHECK(wrong.wait() == 2);
  CHECK(wrong.err == "dt run: --bind: sockets not in {none,cores,numa}; see dt run --help\n");
}
