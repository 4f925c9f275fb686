// SPDX-License-Identifier: Apache-2.0
#include "launch/discover.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "../contains.h"

using dt::Config;
using dt::Environment;
using dt::launch::discover;
using dt::launch::Place;
using dt::launch::resolve_place;
using dt::test::contains;
using nlohmann::json;

namespace {

Environment environment_of(const json& each) {
  Environment environment;
  for (const auto& item : each.at("env").items()) environment[item.key()] = item.value();
  return environment;
}

void check_number(const json& expected, const char* name, int32_t got, int32_t unknown) {
  CAPTURE(std::string(name));
  if (!expected.contains(name)) return;
  if (expected.at(name).is_null()) return;  // the environment does not settle it
  CHECK(got == expected.at(name).get<int32_t>());
  CHECK(got != unknown);
}

void check_numbers(const json& expected, const Place& place) {
  check_number(expected, "rank", place.rank, -1);
  check_number(expected, "world_size", place.world_size, -1);
  check_number(expected, "local_rank", place.local_rank, -1);
  check_number(expected, "local_size", place.local_size, -1);
  check_number(expected, "node_rank", place.node_rank, -1);
  check_number(expected, "node_count", place.node_count, -1);
}

/// An environment that lacks only the address: with one, all else is right.
void check_ids(const json& expected, Environment environment) {
  environment["MASTER_ADDR"] = "10.9.8.7";
  environment["MASTER_PORT"] = "1234";
  const auto place = discover(environment);
  INFO(place.status().message());
  REQUIRE(place.ok());
  check_numbers(expected, place.value());
  CHECK(place.value().master_addr == "10.9.8.7");
  CHECK(place.value().master_port == 1234);
}

void check_place(const json& expected, const Place& place) {
  check_numbers(expected, place);
  check_number(expected, "master_port", place.master_port, 0);
  if (expected.at("master_addr").is_string()) {
    CHECK(place.master_addr == expected.at("master_addr").get<std::string>());
  }
  CHECK(place.port_taken == expected.value("master_port_taken_by_launcher", false));
  CHECK(place.launcher == expected.at("launcher").get<std::string>());
}

std::string error_of(const Environment& environment) {
  const auto place = discover(environment);
  REQUIRE_FALSE(place.ok());
  CHECK(place.status().code() == dt::Code::kConfig);
  return place.status().message();
}

Place place_of(const Environment& environment) {
  const auto place = discover(environment);
  INFO(place.status().message());
  REQUIRE(place.ok());
  return place.value();
}

const Environment kTorchrun = {{"RANK", "3"},
                               {"WORLD_SIZE", "4"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "2"},
                               {"GROUP_RANK", "1"},
                               {"GROUP_WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "10.0.0.4"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_RUN_ID", "blue"},
                               {"TORCHELASTIC_RESTART_COUNT", "2"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

Environment with(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}

}  // namespace

TEST_CASE("discover: every recorded environment") {
  std::ifstream file(std::string(DT_TEST_VECTORS) + "/launch_vectors.json");
  REQUIRE(file.good());
  const json vectors = json::parse(file);
  CHECK(vectors.size() == 121);
  for (const json& each : vectors) {
    const Environment environment = environment_of(each);
    CAPTURE(each.at("name").get<std::string>());
    const auto place = discover(environment);
    if (each.contains("expect_error")) {
      REQUIRE_FALSE(place.ok());
      const std::string message = place.status().message();
      CAPTURE(message);
      const std::string kind = each.at("expect_error");
      CHECK(message.substr(0, kind.size() + 2) == kind + ": ");
      for (const std::string part : each.at("error_mentions")) CHECK(contains(message, part));
      if (each.contains("expect_ids")) check_ids(each.at("expect_ids"), environment);
      continue;
    }
    INFO(place.status().message());
    REQUIRE(place.ok());
    check_place(each.at("expect"), place.value());
    std::string warnings;
    for (const std::string& warning : place.value().warnings) warnings += warning + "\n";
    for (const json& warning : each.value("warn", json::array())) {
      CHECK(contains(warnings, warning.get<std::string>() + ": "));
    }
  }
}

TEST_CASE("discover: nobody launched us") {
  const Place place = place_of({});
  CHECK(place.rank == 0);
  CHECK(place.world_size == 1);
  CHECK(place.local_rank == 0);
  CHECK(place.local_size == 1);
  CHECK(place.launcher == "single");
  CHECK(place.master_port == 0);
}

TEST_CASE("discover: torchrun's facts, and a port that is taken") {
  const Place place = place_of(kTorchrun);
  CHECK(place.rank == 3);
  CHECK(place.node_rank == 1);
  CHECK(place.attempt == 2);
  CHECK(place.job_id == "blue");
  CHECK(place.launcher == "torchrun");
  CHECK(place.port_taken);
  CHECK_FALSE(place.store_served);
  const int32_t port = store_port(place);
  CHECK(port >= 20000);
  CHECK(port < 32000);
  Place same = place;
  same.rank = 0;
  same.attempt = 3;  // a restarted job finds its store at the same place
  CHECK(store_port(same) == port);
  same.port_taken = false;
  CHECK(store_port(same) == 29500);
}

TEST_CASE("discover: dt run's variables win over the equal ones it sets for torch programs") {
  const Environment environment = {{"DT_RANK", "1"},
                                   {"DT_WORLD_SIZE", "2"},
                                   {"DT_LOCAL_RANK", "1"},
                                   {"DT_LOCAL_SIZE", "2"},
                                   {"DT_NODE_RANK", "0"},
                                   {"DT_NODE_COUNT", "1"},
                                   {"DT_MASTER_PORT", "401"},
                                   {"DT_JOB_ID", "j"},
                                   {"DT_MASTER_ADDR", "127.0.0.1"},
                                   {"DT_STORE_SERVED", "1"},
                                   {"DT_ATTEMPT", "1"},
                                   {"DT_LAUNCHER_PID", "77"},
                                   {"RANK", "1"},
                                   {"WORLD_SIZE", "2"},
                                   {"MASTER_ADDR", "127.0.0.1"},
                                   {"MASTER_PORT", "402"}};
  const Place place = place_of(environment);
  CHECK(place.launcher == "dt run");
  CHECK(place.master_port == 401);
  CHECK(place.store_served);
  CHECK(place.port_taken);
  CHECK(store_port(place) == 401);
  CHECK(place.job_id == "j");
  CHECK(place.attempt == 1);
  CHECK(place.warnings.empty());
}

TEST_CASE(
    "discover: a local rank that does not follow the rank counts as it is, and tells no size") {
  // RANK is not NODE_RANK * 4 + LOCAL_RANK, so nothing proves that nodes have four ranks.
  const Environment placed = {
      {"RANK", "5"},        {"WORLD_SIZE", "8"},  {"NODE_RANK", "1"}, {"AZUREML_NODE_COUNT", "2"},
      {"MASTER_ADDR", "m"}, {"MASTER_PORT", "5"}, {"LOCAL_RANK", "2"}};
  Place place = place_of(placed);
  CHECK(place.local_rank == 2);
  CHECK(place.local_size == -1);
  CHECK(place_of(with(placed, {{"LOCAL_RANK", "1"}})).local_size == 4);
  place =
      place_of(with(placed, {{"DT_RANK", "5"}, {"DT_WORLD_SIZE", "8"}, {"DT_LOCAL_RANK", "3"}}));
  CHECK(place.rank == 5);
  CHECK(place.local_rank == 3);
  CHECK(place.master_addr == "m");
}

TEST_CASE("discover: own rank and size take their blanks from an equal launch only") {
  Place place = place_of(with(kTorchrun, {{"DT_RANK", "3"}, {"DT_WORLD_SIZE", "4"}}));
  CHECK(place.launcher == "env");
  CHECK(place.local_rank == 1);
  CHECK(place.master_addr == "10.0.0.4");
  CHECK(place.port_taken);
  CHECK(place.warnings.empty());

  const Environment differs = {{"DT_RANK", "0"}, {"DT_WORLD_SIZE", "4"}};
  CHECK(contains(error_of(with(kTorchrun, differs)), "no_rendezvous: DT_WORLD_SIZE=4, but nobody"));
  place = place_of(
      with(with(kTorchrun, differs), {{"DT_MASTER_ADDR", "host7"}, {"DT_MASTER_PORT", "5"}}));
  CHECK(place.rank == 0);
  CHECK(place.local_rank == -1);
  CHECK_FALSE(place.port_taken);
  REQUIRE(place.warnings.size() == 1);
  CHECK(place.warnings[0] ==
        "other_launcher: DT_RANK=0 DT_WORLD_SIZE=4 count; RANK=3 WORLD_SIZE=4 (torchrun) say "
        "otherwise. If that one started this process, set DT_LAUNCHER=torchrun or unset the first");
}

TEST_CASE("discover: MASTER_ADDR and MASTER_PORT are the address of own rank and size, too") {
  const Environment own = {{"DT_RANK", "0"}, {"DT_WORLD_SIZE", "2"}, {"MASTER_ADDR", "m"}};
  const Place place = place_of(with(own, {{"MASTER_PORT", "29500"}, {"DT_LAUNCHER", "own"}}));
  CHECK(place.master_addr == "m");
  CHECK(place.master_port == 29500);
  CHECK(contains(error_of(with(own, {{"MASTER_PORT", "29500x"}})),
                 "not_a_number: MASTER_PORT=\"29500x\"; expected a decimal integer from 1 to"));
  // As a Service of Kubernetes sets it; the equal launch leads to rank 0.
  const Environment named = {{"MASTER_PORT", "tcp://10.0.0.1:80"},
                             {"OMPI_COMM_WORLD_RANK", "0"},
                             {"OMPI_COMM_WORLD_SIZE", "2"},
                             {"PMIX_NAMESPACE", "7"},
                             {"PMIX_SERVER_URI4", "x"}};
  const Place led = place_of(with(own, named));
  CHECK(led.exchange == dt::launch::Exchange::kPmix);
  CHECK(led.warnings ==
        std::vector<std::string>{
            "not_a_number: MASTER_PORT=\"tcp://10.0.0.1:80\"; expected a decimal integer from 1 to "
            "65535; MASTER_ADDR and MASTER_PORT do not count: the launcher leads to rank 0"});
  const Environment step = {
      {"SLURM_JOB_ID", "70012"},        {"SLURM_STEP_ID", "3"},        {"SLURM_PROCID", "0"},
      {"SLURM_STEP_NUM_TASKS", "2"},    {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_NODEID", "0"},
      {"SLURM_STEP_NODELIST", "n[3,1]"}};
  const Environment ranks = {{"DT_RANK", "0"}, {"DT_WORLD_SIZE", "2"}};
  for (const char* port : {"29500x", "0", "70000"}) {
    CAPTURE(port);
    // The error where Slurm alone says the rank, a warning where its host is the address.
    CHECK(contains(error_of(with(step, {{"MASTER_PORT", port}})), ": MASTER_PORT=\""));
    const Place host = place_of(with(ranks, with(step, {{"MASTER_PORT", port}})));
    CHECK(host.master_addr == "n3");
    REQUIRE(host.warnings.size() == 1);
    CHECK(contains(host.warnings[0], std::string(": MASTER_PORT=\"") + port));
  }
}

TEST_CASE("discover: MASTER_ADDR and MASTER_PORT of another launch are not those of own ranks") {
  for (const char* launcher : {"", "own"}) {
    CAPTURE(launcher);
    const Environment own = {
        {"DT_RANK", "0"}, {"DT_WORLD_SIZE", "2"}, {"DT_LAUNCHER", launcher}, {"LOCAL_RANK", "x"}};
    CHECK(contains(error_of(with(kTorchrun, own)), "no_rendezvous: DT_WORLD_SIZE=2, but nobody"));
    const Place place = place_of(with(kTorchrun, with(own, {{"WORLD_SIZE", "2"}, {"RANK", "0"}})));
    CHECK(place.master_addr == "10.0.0.4");
  }
}

TEST_CASE("discover: own variables are the way out of a broken environment") {
  const Environment own = {
      {"DT_RANK", "0"}, {"DT_WORLD_SIZE", "2"}, {"DT_MASTER_ADDR", "a"}, {"DT_MASTER_PORT", "1"}};
  CHECK(place_of(with(own, {{"RANK", "junk"}})).world_size == 2);
  CHECK(place_of(with(own, {{"RANK", "1"}})).rank == 0);
}

TEST_CASE("discover: half of the own variables must agree with a complete launch") {
  CHECK(place_of(with(kTorchrun, {{"DT_WORLD_SIZE", "4"}})).rank == 3);
  CHECK(error_of(with(kTorchrun, {{"DT_RANK", "0"}})) ==
        "conflict: DT_RANK=0, but RANK=3; unset the stale one, or set DT_LAUNCHER=torchrun to use "
        "the second");
  CHECK(place_of(with(kTorchrun, {{"DT_RANK", "0"}, {"DT_LAUNCHER", "torchrun"}})).rank == 3);
}

TEST_CASE("discover: DT_LAUNCHER forces a family") {
  const Environment both = with(
      kTorchrun,
      {{"DT_RANK", "0"}, {"DT_WORLD_SIZE", "2"}, {"DT_MASTER_ADDR", "a"}, {"DT_MASTER_PORT", "1"}});
  CHECK(place_of(with(both, {{"DT_LAUNCHER", "own"}})).world_size == 2);
  const Place torch = place_of(with(both, {{"DT_LAUNCHER", "env"}}));
  CHECK(torch.world_size == 4);
  CHECK(torch.master_addr == "a");  // the rest of the own variables still counts
  CHECK(place_of(with(both, {{"DT_LAUNCHER", "none"}})).world_size == 1);
  CHECK(error_of(with(both, {{"DT_LAUNCHER", "slrum"}})) ==
        "unknown_launcher: DT_LAUNCHER=\"slrum\"; expected one of own, torchrun, env, horovod, "
        "jsrun, "
        "pals, flux, mvapich2, openmpi, hydra, mpich, slurm, lightning, vertex, tf_config, "
        "sagemaker, aws-batch, k8s-indexed, single");
  CHECK(error_of(with(kTorchrun, {{"DT_LAUNCHER", "own"}})) ==
        "partial: DT_LAUNCHER asks for the variables of own, but DT_RANK and DT_WORLD_SIZE are "
        "not; start the program with dt run, or set both on every rank");
}

TEST_CASE("discover: error texts") {
  CHECK(error_of({{"DT_RANK", "1"}}) ==
        "partial: DT_RANK=1 is set, but DT_WORLD_SIZE is not; start the program with dt run, or "
        "set both on every rank");
  CHECK(error_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}}) ==
        "no_rendezvous: WORLD_SIZE=2, but nobody names the address of rank 0; set MASTER_ADDR and "
        "MASTER_PORT (or DT_MASTER_ADDR and DT_MASTER_PORT) to the host of rank 0 and a free port "
        "there, the same on all ranks");
  CHECK(error_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}) ==
        "out_of_range: RANK=2 must be less than WORLD_SIZE=2");
  CHECK(error_of({{"RANK", "0x1"}, {"WORLD_SIZE", "2"}}) ==
        "not_a_number: RANK=\"0x1\"; expected a decimal integer from 0 to 2147483646");
  CHECK(error_of(with(kTorchrun, {{"WORLD_SIZE", "2147483647"}})) ==
        "out_of_range: WORLD_SIZE=2147483647; a job has at most 1048576 ranks, because every rank "
        "keeps a record of each other one; set it to the number of processes that are started");
  for (const char* sizes : {"LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"}) {
    CHECK(error_of(with(kTorchrun, {{sizes, "2147483647"}})) ==
          "out_of_range: " + std::string(sizes) + "=2147483647 must not be more than WORLD_SIZE=4");
  }
  CHECK(contains(error_of({{"OMPI_COMM_WORLD_RANK", "0"},
                           {"OMPI_COMM_WORLD_SIZE", "1048577"},
                           {"MASTER_ADDR", "m"},
                           {"MASTER_PORT", "5"}}),
                 "out_of_range: OMPI_COMM_WORLD_SIZE=1048577; a job has at most 1048576 ranks"));
  CHECK(place_of(with(kTorchrun, {{"WORLD_SIZE", "1048576"}})).world_size == 1048576);
  CHECK(
      contains(error_of({{"RANK", "99999999999999999999"}, {"WORLD_SIZE", "2"}}), "out_of_range"));
  CHECK(contains(error_of({{"DT_RANK", "0"}, {"DT_WORLD_SIZE", "0"}}), "out_of_range: DT_WORLD_S"));
  CHECK(error_of(with(kTorchrun, {{"MASTER_ADDR", "10.0.0.4:29500"}})) ==
        "bad_address: MASTER_ADDR=\"10.0.0.4:29500\"; expected a host name, an IPv4 or an IPv6 "
        "address without a port");
  for (const char* bad : {"[::1", "a b", "1::2::3", "[node]", "http://x", "\xff", "fe80::1%",
                          "fe80::1%eth0\n", "fe80::1%a b", "fe80::1%[x]", "fe80::1%a%b"}) {
    CAPTURE(std::string(bad));
    CHECK(contains(error_of(with(kTorchrun, {{"MASTER_ADDR", bad}})), "bad_address: MASTER_ADDR="));
  }
  CHECK(place_of(with(kTorchrun, {{"MASTER_ADDR", "[2001:db8::5]"}})).master_addr == "2001:db8::5");
  CHECK(place_of(with(kTorchrun, {{"MASTER_ADDR", "fe80::1%br-0_a.7"}})).master_addr ==
        "fe80::1%br-0_a.7");
  CHECK(place_of(with(kTorchrun, {{"RANK", "0003"}})).rank == 3);
}

