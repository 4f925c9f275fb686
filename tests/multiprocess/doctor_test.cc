// SPDX-License-Identifier: Apache-2.0
// `dt doctor` on this machine, alone and as the ranks of jobs.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "dt_run.h"
#include "held_port.h"
#include "net/interfaces.h"

using namespace dt::test;
namespace net = dt::net;

namespace {

Strings doctor(const Strings& arguments) {
  Strings command{required_variable("DT_COMMAND"), "doctor"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

Strings run_doctor(const Strings& options, const Strings& arguments) {
  Strings command{required_variable("DT_COMMAND"), "run"};
  command.insert(command.end(), options.begin(), options.end());
  const Strings program = doctor(arguments);
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

}  // namespace

TEST_CASE("alone it prints one line per check, within 80 columns") {
  Process process(doctor({}));
  const int code = process.wait();
  CHECK((code == 0) == (count_of(process.out, "\nbad ") == 0));
  CHECK(process.err.empty());
  const Strings lines = lines_of(process.out);
  for (const std::string& line : lines) CHECK(line.size() <= 80);
  for (const char* name :
       {"version",     "settings",      "launcher",      "place",     "interface",     "rendezvous",
        "store port",  "security",      "open files",    "processes", "locked memory", "backlog",
        "processors",  "memory",        "shared memory", "GPUs",      "CUDA",          "NCCL",
        "NCCL faults", "NCCL settings", "NCCL files",    "InfiniBand"}) {
    CHECK(count_of(process.out, std::string("  ") + name + "  ") == 1);
  }
  CHECK(count_of(process.out, "none: this process is a job of one rank") == 1);
}

TEST_CASE("as a rank it knows its place and reaches the store") {
  Process process(run_doctor({"-n", "2", "--show", "1", "--no-prefix"}, {"--json"}));
  process.wait();
  const nlohmann::json json = nlohmann::json::parse(process.out);
  CHECK(json["rank"] == 1);
  CHECK(json["checks"].size() == 22);
  for (const auto& check : json["checks"]) {
    CHECK(check.size() == 4);
    const std::string name = check["name"];
    const std::string finding = check["finding"];
    if (name == "place") CHECK(finding == "rank 1 of 2, local rank 1 of 2, node 0 of 1");
    if (name == "launcher") CHECK(starts_with(finding, "dt run (rank from "));
    if (name == "rendezvous") CHECK(count_of(finding, " answers") == 1);
    if (name == "security") CHECK(finding == "auth, with the token of environment DT_TOKEN");
    if (name == "interface") CHECK(starts_with(finding, "lo 127.0.0.1 (loopback), by the route "));
  }
}

TEST_CASE("a launcher that says half is bad, and the exit code says so") {
  Process::Options options;
  options.environment = {"RANK=3"};
  Process process(doctor({}), options);
  CHECK(process.wait() == 1);
  CHECK(count_of(process.out, "bad      launcher") == 1);
  CHECK(count_of(process.out, "RANK=3 is set") == 1);
}

TEST_CASE("the token is named by where it comes from, and what is wrong with it is bad") {
  char folder[] = "/tmp/dt-doctor-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string path = std::string(folder) + "/token";
  const std::string token(64, '7');
  FILE* file = fopen(path.c_str(), "w");
  REQUIRE(file != nullptr);
  fputs((token + "\n").c_str(), file);
  fclose(file);
  const auto found = [&](mode_t mode, const Strings& environment) {
    REQUIRE(chmod(path.c_str(), mode) == 0);
    Process::Options options;
    options.environment = environment;
    Process process(doctor({"--json"}), options);
    process.wait();
    CHECK(count_of(process.out + process.err, token.substr(0, 16)) == 0);  // in no message
    const nlohmann::json json = nlohmann::json::parse(process.out);
    for (const auto& check : json["checks"]) {
      if (check["name"] == "security") return check;
    }
    return nlohmann::json();
  };
  const std::string by_file = "DT_TOKEN_FILE=" + path;
  const auto good = found(0600, {by_file, "DT_SECURITY_MODE=encrypt"});
  CHECK(good["grade"] == "good");
  CHECK(good["finding"] == "encrypt, with the token of the file " + path);
  const auto open_to_others = found(0644, {by_file});
  CHECK(open_to_others["grade"] == "bad");
  CHECK(open_to_others["finding"] == "the token file " + path +
                                         " can be used by others (mode 0644): they could join and "
                                         "read the job");
  CHECK(open_to_others["advice"] == "run: chmod 600 " + path);
  const auto too_short = found(0600, {"DT_TOKEN=" + token.substr(0, 40)});
  CHECK(too_short["grade"] == "bad");
  CHECK(count_of(too_short["finding"].get<std::string>(),
                 "has 40 digits, too few to keep anybody out") == 1);
  const auto none =
      found(0600, {"DT_SECURITY_MODE=auth", "XDG_CONFIG_HOME=", "HOME=" + std::string(folder)});
  CHECK(none["grade"] == "bad");
  CHECK(none["finding"] ==
        "security.mode is auth, but there is no token: give all processes of "
        "the job one, in a file that DT_TOKEN_FILE (or security.token_file) "
        "names, or in ~/.config/dt/token on every host, which dt token makes");
  const auto several = found(0600, {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1",
                                    "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1",
                                    "XDG_CONFIG_HOME=", "HOME=" + std::string(folder)});
  CHECK(several["grade"] == "warning");
  CHECK(several["finding"] == "there is no token, so the job listens on loopback only");
  CHECK(several["advice"] == "run dt token, and copy ~/.config/dt/token to every host");
  unlink(path.c_str());
  rmdir(folder);
}

TEST_CASE("a rendezvous that nobody serves is found out without waiting for ever") {
  const HeldPort port;  // does not listen
  Process::Options options;
  options.environment = {"DT_RANK=1", "DT_WORLD_SIZE=2", "DT_MASTER_ADDR=127.0.0.1",
                         "DT_MASTER_PORT=" + std::to_string(port.port()), "DT_STORE_SERVED=true"};
  Process process(doctor({}), options);
  CHECK(process.wait() == 1);
  CHECK(count_of(process.out, "bad      rendezvous") == 1);
  CHECK(count_of(process.out, ": refused,") == 1);
}

TEST_CASE("what the keys of the network say is looked at") {
  Process::Options options;
  options.environment = {"DT_NETWORK_INTERFACE=no-such0"};
  Process none(doctor({}), options);
  CHECK(none.wait() == 1);
  CHECK(count_of(none.out, "bad      interface") == 1);
  CHECK(count_of(none.out, "network.interface is \"no-such0\"") == 1);
  options.environment = {"DT_NETWORK_PORT_RANGE=9-1"};
  Process range(doctor({}), options);
  CHECK(range.wait() == 1);
  CHECK(count_of(range.out, "network.port_range is \"9-1\"") == 1);
  const HeldPort port;
  options.environment = {"RANK=0",
                         "WORLD_SIZE=2",
                         "MASTER_ADDR=127.0.0.1",
                         "MASTER_PORT=" + std::to_string(port.port()),
                         "DT_STORE_BIND=203.0.113.9",
                         "DT_SECURITY_MODE=none",
                         "DT_NETWORK_INTERFACE=lo"};
  Process bind(doctor({}), options);
  CHECK(bind.wait() == 1);
  CHECK(count_of(bind.out, "bad      store port") == 1);
  CHECK(count_of(bind.out, "by network.interface") == 1);
}

TEST_CASE("without a driver it says so where GPUs are asked for") {
  if (dlopen("libcuda.so.1", RTLD_LAZY) != nullptr) return;
  Process::Options options;
  options.environment = {"DT_BACKEND_NAME=nccl"};
  Process process(doctor({}), options);
  CHECK(process.wait() == 1);
  CHECK(count_of(process.out, "bad      GPUs           none, while backend.name is nccl\n") == 1);
  CHECK(count_of(process.out, "bad      CUDA ") == 1);
}

TEST_CASE("--strict makes warnings fail") {
  Process::Options options;
  options.environment = {"DT_LAUNCHER="};  // an empty variable is worth a warning
  Process lenient(doctor({}), options);
  Process strict(doctor({"--strict"}), options);
  const int lenient_code = lenient.wait();
  CHECK(count_of(lenient.out, "warning  ") >= 1);
  CHECK(lenient_code == (count_of(lenient.out, "\nbad ") == 0 ? 0 : 1));
  CHECK(strict.wait() == 1);
}

TEST_CASE("--cluster gathers all ranks, and prints what differs, once") {
  Process alike(run_doctor({"-n", "3"}, {"--cluster"}));
  alike.wait();
  CHECK(count_of(alike.out, "22 of 22 checks are alike on the 3 ranks that reported\n") == 1);
  CHECK(count_of(alike.out, "[1]") == 0);
  CHECK(count_of(alike.out, "[2]") == 0);
  // One rank with another setting.
  const std::string script =
      "if [ $RANK = 2 ]; then export DT_HOST_SLOT_BYTES=8192; fi; exec \"$0\" doctor --cluster";
  Process differ({required_variable("DT_COMMAND"), "run", "-n", "3", "/bin/sh", "-c", script,
                  required_variable("DT_COMMAND")});
  differ.wait();
  CHECK(count_of(differ.out, "[0] settings\n") == 1);
  CHECK(count_of(differ.out, "ranks 0, 1:") == 1);
  CHECK(count_of(differ.out, "rank 2:") == 1);
  CHECK(count_of(differ.out, "rank 2:      host.slot_bytes=8192\n") == 1);
}

TEST_CASE("--cluster works without dt run: rank 0 then serves the store") {
  const HeldPort port;
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    Process::Options options;
    options.environment = {"RANK=" + std::to_string(rank), "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                           "MASTER_PORT=" + std::to_string(port.port())};
    ranks.push_back(std::make_unique<Process>(doctor({"--cluster", "--json"}), options));
  }
  ranks[0]->wait();
  CHECK(ranks[1]->wait() == 0);
  CHECK(ranks[1]->out.empty());
  const nlohmann::json json = nlohmann::json::parse(ranks[0]->out);
  CHECK(json["ranks"] == 2);
  CHECK(json["missing"].empty());
}

TEST_CASE("--cluster needs no token where all ranks are in a step on one node") {
  const auto interfaces = net::list_interfaces();
  const auto routable = std::find_if(interfaces.begin(), interfaces.end(), [](const auto& each) {
    return each.address.family() == AF_INET && !net::is_loopback(each.address);
  });
  if (routable == interfaces.end()) {
    MESSAGE("this host has no address but loopback: not tested");
    return;
  }
  const HeldPort port;
  const TempFolder home;
  std::vector<std::unique_ptr<Process>> ranks;
  for (const std::string rank : {"0", "1"}) {
    Process::Options options;
    options.environment = {"SLURM_JOB_ID=812",
                           "SLURM_STEP_ID=0",
                           "SLURM_PROCID=" + rank,
                           "SLURM_LOCALID=" + rank,
                           "SLURM_NODEID=0",
                           "SLURM_STEP_NUM_TASKS=2",
                           "SLURM_STEP_NUM_NODES=1",
                           "SLURM_STEP_TASKS_PER_NODE=2",
                           "SLURM_STEP_NODELIST=" + routable->address.host(),
                           "MASTER_PORT=" + std::to_string(port.port()),
                           "HOME=" + home.path(),
                           "XDG_CONFIG_HOME="};
    ranks.push_back(std::make_unique<Process>(
        doctor({"--cluster", "--json", "--timeout-ms", "20000"}), options));
  }
  ranks[0]->wait();
  CHECK(ranks[1]->wait() == 0);
  INFO(ranks[0]->err);
  const auto json = nlohmann::json::parse(ranks[0]->out, nullptr, false);
  REQUIRE(json.is_object());
  CHECK(json["ranks"] == 2);
  CHECK(json["missing"].empty());
}

TEST_CASE("--cluster: where the name of rank 0's host leads to loopback, it serves everywhere") {
  char name[256] = "";
  REQUIRE(gethostname(name, sizeof name - 1) == 0);
  const auto bound = net::bind_host(name);
  if (!bound.ok() || !bound.value().empty()) {
    MESSAGE("the name of this host does not lead to loopback: not tested");
    return;
  }
  const HeldPort port;
  std::vector<std::unique_ptr<Process>> ranks;
  for (const std::string rank : {"0", "1"}) {
    Process::Options options;
    // Another address than that of the name, as on another host.
    options.environment = {"RANK=" + rank, "WORLD_SIZE=2",
                           "MASTER_ADDR=" + (rank == "0" ? std::string(name) : "127.0.0.77"),
                           "MASTER_PORT=" + std::to_string(port.port()),
                           "DT_TOKEN=" + std::string(64, 'a')};
    ranks.push_back(std::make_unique<Process>(
        doctor({"--cluster", "--json", "--timeout-ms", "20000"}), options));
  }
  ranks[0]->wait();
  CHECK(ranks[1]->wait() == 0);
  INFO(ranks[0]->err);
  const auto json = nlohmann::json::parse(ranks[0]->out, nullptr, false);
  REQUIRE(json.is_object());
  CHECK(json["missing"].empty());
}

TEST_CASE("settings that a job would refuse are bad ones") {
  const struct {
    Strings environment;
    Strings names;
  } cases[] = {
      {{"DT_HEARTBEAT_TIMEOUT_MS=1500"}, {"heartbeat.timeout_ms", "heartbeat.interval_ms"}},
      {{"DT_HOST_NUMA=0,x"}, {"host.numa of environment DT_HOST_NUMA"}},
      {{"DT_HOST_PROGRESS_CPUS=0,5-3"},
       {"host.progress_cpus of environment DT_HOST_PROGRESS_CPUS"}},
  };
  for (const auto& each : cases) {
    CAPTURE(each.environment[0]);
    Process::Options options;
    options.environment = each.environment;
    Process process(doctor({"--json"}), options);
    CHECK(process.wait() == 1);
    const nlohmann::json json = nlohmann::json::parse(process.out);
    Process settings({required_variable("DT_COMMAND"), "config"}, options);
    CHECK(settings.wait() == 1);
    for (const std::string& name : each.names) {
      CHECK(count_of(json.dump(), name) >= 1);
      CHECK(count_of(settings.err, name) >= 1);
    }
  }
}

TEST_CASE("--cluster names the ranks that do not report in time") {
  const HeldPort port;
  Process::Options options;
  options.environment = {"RANK=0", "WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1",
                         "MASTER_PORT=" + std::to_string(port.port())};
  Process process(doctor({"--cluster", "--timeout-ms", "200"}), options);
  CHECK(process.wait() == 1);
  CHECK(count_of(process.out, "no report of ranks 1, 2\n") == 1);
}
