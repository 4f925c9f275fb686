// SPDX-License-Identifier: Apache-2.0
// What `dt doctor` reports, and its checks of limits, on machines that are pretended.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/doctor/checks.h"
#include "cli/doctor/report.h"
#include "pretended_machine.h"

using dt::test::check_finding;
using dt::test::PretendedMachine;
using namespace dt::cli::doctor;

TEST_CASE("an ordinary machine without a job is good") {
  const PretendedMachine pretended;
  const Report report = examine(pretended.machine, "here");
  for (size_t i = 0; i < checks().size(); ++i) {
    CAPTURE(checks()[i].name);
    CHECK(report.findings[i].grade == Grade::kGood);
    CHECK(report.findings[i].advice.empty());
    CHECK_FALSE(report.findings[i].text.empty());
  }
}

TEST_CASE("whatever is not good says what to do") {
  PretendedMachine pretended;
  pretended.join_job(5000, 64, 9);
  pretended.machine.credentials = {};
  pretended.machine.interfaces[1].bridge = true;
  pretended.machine.open_files = {100, 200};
  pretended.machine.processes = {100, 100};
  pretended.add_gpus(2);
  pretended.machine.nccl = {true, "/lib/libnccl.so.2", 21602, ""};
  pretended.tree.write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
  pretended.tree.write("proc/sys/net/core/somaxconn", "128\n");
  pretended.tree.write("proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 1000 kB\n");
  const Report report = examine(pretended.machine, "here");
  size_t not_good = 0;
  for (size_t i = 0; i < checks().size(); ++i) {
    CAPTURE(checks()[i].name);
    CHECK((report.findings[i].grade == Grade::kGood) == report.findings[i].advice.empty());
    if (report.findings[i].grade != Grade::kGood) ++not_good;
  }
  CHECK(not_good == 11);
  CHECK(worst(report) == Grade::kBad);
}

TEST_CASE("the best of a host's addresses counts") {
  // Bound, so that nobody else gets the port, and not listening: it refuses.
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto here = dt::net::literal_address("127.0.0.1", 0).value();
  REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&here.storage), here.length) == 0);
  REQUIRE(getsockname(fd, reinterpret_cast<sockaddr*>(&here.storage), &here.length) == 0);
  const auto nowhere = dt::net::literal_address("255.255.255.255", 1).value();
  const auto soon = [] { return dt::Deadline::after_ms(60'000); };
  for (const auto& addresses : {std::vector{here, nowhere}, std::vector{nowhere, here}}) {
    const Reach refused = reach_any(addresses, soon());
    CHECK(refused.kind == Reach::kRefused);
    CHECK(refused.local_address == "127.0.0.1");
    CHECK_FALSE(refused.detail.empty());
  }
  CHECK(reach_any({nowhere}, soon()).kind == Reach::kUnroutable);
  REQUIRE(listen(fd, 1) == 0);
  CHECK(reach_any({nowhere, here, nowhere}, soon()).kind == Reach::kOpen);
  close(fd);
}

TEST_CASE("limits are compared with what the job needs") {
  PretendedMachine pretended;
  pretended.join_job(2000, 8, 250);
  check_finding(look_at_open_files(pretended.machine), Grade::kWarning,
                "soft 1024, hard 1048576; the process that serves the store needs 2104",
                "ulimit -n 2104 before the start; dt run does it");
  pretended.machine.open_files.rlim_max = 1024;
  check_finding(look_at_open_files(pretended.machine), Grade::kBad,
                "soft 1024, hard 1024; the process that serves the store needs 2104",
                "raise the hard limit (ulimit -Hn 2104 as root)");
  pretended.tree.write("proc/sys/net/core/somaxconn", "128\n");
  check_finding(look_at_backlog(pretended.machine), Grade::kWarning,
                "net.core.somaxconn 128 for 2000 ranks that connect at once",
                "sysctl -w net.core.somaxconn=2000 where the store is served");
  pretended.machine.processes.rlim_cur = 1000;
  check_finding(look_at_processes(pretended.machine), Grade::kWarning,
                "soft 1000 processes and threads of this user",
                "threads count, and libraries start one per core: ulimit -u 4096");
  CHECK(look_at_locked_memory(pretended.machine).grade == Grade::kGood);
  pretended.tree.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  check_finding(look_at_locked_memory(pretended.machine), Grade::kWarning, "8 MiB may be locked",
                "InfiniBand must lock its buffers: ulimit -l unlimited (in Slurm: "
                "PropagateResourceLimitsExcept=MEMLOCK)");
}

TEST_CASE("processors: the mask, the quota of the control group and of those above it") {
  PretendedMachine pretended;
  check_finding(look_at_processors(pretended.machine), Grade::kGood, "4 of 4");
  pretended.machine.cpus = {0, 2, 3};
  check_finding(look_at_processors(pretended.machine), Grade::kGood, "3 of 4 (0,2-3)");
  pretended.tree.write("sys/devices/system/node/online", "0-1\n");
  pretended.tree.write("sys/devices/system/node/node0/cpulist", "0-1\n");
  pretended.tree.write("sys/devices/system/node/node1/cpulist", "2-3\n");
  check_finding(look_at_processors(pretended.machine), Grade::kGood,
                "3 of 4 (0,2-3), NUMA nodes 0-1");
  pretended.machine.cpus = {2, 3};
  check_finding(look_at_processors(pretended.machine), Grade::kGood, "2 of 4 (2-3), NUMA node 1");
  pretended.tree.write("sys/devices/system/node/online", "0\n");
  pretended.machine.cpus = {0, 2, 3};
  pretended.tree.write("proc/self/cgroup", "0::/pod/container\n");
  pretended.tree.write("sys/fs/cgroup/pod/container/cpu.max", "max 100000\n");
  pretended.tree.write("sys/fs/cgroup/pod/cpu.max", "250000 100000\n");
  check_finding(look_at_processors(pretended.machine), Grade::kWarning,
                "3 of 4 (0,2-3), the control group allows 2.5",
                "threads beyond the quota stop all of them: OMP_NUM_THREADS=2 or less per rank");
  pretended.join_job(8, 4, 2);
  check_finding(look_at_processors(pretended.machine), Grade::kWarning,
                "3 of 4 (0,2-3), the control group allows 2.5; 4 ranks run here",
                "they take turns, and wait for each other: start fewer ranks, or ask for more "
                "processors");
}

TEST_CASE("control groups of version 1 are read as well") {
  PretendedMachine pretended;
  pretended.tree.write("proc/self/cgroup", "4:cpu,cpuacct:/job\n3:memory:/job\n");
  pretended.tree.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "400000\n");
  pretended.tree.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  pretended.tree.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  pretended.tree.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  pretended.tree.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2147483648\n");
  pretended.tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(look_at_processors(pretended.machine).text == "4 of 4, the control group allows 4.0");
  CHECK(look_at_memory(pretended.machine).text ==
        "8.0 GiB of 16.0 GiB available, the control group allows 2.0 GiB");
}