TEST_CASE("discover: an empty variable counts as not set, with a warning") {
  const Place place = place_of(with(kTorchrun, {{"LOCAL_RANK", ""}}));
  CHECK(place.local_rank == -1);
  CHECK(place.warnings == std::vector<std::string>{
                              "empty_variable: LOCAL_RANK is set but empty and counts as not set"});
  CHECK(contains(error_of(with(kTorchrun, {{"WORLD_SIZE", ""}})), "partial: RANK=3 is set"));
}

TEST_CASE("discover: DeepSpeed's launcher says the node as CROSS_RANK of CROSS_SIZE") {
  const Place place = place_of({{"RANK", "5"},
                                {"WORLD_SIZE", "6"},
                                {"LOCAL_RANK", "1"},
                                {"LOCAL_SIZE", "2"},
                                {"CROSS_RANK", "2"},
                                {"CROSS_SIZE", "3"},
                                {"MASTER_ADDR", "m"},
                                {"MASTER_PORT", "29500"}});
  CHECK(place.local_size == 2);
  CHECK(place.node_rank == 2);
  CHECK(place.node_count == 3);
}

TEST_CASE("discover: a pod of several processes needs torchrun inside") {
  CHECK(error_of({{"RANK", "1"},
                  {"WORLD_SIZE", "8"},
                  {"MASTER_ADDR", "m"},
                  {"MASTER_PORT", "23456"},
                  {"PET_NODE_RANK", "1"},
                  {"PET_NNODES", "2"},
                  {"PET_NPROC_PER_NODE", "4"}}) ==
        "conflict: WORLD_SIZE=8 counts processes but RANK=1 counts pods, and PET_NPROC_PER_NODE=4 "
        "processes of this pod (PET_NODE_RANK=1) were not started; start the program by torchrun "
        "or dt run");
}

