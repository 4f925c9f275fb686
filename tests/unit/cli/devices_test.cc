// SPDX-License-Identifier: Apache-2.0
#include "cli/run/devices.h"

#include <doctest/doctest.h>

#include "pretended_tree.h"

using dt::Config;
using dt::cli::check_gpus;
using dt::cli::count_gpus;
using dt::cli::count_ranks;
using dt::test::PretendedTree;

TEST_CASE("devices are the numbered files, of which CUDA_VISIBLE_DEVICES names some") {
  PretendedTree dev;
  CHECK(count_gpus(dev.root(), nullptr) == 0);
  CHECK(count_gpus(dev.root(), "0,1") == 0);
  for (const char* name :
       {"nvidia0", "nvidia1", "nvidia2", "nvidia10", "nvidiactl", "nvidia-uvm"}) {
    dev.write(name, "");
  }
  CHECK(count_gpus(dev.root(), nullptr) == 4);
  CHECK(count_gpus(dev.root(), "2,0") == 2);
  CHECK(count_gpus(dev.root(), "") == 0);
  CHECK(count_gpus(dev.root(), "-1") == 0);
  CHECK(count_gpus(dev.root(), "0,7,1") == 1);  // the driver stops at what is not there
  CHECK(count_gpus(dev.root(), "GPU-5ebe9f43,MIG-12") == 2);
}

TEST_CASE("-n gpu is one rank per device, -n auto one per processor where there is none") {
  CHECK(count_ranks("4", 0, 16).value() == 4);
  CHECK(count_ranks("gpu", 2, 16).value() == 2);
  CHECK(count_ranks("auto", 2, 16).value() == 2);
  CHECK(count_ranks("auto", 0, 16).value() == 16);
  CHECK(count_ranks("gpu", 0, 16).status().code() == dt::Code::kConfig);
  CHECK(count_ranks("gpu", 0, 16).status().message() ==
        "-n gpu: this node has no GPU (/dev/nvidia*, CUDA_VISIBLE_DEVICES); give a number, or -n "
        "auto for one rank per processor; dt doctor says what is missing");
  for (const char* text : {"0", "-1", "4x", "", "gpus", "100000"}) {
    const auto count = count_ranks(text, 2, 16);
    CHECK(count.status().code() == dt::Code::kInvalidArgument);
    CHECK(count.status().message().find(std::string("-n ") + text +
                                        ": the number of ranks on one machine is 1 to ") == 0);
  }
}

TEST_CASE("more ranks than devices is an error that counts both, for nccl") {
  const auto check = [](int ranks, int gpus, const char* backend, const char* shared = "refuse") {
    Config config;
    REQUIRE(config.set("backend.name", backend).ok());
    REQUIRE(config.set("backend.shared_gpu", shared).ok());
    return check_gpus(ranks, gpus, config);
  };
  CHECK(check(4, 4, "nccl").ok());
  CHECK(check(8, 4, "host").ok());
  CHECK(check(8, 4, "auto").ok());
  CHECK(check(8, 0, "auto").ok());
  CHECK(check(8, 4, "nccl").message() ==
        "8 ranks on this node, but it has 4 GPUs (/dev/nvidia*, CUDA_VISIBLE_DEVICES), and NCCL "
        "wants one for each; start 4 with -n, or share them by backend.shared_gpu = \"host\"");
  CHECK(check(2, 1, "nccl").message().find("it has 1 GPU (") != std::string::npos);
  CHECK(check(2, 1, "nccl", "host").ok());
  for (const char* shared : {"refuse", "host"}) {
    CHECK(check(2, 0, "nccl", shared).message() ==
          "backend.name is nccl, and for 2 ranks this node has no GPU (/dev/nvidia*, "
          "CUDA_VISIBLE_DEVICES); dt doctor says what is missing");
  }
}
