// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "cli/doctor/checks.h"
#include "pretended_tree.h"

namespace dt::test {

/// An ordinary machine, and a process that nobody started as part of a job.
struct PretendedMachine {
  PretendedTree tree;
  cli::doctor::Machine machine;

  PretendedMachine() {
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

  /// Rank 1 of a job on several nodes, whose store answers and who has a token.
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
    machine.rendezvous = cli::doctor::Reach{cli::doctor::Reach::kOpen, {}, "10.0.0.5"};
    machine.credentials.take(std::move(net::Token::from_text(std::string(64, '7'))).value(),
                             "the file /run/dt");
  }
  void add_gpus(int count) {
    tree.write("proc/driver/nvidia/version",
               "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 2023\n"
               "GCC version:  gcc version 12.2.0\n");
    for (int i = 0; i < count; ++i) tree.write("dev/nvidia" + std::to_string(i), "");
  }
};

inline void check_finding(const cli::doctor::Finding& found, cli::doctor::Grade grade,
                          const std::string& text, const std::string& advice = "") {
  CHECK(std::string(grade_name(found.grade)) == grade_name(grade));
  CHECK(found.text == text);
  CHECK(found.advice == advice);
}

}  // namespace dt::test