TEST_CASE("scarce memory is a warning") {
  PretendedMachine pretended;
  check_finding(look_at_memory(pretended.machine), Grade::kGood, "8.0 GiB of 16.0 GiB available");
  pretended.tree.write("proc/self/cgroup", "0::/\n");
  pretended.tree.write("sys/fs/cgroup/memory.max", "268435456\n");
  check_finding(look_at_memory(pretended.machine), Grade::kWarning,
                "8.0 GiB of 16.0 GiB available, the control group allows 256 MiB",
                "give the job more memory, or the kernel may kill its ranks");
}

TEST_CASE("no line of the table is longer than 80 columns, and nothing is lost") {
  PretendedMachine pretended;
  pretended.join_job(5000, 64, 9);
  pretended.add_gpus(1);
  const Report report = examine(pretended.machine, "here");
  const std::string text = text_of(report);
  std::string words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    REQUIRE(end != std::string::npos);
    CHECK(end - begin <= 80);
    std::string line = text.substr(begin, end - begin);
    line.erase(0, line.find_first_not_of(' '));
    words += line + " ";
    begin = end + 1;
  }
  for (const Finding& finding : report.findings) {
    CAPTURE(finding.text);
    CHECK(words.find(finding.text) != std::string::npos);
    CHECK(words.find(finding.advice) != std::string::npos);
  }
}

TEST_CASE("only what differs between ranks is shown, by groups of ranks") {
  PretendedMachine pretended;
  pretended.join_job(4, 2, 2);
  std::vector<Report> reports(4);
  for (int rank = 0; rank < 4; ++rank) {
    pretended.machine.place->rank = rank;
    pretended.machine.nccl = {true, "/lib/nccl.so", 22803, "", "x", {}};
    if (rank == 2) pretended.machine.environment["NCCL_ALGO"] = "Tree";
    if (rank == 3) pretended.machine.environment.erase("NCCL_ALGO");
    reports[static_cast<size_t>(rank)] = examine(pretended.machine, "host");
  }
  CHECK(differences_text(reports) ==
        "NCCL settings\n"
        "good     ranks 0, 1, 3:  none: NCCL decides\n"
        "good     rank 2:         NCCL_ALGO=Tree (inherited)\n"
        "\n"
        "21 of 22 checks are alike on the 4 ranks that reported\n");
  CHECK(worst(reports) == Grade::kGood);
  reports[3] = Report();
  reports[2] = reports[1];
  CHECK(differences_text(reports) ==
        "no report of rank 3\n"
        "\n"
        "22 of 22 checks are alike on the 3 ranks that reported\n");
  CHECK(worst(reports) == Grade::kBad);
}

TEST_CASE("what is not good on all ranks is not hidden") {
  PretendedMachine pretended;
  pretended.join_job(2, 2, 1);
  pretended.machine.cpus = {0};
  const Report report = examine(pretended.machine, "host");
  CHECK(differences_text({report, report}) ==
        "22 of 22 checks are alike on the 2 ranks that reported\n"
        "not good on all of them, see dt doctor: processors (warning)\n");
}

TEST_CASE("a report arrives as it was, and nonsense is refused") {
  PretendedMachine pretended;
  pretended.join_job(4, 2, 2);
  const Report report = examine(pretended.machine, "host");
  const std::string bytes = encode(report);
  Report back;
  REQUIRE(decode(bytes, &back));
  CHECK(encode(back) == bytes);
  CHECK(back.host == "host");
  CHECK(back.rank == 1);
  for (size_t size = 0; size < bytes.size(); size += 7) {
    CHECK_FALSE(decode(bytes.substr(0, size), &back));
  }
}
