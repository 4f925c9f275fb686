// SPDX-License-Identifier: Apache-2.0
// The checks of `dt doctor` of GPUs, NCCL and InfiniBand, on machines that are pretended.
#include <doctest/doctest.h>

#include "cli/doctor/checks.h"
#include "pretended_machine.h"

using dt::test::check_finding;
using dt::test::PretendedMachine;
using namespace dt::cli::doctor;

TEST_CASE("a GPU needs its driver, CUDA and a recent NCCL") {
  PretendedMachine pretended;
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
  PretendedMachine pretended;
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
  PretendedMachine pretended;
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
  PretendedMachine pretended;
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
  PretendedMachine pretended;
  pretended.machine.environment = {{"NCCL_RAS_ADDR", "127.0.0.1:4711"}};
  const Finding finding = look_at_nccl_settings(pretended.machine);
  CHECK(finding.text == "NCCL_RAS_ADDR=127.0.0.1:4711 (inherited)");
  CHECK(finding.compared == " ");
}

TEST_CASE("a dt with CUDA says itself what it lacks") {
  PretendedMachine pretended;
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
  PretendedMachine pretended;
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
  PretendedMachine pretended;
  pretended.tree.write("dev/nvidia0", "");
  check_finding(look_at_gpus(pretended.machine), Grade::kBad, "1 visible, driver missing",
                "there are /dev/nvidia* but no driver: load it, or start the container with the "
                "NVIDIA runtime");
}

TEST_CASE("InfiniBand: which ports are active, and what keeps NCCL from them") {
  PretendedMachine pretended;
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