TEST_CASE("resolve_place: discovered values show in the config with their variable") {
  auto loaded = Config::load(kTorchrun, {".", "/nonexistent", "/dev/null", ""});
  REQUIRE(loaded.ok());
  Config& config = loaded.value();
  const auto place = resolve_place(config, kTorchrun);
  REQUIRE(place.ok());
  CHECK(place.value().rank == 3);
  CHECK(config.integer("job.rank") == 3);
  CHECK(config.source_of("job.rank").where == "torchrun: RANK");
  CHECK(config.text("job.master_addr") == "10.0.0.4");
  CHECK(config.text("job.id") == "blue");
  CHECK(config.integer("job.attempt") == 2);
  CHECK_FALSE(config.given("job.rank"));
}

TEST_CASE("resolve_place: what the program says wins and is named in errors") {
  Config config;
  REQUIRE(config.set("job.rank", "1").ok());
  const auto partial = resolve_place(config, {});
  CHECK(partial.status().message() ==
        "partial: job.rank (call)=1 is set, but DT_WORLD_SIZE is not; start the program with dt "
        "run, or set both on every rank");
  REQUIRE(config.set("job.world_size", "2").ok());
  REQUIRE(config.set("job.master_addr", "127.0.0.1").ok());
  REQUIRE(config.set("job.master_port", "4000").ok());
  REQUIRE(config.set("job.store_served", "true").ok());
  const auto place = resolve_place(config, kTorchrun);  // threads as ranks under torchrun
  REQUIRE(place.ok());
  CHECK(place.value().rank == 1);
  CHECK(place.value().world_size == 2);
  CHECK(place.value().launcher == "config");
  CHECK(place.value().store_served);
  CHECK(place.value().local_rank == -1);
  CHECK(place.value().warnings.empty());
}

