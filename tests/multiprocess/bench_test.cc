// SPDX-License-Identifier: Apache-2.0
// `dt bench` with real ranks.
#include <doctest/doctest.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cuda/runtime.h"
#include "dt_run.h"

using namespace dt::test;

namespace {

// Short: two sizes on each side of the border between back-to-back and fresh data.
const Strings kShort = {"--sizes", "0,8,4K,64K", "--iters", "3", "--rounds", "3", "-w", "1"};

Strings bench(const Strings& arguments, const Strings& more = {}) {
  Strings command{required_variable("DT_COMMAND"), "bench"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

struct ParsedRow {
  int64_t bytes = 0;
  int64_t count = 0;
  std::string type;
  std::string op;
  int root = 0;
  double us[2] = {};
  double algorithm[2] = {};
  double bus[2] = {};
  int64_t wrong[2] = {};
};

// The rows of the table; anything that is neither a row nor a comment fails.
std::vector<ParsedRow> rows_of(const std::string& text) {
  std::vector<ParsedRow> rows;
  for (const std::string& line : lines_of(text)) {
    if (starts_with(line, "#")) continue;
    CAPTURE(line);
    std::istringstream words(line);
    ParsedRow row;
    words >> row.bytes >> row.count >> row.type >> row.op >> row.root;
    for (int i = 0; i < 2; ++i) {
      words >> row.us[i] >> row.algorithm[i] >> row.bus[i] >> row.wrong[i];
    }
    CHECK(!words.fail());
    std::string rest;
    CHECK(!(words >> rest));
    rows.push_back(row);
  }
  return rows;
}

std::string usage_error(const Strings& arguments) {
  Process process(bench(arguments));
  CHECK(process.wait() == 2);
  CHECK(process.out.empty());
  CHECK(starts_with(process.err, "dt bench: "));
  return process.err;
}

class Directory {
 public:
  Directory() {
    std::string name = (std::filesystem::temp_directory_path() / "dt-bench-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Directory() { std::filesystem::remove_all(path); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  std::string path;
};

}  // namespace

TEST_CASE("the table has nccl-tests' columns and no wrong element, on 1 and 2 ranks") {
  for (const char* ranks : {"1", "2"}) {
    CAPTURE(std::string(ranks));
    Process process(bench({"allreduce", "-n", ranks}, kShort));
    CHECK(process.wait() == 0);
    CHECK(process.err == "");
    const std::vector<ParsedRow> rows = rows_of(process.out);
    REQUIRE(rows.size() == 4);
    const int64_t sizes[] = {0, 8, 4096, 65536};
    for (size_t i = 0; i < rows.size(); ++i) {
      CHECK(rows[i].bytes == sizes[i]);
      CHECK(rows[i].count == sizes[i] / 4);
      CHECK(rows[i].type == "float");
      CHECK(rows[i].op == "sum");
      CHECK(rows[i].root == -1);
      for (int place = 0; place < 2; ++place) {
        CHECK(rows[i].us[place] >= 0);
        CHECK(rows[i].wrong[place] == 0);
        if (ranks[0] == '1') CHECK(rows[i].bus[place] == 0);
        if (ranks[0] == '2') CHECK(rows[i].bus[place] == rows[i].algorithm[place]);
      }
    }
    CHECK(count_of(process.out, "# Out of bounds values : 0 OK\n") == 1);
    CHECK(count_of(process.out, "# Avg bus bandwidth    : ") == 1);
    CHECK(count_of(process.out,
                   ranks[0] == '1' ? ": 1 rank on 1 host, " : ": 2 ranks on 1 host, ") == 1);
  }
}

TEST_CASE("every collective and memory verifies") {
  const Strings collectives[] = {{"allgather", "--memory", "private"},
                                 {"reduce_scatter", "--dtype", "bf16", "--op", "avg"},
                                 {"broadcast", "--dtype", "i8"},
                                 {"reduce", "--op", "max", "--dtype", "i64"},
                                 {"alltoall", "--dtype", "f64", "--op", "max"},
                                 {"gather", "--dtype", "u8", "--memory", "private"},
                                 {"scatter", "--dtype", "i32"},
                                 {"alltoallv", "--dtype", "u8", "--memory", "private"},
                                 {"allgatherv", "--dtype", "f16"},
                                 {"sendrecv", "--memory", "private"},
                                 {"pingpong", "--dtype", "i64"},
                                 {"allreduce", "--op", "prod", "--memory", "private"}};
  for (const Strings& collective : collectives) {
    CAPTURE(collective.front());
    Process process(bench(collective, kShort));
    CHECK(process.wait() == 0);
    CHECK(process.err == "");
    const std::vector<ParsedRow> rows = rows_of(process.out);
    REQUIRE(rows.size() == 4);
    CHECK(rows.back().bytes == 65536);
    const bool rooted = collective.front() == "broadcast" || collective.front() == "reduce" ||
                        collective.front() == "gather" || collective.front() == "scatter";
    CHECK(rows.back().root == (rooted ? 0 : -1));
    CHECK(count_of(process.out, "values : 0 OK") == 1);
  }
}

TEST_CASE("all collectives are measured in one run") {
  Process process(
      bench({"all", "-n", "3", "--sizes", "12,96K", "--iters", "2", "--rounds", "1", "-w", "1"}));
  CHECK(process.wait() == 0);
  CHECK(process.err == "");
  CHECK(rows_of(process.out).size() == 12 * 2 + 1);
  for (const char* header : {"allreduce: float sum, 3 ranks", "alltoall: float none, 3 ranks",
                             "gather: float none, 3 ranks", "scatter: float none, 3 ranks",
                             "barrier: float none, 3 ranks", "alltoallv: float none, 3 ranks",
                             "allgatherv: float none, 3 ranks", "sendrecv: float none, 3 ranks",
                             "pingpong: float none, 3 ranks"}) {
    CAPTURE(std::string(header));
    CHECK(count_of(process.out, "# dt bench " + std::string(header)) == 1);
  }
  CHECK(count_of(process.out, "# Out of bounds values : 0 OK\n") == 1);

  Process barrier(bench({"barrier"}, kShort));
  CHECK(barrier.wait() == 0);
  CHECK(rows_of(barrier.out).size() == 1);
}

TEST_CASE("as a rank it measures within the job") {
  Strings command{required_variable("DT_COMMAND"), "run", "-n", "2", "--no-prefix"};
  const Strings inner = bench({"allreduce"}, kShort);
  command.insert(command.end(), inner.begin(), inner.end());
  Process process(command);
  CHECK(process.wait() == 0);
  CHECK(rows_of(process.out).size() == 4);
  CHECK(count_of(process.out, "allreduce: 2 ranks on 1 host, ") == 1);
  CHECK(count_of(process.out, "launcher: dt run, ranks bound as the launcher did, ") == 1);

  command.insert(command.end(), {"-n", "2"});
  Process nested(command);
  CHECK(nested.wait() == 1);
  CHECK(count_of(nested.err, "-n starts ranks, but this process is itself a rank of a job") >= 1);
  command[command.size() - 2] = "--compare";
  command.back() = "mpich";
  Process compared(command);
  CHECK(compared.wait() == 1);
  CHECK(count_of(compared.err,
                 "--compare starts ranks, but this process is itself a rank of a job; leave it out "
                 "to measure dt in this job, or compare outside of jobs, on this host alone\n") >=
        1);
  command[command.size() - 2] = "--bind";
  command.back() = "none";
  Process bound(command);
  CHECK(bound.wait() == 1);
  CHECK(count_of(bound.err, "--bind starts ranks, but this process is itself a rank") >= 1);
}

TEST_CASE("lists of ranks and dtypes measure every combination") {
  const Directory directory;
  const std::string csv = directory.path + "/a.csv";
  const std::string as_json = directory.path + "/a.json";
  Process process(bench({"allreduce", "-n", "1,2", "--dtype", "i8,f64", "--sizes", "8,64K", "--csv",
                         csv, "--json", as_json, "--iters", "2", "--rounds", "3", "-w", "1"}));
  CHECK(process.wait() == 0);
  CHECK(process.err == "");
  const std::vector<ParsedRow> rows = rows_of(process.out);
  REQUIRE(rows.size() == 2 * 2 * 2);
  CHECK(rows[0].type == "int8");
  CHECK(rows[3].type == "double");
  CHECK(rows[3].bytes == 65536);
  CHECK(rows[3].bus[0] == 0);  // one rank
  CHECK(rows[7].bus[0] == rows[7].algorithm[0]);
  CHECK(count_of(process.out, "# Out of bounds values : 0 OK\n") == 1);
  const Strings lines = lines_of(content_of(csv));
  REQUIRE(lines.size() == 1 + 8 * 2);
  CHECK(starts_with(lines[1], "dt-shared,allreduce,int8,sum,1,8,8,out,3,"));
  CHECK(starts_with(lines[16], "dt-shared,allreduce,double,sum,2,65536,8192,in,3,"));
  CHECK(starts_with(content_of(as_json), "[{\"collective\": \"allreduce\", \"type\": \"int8\""));

  Strings inside = {required_variable("DT_COMMAND"), "run", "-n", "1", "--no-prefix"};
  const Strings command = bench({"allreduce", "--dtype", "all"}, kShort);
  inside.insert(inside.end(), command.begin(), command.end());
  Process rank(inside);
  CHECK(rank.wait() == 1);
  CHECK(count_of(rank.err, "a list of dtypes starts ranks, but this process is itself") == 1);
}

TEST_CASE("ranks have cores of their own where there are enough, and that is said") {
  const Directory directory;
  const std::string as_json = directory.path + "/a.json";
  const auto run = [&](const char* ranks, const char* bind) {
    Process process(bench({"allreduce", "-n", ranks, "--bind", bind, "--sizes", "8", "--json",
                           as_json, "--iters", "2", "--rounds", "1", "-w", "1"}));
    CHECK(process.wait() == 0);
    CHECK(process.err == "");
    return process.out;
  };
  CHECK(count_of(run("1", "cores"), "launcher: dt run, each rank on cores of its own, ") == 1);
  CHECK(count_of(content_of(as_json), "\"binding\": \"cores\"") == 1);
  // The machine is described as it is, not as the bound rank sees it.
  cpu_set_t usable;
  REQUIRE(sched_getaffinity(0, sizeof usable, &usable) == 0);
  const int cores = CPU_COUNT(&usable);
  CHECK(count_of(content_of(as_json), "\"cores\": " + std::to_string(cores) + ",") == 1);
  CHECK(count_of(run("1,2", "none"), " 1 rounds, ranks not bound\n") == 2);
  CHECK(count_of(content_of(as_json), "\"binding\": \"none\"") == 2);
}

TEST_CASE("files have every round") {
  const Directory directory;
  const std::string as_json = directory.path + "/a.json";
  const std::string csv = directory.path + "/a.csv";
  Process process(bench({"allreduce", "--json", as_json, "--csv", csv}, kShort));
  CHECK(process.wait() == 0);
  const Strings lines = lines_of(content_of(csv));
  REQUIRE(lines.size() == 1 + 4 * 2);
  CHECK(starts_with(lines[0], "program,collective,type,redop,ranks,size_bytes,count,place,"));
  CHECK(starts_with(lines[1], "dt-shared,allreduce,float,sum,2,0,0,out,3,"));
  CHECK(starts_with(lines[8], "dt-shared,allreduce,float,sum,2,65536,16384,in,3,"));
  const std::string text = content_of(as_json);
  CHECK(count_of(text, "\"rounds_us\": [") == 8);
  CHECK(count_of(text, "\"size_bytes\": 65536, \"count\": 16384,") == 1);
  CHECK(count_of(text, "\"cores\": ") == 1);

  Process unwritable(bench({"allreduce", "--json", directory.path + "/no/a.json"}, kShort));
  CHECK(unwritable.wait() == 1);
  CHECK(count_of(unwritable.err, "/no/a.json: No such file or directory") == 1);
  CHECK(unwritable.out.empty());  // said before anything was measured
}

TEST_CASE("expectations and pictures are written, by the ranks and by what starts several runs") {
  const Directory directory;
  const std::string svg = directory.path + "/a.svg";
  const std::string expectation = directory.path + "/e.json";
  for (const char* ranks : {"2", "1,2"}) {
    CAPTURE(std::string(ranks));
    const Strings same = {"allreduce", "-n", ranks, "--memory", "private", "--plot", svg};
    Process first(bench(same, {"--sizes", "8,64K", "--iters", "2", "--rounds", "2",
                               "--save-expectation", expectation}));
    CHECK(first.wait() == 0);
    CHECK(count_of(content_of(svg), "<title>dt-private</title>") == (ranks[1] == 0 ? 2 : 4));
    CHECK(count_of(content_of(svg), "</svg>\n") == 1);
    Process held(bench(same, {"--sizes", "8,64K", "--iters", "2", "--rounds", "2", "--expect",
                              expectation, "--expect-factor", "1000000"}));
    CHECK(held.wait() == 0);
    CHECK(count_of(held.out, " rows missed OK\n") == 1);
    Process missed(bench(same, {"--sizes", "8", "--iters", "2", "--rounds", "2", "--expect",
                                expectation, "--expect-factor", "1000000"}));
    CHECK(missed.wait() == 1);
    CHECK(count_of(missed.out,
                   "private allreduce float sum, 2 ranks, 65536 B, in place: not "
                   "measured\n") == 1);
    CHECK(count_of(missed.out, " rows missed FAILED\n") == 1);
  }
  Process absent(bench({"allreduce", "--expect", directory.path + "/no.json"}, kShort));
  CHECK(absent.wait() == 1);
  CHECK(absent.out.empty());
  CHECK(count_of(absent.err,
                 "no.json: No such file or directory; write it with "
                 "--save-expectation\n") == 1);
}

TEST_CASE("bad options are explained") {
  CHECK(count_of(usage_error({}), "collective is required") == 1);
  CHECK(usage_error({"alltogether"}) ==
        "dt bench: unknown collective \"alltogether\"; there are allreduce, allgather, "
        "reduce_scatter, broadcast, reduce, alltoall, gather, scatter, barrier, alltoallv, "
        "allgatherv, sendrecv, pingpong and all; see dt bench --help\n");
  CHECK(count_of(
            usage_error({"allreduce,allgatherv", "--compare", "torch"}),
            "--compare torch: allgatherv of torch is not measured; leave out one of the two") == 1);
  CHECK(count_of(usage_error({"allreduce", "-b", "1X"}), "\"1X\" is no size") == 1);
  CHECK(count_of(usage_error({"allreduce", "-b", "2K", "-e", "1K"}), "-b 2K is more than -e 1K") ==
        1);
  CHECK(count_of(usage_error({"allreduce", "--dtype", "f8"}), "--dtype f8: there are i8") == 1);
  CHECK(count_of(usage_error({"allreduce", "--op", "xor"}), "--op xor: there are sum") == 1);
  CHECK(count_of(usage_error({"allreduce", "--memory", "gpu"}), "there are shared and private") ==
        1);
  CHECK(count_of(usage_error({"allreduce", "--bind", "numa"}),
                 "--bind numa: there are cores and none") == 1);
  CHECK(count_of(usage_error({"allreduce", "-n", "0"}), "--nproc") == 1);
  CHECK(count_of(usage_error({"allreduce", "--compare", "nccl"}),
                 "--compare nccl: there are openmpi, mpich, gloo and torch") == 1);
  CHECK(count_of(usage_error({"allreduce", "--compare", "mpich", "--dtype", "bf16"}),
                 "MPI has no f16 and bf16") == 1);
  CHECK(count_of(usage_error({"reduce_scatter", "--compare", "gloo"}),
                 "--compare gloo: gloo has no reduce_scatter; leave out one of the two") == 1);
  CHECK(count_of(usage_error({"allreduce", "--compare", "torch", "--dtype", "f32,bf16"}),
                 "--compare torch: torch has no bfloat16") == 1);
  CHECK(count_of(usage_error({"allreduce", "--compare", "openmpi", "--op", "avg"}),
                 "MPI has no avg") == 1);
  CHECK(count_of(usage_error({"allreduce", "-n", "2,x"}), "--nproc 2,x: write numbers from 1") ==
        1);
}

TEST_CASE("--tune tries values of [host], and leaves what it does not change as it was") {
  const Directory directory;
  const std::string path = directory.path + "/dt.toml";
  const std::string before = "# mine\n[log]\nlevel = \"info\"\n";
  std::ofstream(path) << before;
  const Strings arguments = {
      "--tune", "--tune-keys", "exchange_ranks", "--sizes", "16K",          "--iters", "3",
      "-w",     "1",           "--rounds",       "3",       "--tune-write", path};
  Process process(bench(arguments));
  CHECK(process.wait() == 0);
  INFO(process.out);
  INFO(process.err);
  CHECK(process.err.empty());
  CHECK(count_of(process.out, "# dt bench --tune: allreduce float sum, 2 ranks, up to 3 rounds") ==
        1);
  CHECK(count_of(process.out, "the present value, again (3 rounds)\n") == 1);
  // Which of the two is faster is the machine's affair.
  const bool found = count_of(process.out, "[host]\nexchange_ranks = 1  # was 2\n") == 1;
  CHECK(count_of(process.out, "# nothing is faster for sure") == (found ? 0 : 1));
  CHECK(count_of(process.out, "# written to ") == (found ? 1 : 0));
  CHECK(content_of(path) == before + (found ? "\n[host]\nexchange_ranks = 1\n" : ""));
}

TEST_CASE("--tune says what does not go with it, before it measures") {
  CHECK(count_of(usage_error({"--tune", "allreduce"}), "--tune does not go with a collective") ==
        1);
  CHECK(count_of(usage_error({"--tune", "-n", "2,4"}), "--tune does not go with a list of ranks") ==
        1);
  CHECK(count_of(usage_error({"--tune", "--wire", "10"}), "--tune does not go with --wire") == 1);
  CHECK(count_of(usage_error({"--tune", "--rounds", "2"}), "--tune needs at least 3 rounds") == 1);
  CHECK(count_of(usage_error({"allreduce", "--tune-write", "x"}), "--tune-write requires --tune") ==
        1);
  Process unknown(bench({"--tune", "--tune-keys", "slots"}));
  CHECK(unknown.wait() == 1);
  CHECK(count_of(unknown.err, "--tune-keys slots: there are inline_bytes, ") == 1);
  const Directory directory;
  const std::string path = directory.path + "/dt.toml";
  std::ofstream(path) << "[host]\nslot_byte = 1\n";
  Process unreadable(bench({"--tune", "--tune-write", path}));
  CHECK(unreadable.wait() == 1);
  CHECK(unreadable.out.empty());
  CHECK(count_of(unreadable.err, "dt.toml:2:1: unknown key") == 1);
  Strings inside = {required_variable("DT_COMMAND"), "run", "-n", "1", "--no-prefix"};
  const Strings command = bench({"--tune"});
  inside.insert(inside.end(), command.begin(), command.end());
  Process rank(inside);
  CHECK(rank.wait() != 0);
  CHECK(count_of(rank.err, "--tune starts ranks, but this process is itself a rank of a job") == 1);
}

TEST_CASE("GPU memory is measured, or what is missing is said") {
  const dt::Status reason = dt::cuda::explain(dt::cuda::ask());
  Process process(bench({"allreduce", "--device", "cuda", "-n", "1"}, kShort));
  if (reason.ok()) {
    CHECK(process.wait() == 0);
    CHECK(rows_of(process.out).size() == 4);
    return;
  }
  CHECK(process.wait() == 1);
  CHECK(process.out.empty());
  CHECK(process.err == "dt bench: " + reason.message() + "\n");
  Strings inside = {required_variable("DT_COMMAND"), "run", "-n", "2", "--no-prefix"};
  const Strings command = bench({"allreduce", "--device", "cuda"}, kShort);
  inside.insert(inside.end(), command.begin(), command.end());
  Process ranks(inside);
  CHECK(ranks.wait() == 1);
  CHECK(count_of(ranks.err, "dt bench: " + reason.message() + "\n") >= 1);
  CHECK(usage_error({"allreduce", "--device", "cuda", "--compare", "mpich"}) ==
        "dt bench: --compare measures beside MPI in host memory, where --device cuda is not; leave "
        "out one of the two; see dt bench --help\n");
}

TEST_CASE("a missing rival is named with its packages") {
  Process::Options options;
  options.environment = {"PATH=/nowhere"};
  Process openmpi(bench({"allreduce", "--compare", "openmpi", "--sizes", "8"}), options);
  CHECK(openmpi.wait() == 1);
  CHECK(
      openmpi.err ==
      "dt bench: --compare openmpi needs mpicc.openmpi, which is not in PATH; install it (Debian: "
      "apt install openmpi-bin libopenmpi-dev) or leave openmpi out\n");
  Process mpich(bench({"allreduce", "--compare", "mpich", "--sizes", "8"}), options);
  CHECK(mpich.wait() == 1);
  CHECK(count_of(mpich.err, "apt install mpich libmpich-dev") == 1);
  Process gloo(bench({"allreduce", "--compare", "gloo", "--sizes", "8"}), options);
  CHECK(gloo.wait() == 1);
  CHECK(count_of(gloo.err,
                 "--compare gloo needs c++, which is not in PATH; install it (Debian: "
                 "apt install libgloo-dev g++) or leave gloo out") == 1);
}

TEST_CASE("a rival that fails or hangs is an error with its last lines, and nothing is left") {
  // Stand-ins for mpicc and mpirun: what dt does with rivals is tested without any.
  const Directory directory;
  const auto script = [&](const std::string& name, const std::string& text) {
    const std::string path = directory.path + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n" << text;
    REQUIRE(chmod(path.c_str(), 0755) == 0);
  };
  script("mpicc.mpich",
         "for last; do :; done; echo '#!/bin/sh' > \"$last\"; chmod 755 \"$last\"\n");
  Process::Options options;
  options.environment = {"PATH=" + directory.path + ":/usr/bin:/bin",
                         "XDG_CACHE_HOME=" + directory.path + "/cache"};
  const Strings arguments = {"allreduce", "--compare", "mpich", "--rounds", "1", "--iters", "1"};

  script("mpirun.mpich", "echo no slots >&2; exit 7\n");
  Process failing(bench(arguments, {"--sizes", "8"}), options);
  CHECK(failing.wait() == 1);
  CHECK(failing.err ==
        "dt bench: mpich: mpirun.mpich ended with exit code 7; the last lines it printed:\n"
        "    no slots\n");

  // A stubborn launcher with a stubborn rank in a session of its own. dt's own runs come first and
  // have to be done in that time as well, on a busy machine, too.
  script("mpirun.mpich", "trap '' TERM; exec setsid -w sh -c 'echo $$ > " + directory.path +
                             "/pid; exec sleep 1000'\n");
  Process hanging(bench(arguments, {"--sizes", "8", "--timeout", "10"}), options);
  CHECK(hanging.wait() == 1);
  CHECK(count_of(hanging.err, "mpirun.mpich was not done after 10 s and was ended") == 1);
  const int pid = atoi(content_of(directory.path + "/pid").c_str());
  REQUIRE(pid > 0);
  CHECK(access(("/proc/" + std::to_string(pid)).c_str(), F_OK) != 0);

  // It ends dt bench, which ends it and leaves nothing behind.
  const std::string folder = directory.path + "/tmp";
  REQUIRE(mkdir(folder.c_str(), 0700) == 0);
  options.environment.push_back("TMPDIR=" + folder);
  script("mpirun.mpich",
         "echo $$ > " + directory.path + "/pid; kill -TERM $PPID; exec sleep 1000\n");
  Process interrupted(bench(arguments, {"--sizes", "8"}), options);
  CHECK(interrupted.wait() == 128 + SIGTERM);
  const int child = atoi(content_of(directory.path + "/pid").c_str());
  REQUIRE(child > 0);
  CHECK(access(("/proc/" + std::to_string(child)).c_str(), F_OK) != 0);
  CHECK(std::filesystem::is_empty(folder));

  script("mpirun.mpich", "echo dt-bench-library Silent; echo dt-bench-row 8 2 1.5 2.5 0 1\n");
  Process wrong(bench(arguments, {"--sizes", "8"}), options);
  CHECK(wrong.wait() == 1);
  CHECK(count_of(wrong.out, "# mpich: Silent\n") == 1);
  CHECK(count_of(wrong.out, "# mpich: WRONG RESULTS\n") == 1);
  CHECK(count_of(wrong.out, "2.50 [2.50-2.50]") == 1);
  CHECK(count_of(wrong.out, "# Out of bounds values : 1 FAILED\n") == 1);

  script("mpirun.mpich", "echo hello\n");
  Process silent(bench(arguments, {"--sizes", "8"}), options);
  CHECK(silent.wait() == 1);
  CHECK(silent.err == "dt bench: mpich measured 0 of 1 sizes\n");
}
