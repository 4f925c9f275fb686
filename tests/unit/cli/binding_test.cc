// SPDX-License-Identifier: Apache-2.0
#include "cli/run/binding.h"

#include <doctest/doctest.h>

#include "pretended_tree.h"

using dt::Cpu;
using dt::read_topology;
using dt::cli::Bind;
using dt::cli::BindPlan;
using dt::cli::plan_binding;
using dt::test::PretendedTree;
using Ints = std::vector<int>;

namespace {

// Two NUMA nodes of four cores with two threads: cpu i and i + 8 are one core, nodes are 0-3 and
// 4-7 with their siblings.
std::vector<Cpu> big_machine() {
  std::vector<Cpu> cpus;
  for (int id = 0; id < 16; ++id) cpus.push_back({id, id % 8, id % 8 / 4});
  return cpus;
}

}  // namespace

TEST_CASE("nothing is bound unless asked for") {
  CHECK(plan_binding(Bind::kNone, big_machine(), 2).cpus.empty());
}

TEST_CASE("whole cores are divided evenly, neighbours together") {
  const BindPlan four = plan_binding(Bind::kCores, big_machine(), 4);
  REQUIRE(four.cpus.size() == 4);
  CHECK(four.cpus[0] == Ints{0, 1, 8, 9});
  CHECK(four.cpus[1] == Ints{2, 3, 10, 11});
  CHECK(four.cpus[2] == Ints{4, 5, 12, 13});
  CHECK(four.cpus[3] == Ints{6, 7, 14, 15});
  CHECK(four.cores_per_rank == 2);
  CHECK(four.note.empty());
  const BindPlan three = plan_binding(Bind::kCores, big_machine(), 3);
  CHECK(three.cpus[0] == Ints{0, 1, 8, 9});
  CHECK(three.cpus[1] == Ints{2, 3, 4, 10, 11, 12});
  CHECK(three.cpus[2] == Ints{5, 6, 7, 13, 14, 15});
  CHECK(three.cores_per_rank == 2);
  const BindPlan eight = plan_binding(Bind::kCores, big_machine(), 8);
  CHECK(eight.cpus[7] == Ints{7, 15});
}

TEST_CASE("every processor is given away once, for any number of ranks") {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    std::vector<int> given(16, 0);
    for (const Ints& own : plan_binding(Bind::kCores, big_machine(), ranks).cpus) {
      CHECK_FALSE(own.empty());
      for (const int cpu : own) ++given[static_cast<size_t>(cpu)];
    }
    CHECK(given == std::vector<int>(16, 1));
  }
}

TEST_CASE("fewer cores than ranks bind nothing and say so") {
  const BindPlan plan = plan_binding(Bind::kCores, big_machine(), 9);
  CHECK(plan.cpus.empty());
  CHECK(plan.note == "--bind cores: 8 cores for 9 ranks, so nothing is bound");
  CHECK(plan_binding(Bind::kCores, {{3, 3, 0}}, 2).note ==
        "--bind cores: 1 core for 2 ranks, so nothing is bound");
}

TEST_CASE("numa gives each rank one node, neighbours together, more ranks than nodes too") {
  const BindPlan plan = plan_binding(Bind::kNuma, big_machine(), 4);
  REQUIRE(plan.cpus.size() == 4);
  const Ints first{0, 1, 2, 3, 8, 9, 10, 11};
  const Ints second{4, 5, 6, 7, 12, 13, 14, 15};
  CHECK(plan.cpus[0] == first);
  CHECK(plan.cpus[1] == first);
  CHECK(plan.cpus[2] == second);
  CHECK(plan.cpus[3] == second);
  const BindPlan many = plan_binding(Bind::kNuma, big_machine(), 40);
  CHECK(many.cpus[19] == first);
  CHECK(many.cpus[20] == second);
  CHECK(plan_binding(Bind::kNuma, big_machine(), 1).cpus[0] == first);
}

TEST_CASE("only processors that the agent may use count") {
  PretendedTree sys;
  sys.write("devices/system/node/online", "0-1\n");
  sys.write("devices/system/node/node0/cpulist", "0-1,4-5\n");
  sys.write("devices/system/node/node1/cpulist", "2-3,6-7\n");
  for (int id = 0; id < 8; ++id) {
    sys.write("devices/system/cpu/cpu" + std::to_string(id) + "/topology/thread_siblings_list",
              std::to_string(id % 4) + "," + std::to_string(id % 4 + 4) + "\n");
  }
  const std::vector<Cpu> cpus = read_topology(sys.root(), {1, 2, 5, 6});
  REQUIRE(cpus.size() == 4);
  CHECK(cpus[2].id == 5);
  CHECK(cpus[2].core == 1);
  CHECK(cpus[2].node == 0);
  CHECK(cpus[3].node == 1);
  const BindPlan plan = plan_binding(Bind::kCores, cpus, 2);
  CHECK(plan.cpus[0] == Ints{1, 5});
  CHECK(plan.cpus[1] == Ints{2, 6});
}

TEST_CASE("without a word in /sys each processor is a core of one node") {
  const PretendedTree nothing;
  const std::vector<Cpu> cpus = read_topology(nothing.root(), {2, 3});
  const BindPlan cores = plan_binding(Bind::kCores, cpus, 2);
  CHECK(cores.cpus[0] == Ints{2});
  CHECK(cores.cpus[1] == Ints{3});
  CHECK(plan_binding(Bind::kNuma, cpus, 2).cpus[1] == Ints{2, 3});
}