TEST_CASE(
    "resolve_place: threads that are ranks agree on the job, whichever has the process's rank") {
  const Environment process = {
      {"SLURM_JOB_ID", "812"},         {"SLURM_STEP_ID", "0"},        {"SLURM_PROCID", "0"},
      {"SLURM_STEP_NUM_TASKS", "2"},   {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_NODEID", "0"},
      {"PMIX_NAMESPACE", "slurm.812"}, {"PMIX_SERVER_URI4", "x"},
  };
  const Environment agent = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TORCHELASTIC_RESTART_COUNT", "3"}};
  std::vector<Place> places;
  for (const char* rank : {"0", "1"}) {
    Config config;
    REQUIRE(config.set("job.rank", rank).ok());
    REQUIRE(config.set("job.world_size", "2").ok());
    REQUIRE(config.set("job.master_addr", "127.0.0.1").ok());
    REQUIRE(config.set("job.master_port", "4000").ok());
    const auto place = resolve_place(config, with(process, agent));
    INFO(place.status().message());
    REQUIRE(place.ok());
    places.push_back(place.value());
  }
  CHECK(places[0].rank == 0);
  CHECK(places[1].rank == 1);
  CHECK(places[0].job_id == places[1].job_id);
  CHECK(places[0].attempt == places[1].attempt);
  CHECK(places[0].token_exchange == places[1].token_exchange);
}

TEST_CASE("resolve_place: config is the authority for the own variables") {
  // The variable was not given to config, as when a lock or a call has overruled it.
  Config config;
  const auto place = resolve_place(config, {{"DT_RANK", "5"}, {"DT_WORLD_SIZE", "9"}});
  REQUIRE(place.ok());
  CHECK(place.value().world_size == 1);
  CHECK(config.integer("job.world_size") == 1);
  CHECK(config.source_of("job.world_size").where == "single: no launcher");
}
