// SPDX-License-Identifier: Apache-2.0
#include "cli/run/environment.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/cgroup.h"
#include "pretended_tree.h"

using dt::cli::Fd;
using dt::cli::JobPlace;
using dt::cli::rank_environment;
using dt::cli::server_environment;
using Strings = std::vector<std::string>;

namespace {

/// How often "NAME=value" is there; with "NAME=" alone, any value.
long count(const Strings& environment, const std::string& beginning, bool whole = true) {
  return std::count_if(environment.begin(), environment.end(), [&](const std::string& variable) {
    return whole ? variable == beginning : variable.rfind(beginning, 0) == 0;
  });
}

}  // namespace

TEST_CASE("what torchrun around dt run has set does not reach the ranks") {
  const Strings inherited = {"TORCHELASTIC_USE_AGENT_STORE=True",
                             "TORCHELASTIC_RUN_ID=outer",
                             "RANK=7",
                             "MASTER_PORT=1",
                             "HOME=/root",
                             "ROLE_RANK=7",
                             "TORCHELASTIC_ERROR_FILE=/outer",
                             "DT_LAUNCHER=single",
                             "TORCHELASTIC_MAX_RESTARTS=9"};
  JobPlace place;
  place.world_size = place.local_size = 2;
  place.master_port = 4711;
  place.max_restarts = 2;
  place.job_id = "0123";
  Strings environment = rank_environment(place, 1, inherited);
  CHECK(count(environment, "TORCHELASTIC_USE_AGENT_STORE=False") == 1);
  CHECK(count(environment, "TORCHELASTIC_USE_AGENT_STORE=", false) == 1);
  CHECK(count(environment, "TORCHELASTIC_RUN_ID=0123") == 1);
  CHECK(count(environment, "TORCHELASTIC_RUN_ID=", false) == 1);
  CHECK(count(environment, "TORCHELASTIC_MAX_RESTARTS=2") == 1);
  CHECK(count(environment, "TORCHELASTIC_MAX_RESTARTS=", false) == 1);
  CHECK(count(environment, "TORCHELASTIC_ERROR_FILE=", false) == 0);
  CHECK(count(environment, "DT_LAUNCHER=", false) == 0);
  CHECK(count(environment, "ROLE_NAME=default") == 1);
  CHECK(count(environment, "ROLE_RANK=1") == 1);
  CHECK(count(environment, "ROLE_RANK=", false) == 1);
  CHECK(count(environment, "ROLE_WORLD_SIZE=2") == 1);
  CHECK(count(environment, "RANK=1") == 1);
  CHECK(count(environment, "RANK=", false) == 1);
  CHECK(count(environment, "MASTER_PORT=4711") == 1);
  CHECK(count(environment, "HOME=/root") == 1);
  place.torch_store = true;
  place.error_folder = "/logs";
  place.first_rank = 4;
  environment = rank_environment(place, 0, {});
  CHECK(count(environment, "TORCHELASTIC_USE_AGENT_STORE=True") == 1);
  CHECK(count(environment, "TORCHELASTIC_USE_AGENT_STORE=", false) == 1);
  CHECK(count(environment, "TORCHELASTIC_ERROR_FILE=/logs/rank-0004.error.json") == 1);
}

TEST_CASE("cores: the processors, or the quota of the control group where that is less") {
  const dt::test::PretendedTree tree;
  const auto quota = [&] { return dt::cpu_quota(tree.root() + "/proc", tree.root() + "/sys"); };
  const auto cores = [&](size_t allowed) { return dt::cli::usable_cores(allowed, quota()); };
  CHECK(cores(8).count == 8);
  CHECK(cores(0).count == 1);
  tree.write("proc/self/cgroup", "0::/pod/container\n");
  tree.write("sys/fs/cgroup/pod/container/cpu.max", "max 100000\n");
  CHECK(cores(8).count == 8);
  CHECK_FALSE(cores(8).by_quota);
  tree.write("sys/fs/cgroup/pod/cpu.max", "250000 100000\n");
  CHECK(cores(8).count == 2);
  CHECK(cores(8).by_quota);
  CHECK(cores(2).count == 2);
  CHECK_FALSE(cores(2).by_quota);
  tree.write("sys/fs/cgroup/pod/cpu.max", "50000 100000\n");
  CHECK(cores(8).count == 1);
}

TEST_CASE("threads: the cores that a rank is bound to, or its share where that is less") {
  using dt::cli::threads_per_rank;
  CHECK(threads_per_rank(0, {8, false}, 3).count == 2);
  CHECK(threads_per_rank(0, {8, false}, 3).reason == "8 cores for 3 ranks");
  CHECK(threads_per_rank(0, {2, true}, 4).count == 1);
  CHECK(threads_per_rank(0, {2, true}, 4).reason ==
        "2 cores (the quota of the control group) for 4 ranks");
  CHECK(threads_per_rank(4, {16, false}, 2).count == 4);
  CHECK(threads_per_rank(4, {16, false}, 2).reason == "the cores of each rank (--bind)");
  CHECK(threads_per_rank(4, {2, true}, 2).count == 1);
  CHECK(threads_per_rank(4, {2, true}, 2).reason ==
        "2 cores (the quota of the control group) for 2 ranks");
  CHECK(threads_per_rank(1, {2, true}, 2).reason == "the cores of each rank (--bind)");
}

