// SPDX-License-Identifier: Apache-2.0
#include "base/numa.h"

#include <doctest/doctest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "../cli/pretended_tree.h"

using dt::Code;
using dt::Cpu;
using dt::cpu_list_text;
using dt::numa_home;
using dt::NumaHome;
using dt::NumaWish;
using dt::online_nodes;
using dt::parse_cpu_list;
using dt::parse_numa;
using dt::read_topology;
using dt::test::PretendedTree;
using Ints = std::vector<int>;

TEST_CASE("lists of processors are read and written as Linux does") {
  CHECK(parse_cpu_list("0-2,5,7-8") == Ints{0, 1, 2, 5, 7, 8});
  CHECK(parse_cpu_list("").empty());
  CHECK(parse_cpu_list("junk").empty());
  CHECK(parse_cpu_list("3-1").empty());
  CHECK(parse_cpu_list("0-99999999999999999999").size() == 1 << 16);
  CHECK(cpu_list_text({0, 1, 2, 5, 7, 8}) == "0-2,5,7-8");
  CHECK(cpu_list_text({}).empty());
}

TEST_CASE("the nodes of a machine are those that are online, and one where nobody tells") {
  PretendedTree sys;
  CHECK(online_nodes(sys.root()) == Ints{0});
  sys.write("devices/system/node/online", "0,2-3\n");
  CHECK(online_nodes(sys.root()) == Ints{0, 2, 3});
}

TEST_CASE("host.numa is auto, off, or a node for each local rank") {
  CHECK(parse_numa("auto").value().looks);
  CHECK_FALSE(parse_numa("off").value().looks);
  CHECK(parse_numa("off").value().nodes.empty());
  const auto told = parse_numa("0,0,1,1023");
  REQUIRE(told.ok());
  CHECK_FALSE(told.value().looks);
  CHECK(told.value().nodes == std::vector<int32_t>{0, 0, 1, 1023});
  const struct {
    const char* text;
    const char* from;
  } wrong[] = {{"0,x,1", " from \"x,1\" on"},
               {"1,,2", " from \",2\" on"},
               {"0,1024", " from \"1024\" on"},
               {"0-1", " from \"0-1\" on"},
               {"0,", ""},
               {"", ""}};
  for (const auto& each : wrong) {
    const auto refused = parse_numa(each.text);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.status().code() == Code::kConfig);
    CHECK(refused.status().message() ==
          dt::format("\"%s\" is neither auto nor off nor a list of nodes%s; write the NUMA node of "
                     "each rank of a host as \"0,0,1,1\", with numbers below 1024",
                     each.text, each.from));
  }
}

TEST_CASE("a rank lives on the node of all its processors, where the machine has several") {
  const std::vector<Cpu> second = {{2, 2, 1}, {3, 3, 1}};
  const std::vector<Cpu> both = {{0, 0, 0}, {3, 3, 1}};
  const auto home = [](const char* text, const std::vector<Cpu>& cpus, const Ints& online) {
    return numa_home(parse_numa(text).value(), 1, cpus, online);
  };
  const auto is = [](const NumaHome& found, int32_t node, bool binds) {
    return found.node == node && found.binds == binds;
  };
  CHECK(is(home("auto", second, {0, 1}), 1, true));
  CHECK(is(home("auto", both, {0, 1}), -1, false));
  CHECK(is(home("auto", {}, {0, 1}), -1, false));
  CHECK(is(home("auto", {{0, 0, 0}, {1, 1, 0}}, {0}), -1, false));
  CHECK(is(home("off", second, {0, 1}), -1, false));
  // Told: the second of the list, whatever the processors are.
  CHECK(is(home("1,0", second, {0, 1}), 0, true));
  CHECK(is(home("0,7", second, {0, 1}), 7, false));
  CHECK(is(home("0,0", both, {0}), 0, false));
}

TEST_CASE("a process that was not told to look has no home") {
  const NumaHome home = dt::find_numa_home(parse_numa("off").value(), 0);
  CHECK(home.node == -1);
  CHECK_FALSE(home.binds);
  CHECK(dt::find_numa_home(parse_numa("5").value(), 0).node == 5);
}

TEST_CASE("memory of a mapping is asked for on a node, where the system allows that") {
  constexpr int64_t kBytes = 1 << 20;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  CHECK(dt::prefer_node(memory, kBytes, -1) == EINVAL);
  CHECK(dt::prefer_node(memory, kBytes, 1024) == EINVAL);
  const int error = dt::prefer_node(memory, kBytes, 0);
  if (error == 0) {
    int mode = -1;
    unsigned long nodes[1024 / (8 * sizeof(unsigned long))] = {};
    if (syscall(SYS_get_mempolicy, &mode, nodes, 1024UL, memory, MPOL_F_ADDR) == 0) {
      CHECK(mode == MPOL_PREFERRED);
      CHECK(nodes[0] == 1);
    }
  } else {
    // A container may forbid it, an emulator not know it.
    CHECK_MESSAGE((error == EPERM || error == ENOSYS), error);
  }
  *static_cast<char*>(memory) = 1;
  munmap(memory, kBytes);
}
