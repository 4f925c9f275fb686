// SPDX-License-Identifier: Apache-2.0
// The checks of `dt doctor`, on machines that are pretended.
#include <doctest/doctest.h>

#include "cli/doctor/checks.h"
#include "cli/doctor/report.h"
#include "pretended_tree.h"

using dt::Status;
using dt::test::PretendedTree;
using namespace dt::cli::doctor;

namespace {

// An ordinary machine, and a process that nobody started as part of a job.
struct Pretended {
  PretendedTree tree;
  Machine machine;

  Pretended() {
    machine.roots = {tree.root() + "/proc", tree.root() + "/sys", tree.root() + "/dev"};
    machine.place.emplace();
    machine.place->launcher = "single";
    machine.cpus = {0, 1, 2, 3};
    machine.open_files = {1024, 1 << 20};
    machine.processes = {RLIM_INFINITY, RLIM_INFINITY};
    machine.locked_memory = {8 << 20, 8 << 20};
    machine.interfaces = {{"lo", "127.0.0.1", true, false},
                          {"eth0", "10.0.0.5", false, false},
                          {"docker0", "172.17.0.1", false, true}};
    tree.write("proc/sys/net/core/somaxconn", "4096\n");
    tree.write("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
    tree.write("proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n");
    tree.write("sys/devices/system/cpu/online", "0-3\n");
  }

  // Rank 1 of a job on several nodes, whose store answers and who has a token.
  void join_job(int world_size, int local_size, int node_count) {
    machine.place->rank = 1;
    machine.place->world_size = world_size;
    machine.place->local_rank = 1;
    machine.place->local_size = local_size;
    machine.place->node_rank = 0;
    machine.place->node_count = node_count;
    machine.place->master_addr = "10.0.0.1";
    machine.place->master_port = 4711;
    machine.place->store_served = machine.place->port_taken = true;
    machine.place->launcher = "dt run";
    machine.rendezvous = Reach{Reach::kOpen, {}, "10.0.0.5"};
    machine.credentials.take(std::move(dt::net::Token::from_text(std::string(64, '7'))).value(),
                             "the file /run/dt");
  }
  void add_gpus(int count) {
    tree.write("proc/driver/nvidia/version",
               "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 2023\n"
               "GCC version:  gcc version 12.2.0\n");
    for (int i = 0; i < count; ++i) tree.write("dev/nvidia" + std::to_string(i), "");
  }
};

void check_finding(const Finding& found, Grade grade, const std::string& text,
                   const std::string& advice = "") {
  CHECK(std::string(grade_name(found.grade)) == grade_name(grade));
  CHECK(found.text == text);
  CHECK(found.advice == advice);
}

}  // namespace

TEST_CASE("an ordinary machine without a job is good") {
  const Pretended pretended;
  const Report report = examine(pretended.machine, "here");
  for (size_t i = 0; i < checks().size(); ++i) {
    CAPTURE(checks()[i].name);
    CHECK(report.findings[i].grade == Grade::kGood);
    CHECK(report.findings[i].advice.empty());
    CHECK_FALSE(report.findings[i].text.empty());
  }
}

TEST_CASE("whatever is not good says what to do") {
  Pretended pretended;
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

TEST_CASE("a launcher that contradicts itself is bad, with its own advice") {
  Pretended pretended;
  pretended.machine.place.reset();
  pretended.machine.place_error =
      Status(dt::Code::kConfig, "partial: RANK=3 is set, but WORLD_SIZE is not; set both");
  check_finding(look_at_launcher(pretended.machine), Grade::kBad,
                "partial: RANK=3 is set, but WORLD_SIZE is not", "set both");
  check_finding(look_at_place(pretended.machine), Grade::kBad, "unknown", "see launcher");
}

TEST_CASE("the interface is the one on the route to the rendezvous") {
  Pretended pretended;
  pretended.join_job(4, 2, 2);
  const Finding good = look_at_interface(pretended.machine);
  check_finding(good, Grade::kGood,
                "eth0 10.0.0.5, by the route to 10.0.0.1; not lo 127.0.0.1 (loopback), docker0 "
                "172.17.0.1 (bridge)");
  CHECK(good.compared == "eth0");  // addresses differ between hosts
  pretended.machine.rendezvous->local_address = "172.17.0.1";
  check_finding(look_at_interface(pretended.machine), Grade::kWarning,
                "docker0 172.17.0.1 (bridge), by the route to 10.0.0.1; not lo 127.0.0.1 "
                "(loopback), eth0 10.0.0.5",
                "bridges of containers have the same address on many hosts: give the rendezvous an "
                "address of the real network");
  pretended.machine.rendezvous->local_address = "127.0.0.1";
  CHECK(look_at_interface(pretended.machine).grade == Grade::kWarning);
  pretended.machine.place->node_count = 1;
  CHECK(look_at_interface(pretended.machine).grade == Grade::kGood);
  pretended.machine.rendezvous->local_address.clear();
  CHECK(look_at_interface(pretended.machine).grade == Grade::kBad);
}

TEST_CASE("what guards the connections, and where the token comes from") {
  Pretended pretended;
  Machine& machine = pretended.machine;
  check_finding(look_at_security(machine), Grade::kGood,
                "there is no token; jobs on one host need none, those on several do");
  pretended.join_job(4, 2, 2);
  const Finding found = look_at_security(machine);
  check_finding(found, Grade::kGood, "auth, with the token of the file /run/dt");
  CHECK(found.compared == "auth");  // the file may be elsewhere on other hosts
  machine.credentials = {};
  const std::string advice = "run dt token, and copy ~/.config/dt/token to every host";
  check_finding(look_at_security(machine), Grade::kBad,
                "there is no token, so the job listens on loopback only", advice);
  machine.rendezvous->local_address = "127.0.0.1";
  check_finding(look_at_security(machine), Grade::kWarning,
                "there is no token, so the job listens on loopback only", advice);
  machine.place->node_count = -1;  // not known, but there are ranks elsewhere
  CHECK(look_at_security(machine).grade == Grade::kWarning);
  machine.place->exchange = dt::launch::Exchange::kPmix;
  check_finding(look_at_security(machine), Grade::kGood,
                "auth, with a token that rank 0 makes and the launcher carries");
  machine.place->exchange = dt::launch::Exchange::kNone;
  machine.credentials.security.open_to_all = true;
  check_finding(
      look_at_security(machine), Grade::kWarning,
      "none, as security.mode says: whoever reaches a port of the job joins, reads and ends it",
      "unless you trust the network: dt token, its file on every host, and no security.mode");
  machine.place->node_count = 1;
  CHECK(look_at_security(machine).grade == Grade::kGood);

  machine.credentials_error = Status(dt::Code::kConfig, "it is wrong; mend it");
  check_finding(look_at_security(machine), Grade::kBad, "it is wrong", "mend it");
}

TEST_CASE("a rendezvous that cannot be reached says how") {
  Pretended pretended;
  pretended.join_job(4, 2, 2);
  check_finding(look_at_rendezvous(pretended.machine), Grade::kGood, "10.0.0.1:4711 answers");
  pretended.machine.rendezvous->kind = Reach::kRefused;
  check_finding(look_at_rendezvous(pretended.machine), Grade::kBad,
                "10.0.0.1:4711: refused, the host is up but nothing listens there",
                "see whether dt run still runs, and whether the port is right");
  pretended.machine.place->store_served = pretended.machine.place->port_taken = false;
  check_finding(look_at_rendezvous(pretended.machine), Grade::kGood,
                "10.0.0.1:4711: the host answers, rank 0 does not serve there yet");
  pretended.machine.rendezvous->kind = Reach::kSilent;
  check_finding(look_at_rendezvous(pretended.machine), Grade::kBad, "10.0.0.1:4711: no answer",
                "the host is down, or a firewall drops the packets: open the port between the "
                "nodes");
  pretended.machine.rendezvous = Reach{
      Reach::kUnresolved, "the name \"head\" cannot be resolved: unknown; check the name", {}};
  check_finding(look_at_rendezvous(pretended.machine), Grade::kBad,
                "10.0.0.1:4711: the name \"head\" cannot be resolved: unknown",
                "check the name, /etc/hosts and DNS on this host, or give an address");
}

TEST_CASE("network.interface chooses, and a bad one is bad") {
  Pretended pretended;
  pretended.join_job(4, 2, 2);
  pretended.machine.chosen_address = "172.17.0.1";
  check_finding(look_at_interface(pretended.machine), Grade::kWarning,
                "docker0 172.17.0.1 (bridge), by network.interface; not lo 127.0.0.1 (loopback), "
                "eth0 10.0.0.5",
                "bridges of containers have the same address on many hosts: give "
                "network.interface one of the real network");
  pretended.machine.network_error =
      Status(dt::Code::kConfig, "network.port_range is \"7\"; give \"first-last\"");
  check_finding(look_at_interface(pretended.machine), Grade::kBad, "network.port_range is \"7\"",
                "give \"first-last\"");
}

TEST_CASE("an address that comes through the launcher is not looked for") {
  Pretended pretended;
  pretended.join_job(4, 2, 2);
  Machine& machine = pretended.machine;
  machine.place->store_served = machine.place->port_taken = false;
  machine.place->master_addr.clear();
  machine.place->master_port = 0;
  machine.place->exchange = dt::launch::Exchange::kPmi;
  machine.rendezvous.reset();
  check_finding(look_at_rendezvous(machine), Grade::kBad,
                "by PMI-1, but PMI_FD is not set in this process",
                "keep the launcher's variables, or set MASTER_ADDR and MASTER_PORT on all ranks");
  machine.environment["PMI_FD"] = "7";
  check_finding(look_at_rendezvous(machine), Grade::kGood,
                "by PMI-1: rank 0's address comes through the launcher, the port is the kernel's "
                "choice");
  check_finding(look_at_interface(machine), Grade::kGood,
                "by the route to rank 0, whose address comes by PMI-1; there are lo 127.0.0.1 "
                "(loopback), eth0 10.0.0.5, docker0 172.17.0.1 (bridge)");
  check_finding(look_at_store_port(machine), Grade::kGood, "the kernel's choice, told by PMI-1");
  machine.store_port = Status(dt::Code::kSystem, "Cannot assign requested address");
  check_finding(look_at_store_port(machine), Grade::kBad,
                "the kernel's choice, told by PMI-1; but store.bind cannot be served: Cannot "
                "assign requested address",
                "give store.bind an address of this host, or leave it out");
  machine.place->exchange = dt::launch::Exchange::kPmix;
  machine.environment["PMIX_NAMESPACE"] = "a";
  CHECK(look_at_rendezvous(machine).text ==
        "by PMIx: rank 0's address comes through the launcher, the port is the kernel's choice");
}

TEST_CASE("under torchrun the ranks meet in its agent's store") {
  Pretended pretended;
  pretended.join_job(4, 2, 2);
  Machine& machine = pretended.machine;
  machine.place->store_served = false;  // but the port is taken
  check_finding(look_at_rendezvous(machine), Grade::kGood,
                "10.0.0.1:4711 answers: the ranks meet in PyTorch's store there");
  check_finding(look_at_store_port(machine), Grade::kGood,
                "the kernel's choice, told by PyTorch's store");
  machine.rendezvous->kind = Reach::kRefused;
  check_finding(look_at_rendezvous(machine), Grade::kBad,
                "10.0.0.1:4711: refused, PyTorch's store, in which the ranks meet, is not there",
                "see whether torchrun's agent still runs, and whether the port is right");
}

TEST_CASE("the port of the store is free, held, or in danger") {
  Pretended pretended;
  pretended.join_job(4, 2, 2);
  CHECK(look_at_store_port(pretended.machine).text ==
        "4711 is held by the launcher, which serves the store");
  pretended.machine.place->store_served = pretended.machine.place->port_taken = false;
  CHECK(look_at_store_port(pretended.machine).text == "4711 is rank 0's to serve");
  pretended.machine.place->rank = 0;
  pretended.machine.serves_store = true;
  check_finding(look_at_store_port(pretended.machine), Grade::kGood, "4711 is free");
  pretended.machine.place->master_port = 40000;
  check_finding(look_at_store_port(pretended.machine), Grade::kWarning,
                "40000 is free, but any connection of this host may take it (32768-60999)",
                "choose a port outside of that range");
  pretended.machine.store_port = Status(dt::Code::kSystem, "Address already in use");
  check_finding(look_at_store_port(pretended.machine), Grade::kBad,
                "40000 cannot be served here: Address already in use",
                "give another MASTER_PORT on all ranks, or end what holds this one (ss -ltnp), and "
                "check that MASTER_ADDR, or store.bind, is this host's");
}

TEST_CASE("limits are compared with what the job needs") {
  Pretended pretended;
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
  Pretended pretended;
  check_finding(look_at_processors(pretended.machine), Grade::kGood, "4 of 4");
  pretended.machine.cpus = {0, 2, 3};
  check_finding(look_at_processors(pretended.machine), Grade::kGood, "3 of 4 (0,2-3)");
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
  Pretended pretended;
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
  Pretended pretended;
  check_finding(look_at_memory(pretended.machine), Grade::kGood, "8.0 GiB of 16.0 GiB available");
  pretended.tree.write("proc/self/cgroup", "0::/\n");
  pretended.tree.write("sys/fs/cgroup/memory.max", "268435456\n");
  check_finding(look_at_memory(pretended.machine), Grade::kWarning,
                "8.0 GiB of 16.0 GiB available, the control group allows 256 MiB",
                "give the job more memory, or the kernel may kill its ranks");
}

TEST_CASE("a GPU needs its driver, CUDA and a recent NCCL") {
  Pretended pretended;
  pretended.add_gpus(2);
  Machine& machine = pretended.machine;
  check_finding(look_at_gpus(machine), Grade::kGood, "2 visible, driver 535.104.05");
  check_finding(look_at_cuda(machine), Grade::kBad, "no libcuda.so.1",
                "install the driver's libraries; in a container use the NVIDIA runtime");
  machine.cuda = {true, "/lib/libcuda.so.1", 12020, ""};
  check_finding(look_at_cuda(machine), Grade::kGood, "driver API 12.2, /lib/libcuda.so.1");
  machine.cuda.error = "cuDriverGetVersion fails with 3";
  CHECK(look_at_cuda(machine).grade == Grade::kBad);
  CHECK(look_at_nccl(machine).grade == Grade::kWarning);
  check_finding(look_at_nccl(machine), Grade::kWarning, "no libnccl.so.2",
                "pip install nvidia-nccl-cu13, or give nccl.library");
  machine.nccl = {true, "/lib/libnccl.so.2", 22203, "", "libnccl.so.2", {}};
  check_finding(look_at_nccl(machine), Grade::kGood,
                "2.22.3, /lib/libnccl.so.2 (by the loader's search)");
  CHECK(look_at_nccl(machine).compared == "2.22.3");
  machine.nccl = {true, "/x/nccl.so", 21805, "", "nccl.library", {"ncclMemAlloc", "ncclMemFree"}};
  check_finding(look_at_nccl(machine), Grade::kWarning,
                "2.18.5, /x/nccl.so (nccl.library); without ncclMemAlloc, ncclMemFree",
                "NCCL 2.22 and newer end all communicators of a GPU together after a failure: "
                "update it");
  machine.nccl.error = "NCCL 2.8.4 (/lib/libnccl.so.2) is too old; pip install it";
  check_finding(look_at_nccl(machine), Grade::kBad, "NCCL 2.8.4 (/lib/libnccl.so.2) is too old",
                "pip install it");
  machine.environment["CUDA_VISIBLE_DEVICES"] = "";
  CHECK(look_at_gpus(machine).grade == Grade::kWarning);
  CHECK(look_at_nccl(machine).grade == Grade::kWarning);  // nobody needs it here
}

TEST_CASE("what is known of a release of NCCL is told, and is no reason to warn") {
  Pretended pretended;
  Machine& machine = pretended.machine;
  CHECK(look_at_nccl_faults(machine).text == "not looked for: no NCCL");
  machine.nccl = {true, "/lib/libnccl.so.2", 22809, "", "libnccl.so.2", {}};
  const Finding finding = look_at_nccl_faults(machine);
  CHECK(finding.grade == Grade::kGood);
  CHECK(finding.text.find("Fixed in 2.29.7.") != std::string::npos);
  CHECK(finding.text.find("In all releases.") != std::string::npos);
  CHECK(finding.compared == "2.28.9");
}

TEST_CASE("NCCL's settings are shown with their source; what goes wrong with them is told") {
  Pretended pretended;
  Machine& machine = pretended.machine;
  check_finding(look_at_nccl_settings(machine), Grade::kGood, "none: NCCL decides");
  machine.environment = {{"NCCL_DEBUG", "INFO"}, {"HOME", "/root"}};
  REQUIRE(machine.config.set("nccl.algo", "Ring").ok());
  REQUIRE(machine.config.set("nccl.cta_policy", "zero").ok());
  REQUIRE(machine.config.set("nccl.traffic_class", "3").ok());
  const Finding good = look_at_nccl_settings(machine);
  check_finding(good, Grade::kGood,
                "nccl.traffic_class=3 (call), NCCL_ALGO=Ring (call), NCCL_CTA_POLICY=2 (call), "
                "NCCL_DEBUG=INFO (inherited)");
  CHECK(good.compared == "nccl.traffic_class=3 NCCL_ALGO=Ring NCCL_CTA_POLICY=2 NCCL_DEBUG=INFO ");
  machine.nccl = {true, "/lib/libnccl.so.2", 22602, "", "libnccl.so.2", {}};
  check_finding(look_at_nccl_settings(machine), Grade::kWarning,
                "nccl.cta_policy needs NCCL 2.27.0, and this one is 2.26.2, which ignores it",
                "update NCCL, or remove the setting");
  machine.environment["NCCL_ALGO"] = "Tree";
  check_finding(look_at_nccl_settings(machine), Grade::kWarning,
                "NCCL_ALGO=Ring (nccl.algo, call) replaces the inherited Tree",
                "unset it, or keep it by nccl.inherit = \"override\"");
  REQUIRE(machine.config.set("nccl.inherit", "override").ok());
  machine.nccl.version = 22809;
  CHECK(look_at_nccl_settings(machine).text ==
        "nccl.traffic_class=3 (call), NCCL_CTA_POLICY=2 (call), NCCL_ALGO=Tree (inherited), "
        "NCCL_DEBUG=INFO (inherited)");
  machine.environment["NCCL_COMM_ID"] = "10.0.0.1:99";
  CHECK(look_at_nccl_settings(machine).grade == Grade::kWarning);
  pretended.add_gpus(1);
  check_finding(look_at_nccl_settings(machine), Grade::kBad,
                "NCCL_COMM_ID=10.0.0.1:99 is set: it gives every communicator the same id, while "
                "dt makes one for each and passes it on",
                "unset it");
  REQUIRE(machine.config.set("nccl.min_ctas", "2").ok());
  check_finding(look_at_nccl_settings(machine), Grade::kBad,
                "nccl.min_ctas is 2 without nccl.max_ctas, which NCCL refuses",
                "set both, or only nccl.max_ctas");
}

TEST_CASE("files that NCCL reads by itself are shown, and told where they are at odds") {
  Pretended pretended;
  Machine& machine = pretended.machine;
  check_finding(look_at_nccl_files(machine), Grade::kGood, "none with a setting");
  machine.nccl_conf = {{"NCCL_ALGO", "Tree", "/etc/nccl.conf", 3}};
  check_finding(look_at_nccl_files(machine), Grade::kGood, "NCCL_ALGO (/etc/nccl.conf:3)");
  const Finding shown = look_at_nccl_settings(machine);
  check_finding(shown, Grade::kGood, "NCCL_ALGO=Tree (/etc/nccl.conf:3)");
  CHECK(shown.compared == "NCCL_ALGO=Tree ");
  machine.environment["NCCL_ALGO"] = "Ring";
  check_finding(look_at_nccl_files(machine), Grade::kWarning,
                "/etc/nccl.conf:3: NCCL_ALGO=Tree does not count, as the environment says Ring",
                "remove one of the two");
  machine.environment.clear();
  REQUIRE(machine.config.set("nccl.algo", "Ring").ok());
  check_finding(look_at_nccl_files(machine), Grade::kWarning,
                "/etc/nccl.conf:3: NCCL_ALGO=Tree goes before nccl.algo, which wants Ring (call)",
                "remove one of the two");
  machine.nccl_conf.push_back({"NCCL_COMM_ID", "10.0.0.1:99", "/etc/nccl.conf", 4});
  CHECK(look_at_nccl_files(machine).grade == Grade::kWarning);  // nobody needs NCCL here
  pretended.add_gpus(1);
  check_finding(look_at_nccl_files(machine), Grade::kBad,
                "/etc/nccl.conf:4: NCCL_COMM_ID=10.0.0.1:99 is set: it gives every communicator "
                "the same id, while dt makes one for each and passes it on",
                "remove that line");
}

TEST_CASE("each node's own port for NCCL's RAS service is no difference between ranks") {
  Pretended pretended;
  pretended.machine.environment = {{"NCCL_RAS_ADDR", "127.0.0.1:4711"}};
  const Finding finding = look_at_nccl_settings(pretended.machine);
  CHECK(finding.text == "NCCL_RAS_ADDR=127.0.0.1:4711 (inherited)");
  CHECK(finding.compared == " ");
}

TEST_CASE("a dt with CUDA says itself what it lacks") {
  Pretended pretended;
  Machine& machine = pretended.machine;
  dt::cuda::Answers& answers = machine.cuda_answers;
  answers.built = true;
  answers.runtime_version = 13000;
  answers.count_error = 35;
  check_finding(look_at_cuda(machine), Grade::kGood, "no libcuda.so.1, and no GPU that needs it");
  pretended.add_gpus(2);
  check_finding(look_at_cuda(machine), Grade::kBad,
                "there is no NVIDIA driver here (libcuda.so.1 is missing)",
                "install it, in a container use the NVIDIA runtime, or use the host backend");
  machine.cuda = {true, "/lib/libcuda.so.1", 12020, ""};
  answers.driver_version = 12020;
  check_finding(look_at_cuda(machine), Grade::kBad,
                "the NVIDIA driver is too old: it speaks CUDA 12.2, this dt needs 13.0 (driver 580 "
                "or newer)",
                "update the driver, or build dt with a toolkit of CUDA 12.2");
  machine.environment["CUDA_VISIBLE_DEVICES"] = "";
  check_finding(look_at_cuda(machine), Grade::kGood,
                "the NVIDIA driver is too old: it speaks CUDA 12.2, this dt needs 13.0 (driver 580 "
                "or newer); there is no GPU that needs it");
  machine.environment.erase("CUDA_VISIBLE_DEVICES");
  answers.driver_version = 13010;
  answers.count_error = 0;
  answers.device_count = 2;
  check_finding(look_at_cuda(machine), Grade::kGood,
                "driver API 13.1, dt is built with 13.0, /lib/libcuda.so.1");
  CHECK(look_at_cuda(machine).compared == "13.1");
}

TEST_CASE("where the nccl backend is asked for, what it lacks is bad also without a GPU") {
  Pretended pretended;
  Machine& machine = pretended.machine;
  CHECK(look_at_gpus(machine).grade == Grade::kGood);
  CHECK(look_at_nccl(machine).grade == Grade::kGood);
  REQUIRE(machine.config.set("backend.name", "nccl").ok());
  check_finding(look_at_gpus(machine), Grade::kBad, "none, while backend.name is nccl",
                "use a machine with GPUs, or leave backend.name out");
  CHECK(look_at_nccl(machine).grade == Grade::kWarning);  // one rank needs none
  check_finding(look_at_cuda(machine), Grade::kBad, "this dt is built without CUDA",
                "build it with -Dcuda=enabled, or use the host backend");
  machine.cuda_answers.built = true;
  machine.cuda_answers.runtime_version = 13000;
  machine.cuda_answers.count_error = 35;
  check_finding(look_at_cuda(machine), Grade::kBad,
                "there is no NVIDIA driver here (libcuda.so.1 is missing)",
                "install it, in a container use the NVIDIA runtime, or use the host backend");
}

TEST_CASE("devices without a driver are bad") {
  Pretended pretended;
  pretended.tree.write("dev/nvidia0", "");
  check_finding(look_at_gpus(pretended.machine), Grade::kBad, "1 visible, driver missing",
                "there are /dev/nvidia* but no driver: load it, or start the container with the "
                "NVIDIA runtime");
}

TEST_CASE("InfiniBand: which ports are active, and what keeps NCCL from them") {
  Pretended pretended;
  pretended.tree.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  pretended.tree.write("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
  Machine& machine = pretended.machine;
  const std::string sockets = "mlx5_0/1 active, 1 of 2 ports down; NCCL uses sockets instead";
  check_finding(look_at_infiniband(machine), Grade::kWarning, sockets,
                "libibverbs.so.1 is missing: install rdma-core");
  machine.ibverbs = true;
  check_finding(look_at_infiniband(machine), Grade::kWarning, sockets,
                "/dev/infiniband is missing: pass it to the container");
  pretended.tree.write("dev/infiniband/uverbs0", "");
  check_finding(look_at_infiniband(machine), Grade::kGood,
                "mlx5_0/1 active, 1 of 2 ports down; NCCL uses it");
  machine.environment["NCCL_IB_DISABLE"] = "1";
  check_finding(look_at_infiniband(machine), Grade::kWarning, sockets,
                "NCCL_IB_DISABLE=1: unset it");
}

TEST_CASE("no line of the table is longer than 80 columns, and nothing is lost") {
  Pretended pretended;
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
  Pretended pretended;
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
  Pretended pretended;
  pretended.join_job(2, 2, 1);
  pretended.machine.cpus = {0};
  const Report report = examine(pretended.machine, "host");
  CHECK(differences_text({report, report}) ==
        "22 of 22 checks are alike on the 2 ranks that reported\n"
        "not good on all of them, see dt doctor: processors (warning)\n");
}

TEST_CASE("a report arrives as it was, and nonsense is refused") {
  Pretended pretended;
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