TEST_CASE("DT_RUN_SET names all that is set but the token") {
  JobPlace place;
  place.token = "secret";
  place.omp_num_threads = 2;
  place.relay_port = 5;
  place.servers = {"a:1"};
  place.error_folder = "/logs";
  place.variables = {{"NCCL_RAS_ADDR", "localhost:1"}};
  for (const Strings& environment :
       {rank_environment(place, 0, {}), server_environment(place, 0, 17, {})}) {
    std::string names = " ";
    for (const std::string& variable : environment) {
      if (variable.rfind("DT_RUN_SET=", 0) == 0) names += variable.substr(11) + " ";
    }
    for (const std::string& variable : environment) {
      const std::string name = variable.substr(0, variable.find('='));
      CAPTURE(name);
      CHECK((names.find(" " + name + " ") != std::string::npos) == (name != "DT_TOKEN"));
    }
  }
}

TEST_CASE("further variables replace what is inherited") {
  JobPlace place;
  place.variables = {{"NCCL_ALGO", "Ring"}, {"NCCL_DEBUG", "WARN"}};
  const Strings environment = rank_environment(place, 0, {"NCCL_ALGO=Tree", "NCCL_PROTO=LL"});
  CHECK(count(environment, "NCCL_ALGO=Ring") == 1);
  CHECK(count(environment, "NCCL_ALGO=", false) == 1);
  CHECK(count(environment, "NCCL_DEBUG=WARN") == 1);
  CHECK(count(environment, "NCCL_PROTO=LL") == 1);
}

TEST_CASE("a parameter server is told its index, and nothing that makes a rank of it") {
  const Strings inherited = {"RANK=7",
                             "WORLD_SIZE=8",
                             "DT_RANK=7",
                             "TF_CONFIG={}",
                             "CLUSTER_SPEC=x",
                             "MASTER_ADDR=m",
                             "DT_PS_INDEX=9",
                             "DT_PS_WORKERS=9",
                             "DT_PS_SERVERS=outer:1",
                             "DT_MASTER_PORT=1",
                             "HOME=/root",
                             "TORCHELASTIC_RUN_ID=outer",
                             "DT_TOKEN=outer",
                             "TORCHELASTIC_ERROR_FILE=/outer"};
  JobPlace place;
  place.world_size = 4;
  place.job_id = "0123";
  place.token = "secret";
  place.attempt = 2;
  place.servers = {"a:1", "[::1]:2", "b:3"};
  place.first_server = 1;
  place.error_folder = "/logs";
  const Strings server = server_environment(place, 1, 17, inherited);
  for (const char* set :
       {"DT_PS_INDEX=2", "DT_PS_WORKERS=4", "DT_PS_LISTEN_FD=17", "DT_PS_SERVERS=a:1,[::1]:2,b:3",
        "DT_JOB_ID=0123", "DT_TOKEN=secret", "DT_ATTEMPT=2", "DT_LAUNCHER_PID=0", "HOME=/root"}) {
    CAPTURE(set);
    CHECK(count(server, set) == 1);
  }
  for (const char* once : {"DT_PS_INDEX=", "DT_PS_WORKERS=", "DT_PS_SERVERS=", "DT_TOKEN="}) {
    CAPTURE(once);
    CHECK(count(server, once, false) == 1);
  }
  for (const char* none : {"RANK=", "WORLD_SIZE=", "DT_RANK=", "DT_WORLD_SIZE=", "TF_CONFIG=",
                           "CLUSTER_SPEC=", "MASTER_ADDR=", "DT_MASTER_PORT=", "TORCHELASTIC_"}) {
    CAPTURE(none);
    CHECK(count(server, none, false) == 0);
  }
  const Strings rank = rank_environment(place, 0, inherited);
  CHECK(count(rank, "DT_PS_SERVERS=a:1,[::1]:2,b:3") == 1);
  CHECK(count(rank, "DT_PS_SERVERS=", false) == 1);
  for (const char* none : {"DT_PS_INDEX=", "DT_PS_WORKERS=", "DT_PS_LISTEN_FD="}) {
    CAPTURE(none);
    CHECK(count(rank, none, false) == 0);
  }
  place.servers.clear();  // then those that the user names stay
  CHECK(count(rank_environment(place, 0, inherited), "DT_PS_SERVERS=outer:1") == 1);
}

TEST_CASE("processes of the job can listen on a reserved port as NCCL's RAS does, others cannot") {
  const auto reserved = dt::cli::reserve_port();
  REQUIRE(reserved.ok());
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(reserved.value().port));
  const auto can_listen = [&](const Fd& fd, bool as_nccl) {
    const int on = 1;
    for (const int option : {SO_REUSEADDR, SO_REUSEPORT}) {
      if (as_nccl) REQUIRE(setsockopt(fd.get(), SOL_SOCKET, option, &on, sizeof on) == 0);
    }
    return bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
           listen(fd.get(), 1) == 0;
  };
  const auto make = [] { return Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); };
  const Fd first = make(), second = make(), stranger = make();
  CHECK_FALSE(can_listen(stranger, false));
  CHECK(can_listen(first, true));
  CHECK(can_listen(second, true));
}
