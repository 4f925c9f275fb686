// SPDX-License-Identifier: Apache-2.0
#include "launch/ps_place.h"

#include <doctest/doctest.h>

#include "../contains.h"
#include "launch/discover.h"

using dt::Config;
using dt::Environment;
using dt::launch::PsPlace;
using dt::launch::PsRole;
using dt::launch::resolve_place;
using dt::launch::resolve_ps_place;
using dt::test::contains;
using Strings = std::vector<std::string>;

namespace {

Config config_of(const Environment& environment) {
  auto loaded = Config::load(environment, {".", "/nonexistent", "/dev/null", ""});
  INFO(loaded.status().message());
  REQUIRE(loaded.ok());
  return std::move(loaded).value();
}

PsPlace found_ps_place(const Environment& environment) {
  Config config = config_of(environment);
  const auto place = resolve_ps_place(config, environment);
  INFO(place.status().message());
  REQUIRE(place.ok());
  return place.value();
}

std::string ps_refusal_of(const Environment& environment) {
  Config config = config_of(environment);
  const auto place = resolve_ps_place(config, environment);
  REQUIRE_FALSE(place.ok());
  CHECK(place.status().code() == dt::Code::kConfig);
  return place.status().message();
}

Environment and_also(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}

std::string ps_cluster(const std::string& type, int index) {
  return R"({"cluster": {"chief": ["c:1"], "worker": ["a:1", "b:1"], "ps": ["p:7", "[::2]:8"]}, )"
         R"("task": {"type": ")" +
         type + R"(", "index": )" + std::to_string(index) + "}}";
}

const Environment kTwoServers = {{"DT_PS_SERVERS", "10.0.0.1:5,10.0.0.2:6"}};

}  // namespace

TEST_CASE("a server of dt run: its index, its workers and the socket that listens for it") {
  const Environment environment = and_also(kTwoServers, {{"DT_PS_INDEX", "1"},
                                                         {"DT_PS_WORKERS", "4"},
                                                         {"DT_PS_LISTEN_FD", "9"},
                                                         {"DT_JOB_ID", "blue"},
                                                         {"DT_ATTEMPT", "2"},
                                                         {"DT_LAUNCHER_PID", "77"}});
  const PsPlace place = found_ps_place(environment);
  CHECK(place.role == PsRole::kServer);
  CHECK(place.index == 1);
  CHECK(place.servers == Strings{"10.0.0.1:5", "10.0.0.2:6"});
  CHECK(place.workers == 4);
  CHECK(place.listen_fd == 9);
  CHECK(place.job_id == "blue");
  CHECK(place.attempt == 2);
  CHECK(place.launcher == "dt run");
  CHECK(contains(ps_refusal_of(and_also(environment, {{"DT_PS_LISTEN_FD", "2"}})),
                 "out_of_range: DT_PS_LISTEN_FD=\"2\""));
}

TEST_CASE("a server by settings alone: workers need not be known, and it binds by itself") {
  const PsPlace place = found_ps_place(and_also(kTwoServers, {{"DT_PS_INDEX", "0"}}));
  CHECK(place.role == PsRole::kServer);
  CHECK(place.workers == 0);
  CHECK(place.listen_fd == -1);
  CHECK(place.launcher == "env");
  Config config;
  REQUIRE(config.set("ps.servers", "n1:7").ok());
  REQUIRE(config.set("ps.index", "0").ok());
  // What was inherited belongs to another server.
  const auto called = resolve_ps_place(config, {{"DT_PS_LISTEN_FD", "9"}});
  REQUIRE(called.ok());
  CHECK(called.value().launcher == "config");
  CHECK(called.value().listen_fd == -1);
}

TEST_CASE("a worker's index is its rank") {
  const Environment ranks = and_also(kTwoServers, {{"DT_RANK", "3"},
                                                   {"DT_WORLD_SIZE", "4"},
                                                   {"DT_MASTER_ADDR", "127.0.0.1"},
                                                   {"DT_MASTER_PORT", "4000"},
                                                   {"DT_LAUNCHER_PID", "7"}});
  const PsPlace place = found_ps_place(ranks);
  CHECK(place.role == PsRole::kWorker);
  CHECK(place.index == 3);
  CHECK(place.workers == 4);
  CHECK(place.launcher == "dt run");
  CHECK(found_ps_place(and_also(ranks, {{"DT_PS_WORKERS", "9"}})).workers == 9);
  CHECK(ps_refusal_of(and_also(ranks, {{"DT_PS_WORKERS", "3"}})) ==
        "out_of_range: DT_PS_WORKERS=3, but this process is worker 3; workers count from 0");
  const PsPlace alone = found_ps_place(kTwoServers);
  CHECK(alone.index == 0);
  CHECK(alone.workers == 1);
  CHECK(alone.launcher == "single");
  CHECK(ps_refusal_of(and_also(kTwoServers, {{"MASTER_ADDR", "m"},
                                             {"MASTER_PORT", "5"},
                                             {"NODE_RANK", "1"},
                                             {"LOCAL_RANK", "1"},
                                             {"WORLD_SIZE", "8"}})) ==
        "partial: the rank of this process is settled only when all ranks have met, and a worker "
        "of parameter servers needs it before; set DT_RANK and DT_WORLD_SIZE");
}

TEST_CASE("TF_CONFIG: ps tasks are servers, chief and workers are workers in the order of ranks") {
  const Environment server = {{"TF_CONFIG", ps_cluster("ps", 1)}, {"DT_JOB_ID", "blue"}};
  Config config = config_of(server);
  const auto resolved = resolve_ps_place(config, server);
  REQUIRE(resolved.ok());
  CHECK(resolved.value().role == PsRole::kServer);
  CHECK(resolved.value().index == 1);
  CHECK(resolved.value().servers == Strings{"p:7", "[::2]:8"});
  CHECK(resolved.value().workers == 3);
  CHECK(resolved.value().listen_fd == -1);
  CHECK(resolved.value().job_id == "blue");
  CHECK(resolved.value().launcher == "tf_config");
  CHECK(config.text("ps.servers") == "p:7,[::2]:8");
  CHECK(config.source_of("ps.servers").where == "tf_config: TF_CONFIG cluster.ps");
  CHECK(config.integer("ps.index") == 1);

  const PsPlace chief = found_ps_place({{"TF_CONFIG", ps_cluster("chief", 0)}});
  CHECK(chief.role == PsRole::kWorker);
  CHECK(chief.index == 0);
  CHECK(chief.workers == 3);
  CHECK(chief.launcher == "tf_config");
  CHECK(found_ps_place({{"TF_CONFIG", ps_cluster("worker", 1)}}).index == 2);
  const PsPlace evaluator = found_ps_place({{"TF_CONFIG", ps_cluster("evaluator", 0)}});
  CHECK(evaluator.role == PsRole::kEvaluator);
  CHECK(evaluator.index == 0);
  CHECK(evaluator.workers == 3);
  CHECK(evaluator.servers.size() == 2);
}

TEST_CASE("Vertex AI: pool 2 holds the servers, pool 3 evaluators") {
  const std::string pools =
      R"({"cluster": {"workerpool0": ["a:1"], "workerpool1": ["b:1"], "workerpool2": ["p:1"]}, )";
  const PsPlace server =
      found_ps_place({{"CLUSTER_SPEC", pools + R"("task": {"type": "workerpool2", "index": 0}})"}});
  CHECK(server.role == PsRole::kServer);
  CHECK(server.servers == Strings{"p:1"});
  CHECK(server.workers == 2);
  CHECK(server.launcher == "vertex");
  const PsPlace worker =
      found_ps_place({{"CLUSTER_SPEC", pools + R"("task": {"type": "workerpool1", "index": 0}})"}});
  CHECK(worker.role == PsRole::kWorker);
  CHECK(worker.index == 1);
}

TEST_CASE("settings go before TF_CONFIG, and a launcher inside a task makes workers of it") {
  const Environment both = and_also(kTwoServers, {{"TF_CONFIG", ps_cluster("ps", 0)}});
  CHECK(found_ps_place(both).servers == Strings{"10.0.0.1:5", "10.0.0.2:6"});
  CHECK(found_ps_place(and_also(both, {{"DT_PS_INDEX", "1"}})).index == 1);
  CHECK(found_ps_place(and_also(both, {{"DT_PS_WORKERS", "8"}})).workers == 8);
  CHECK(ps_refusal_of({{"DT_PS_SERVERS", "n:1"}, {"TF_CONFIG", ps_cluster("ps", 1)}}) ==
        "out_of_range: TF_CONFIG task.index=1, but ps.servers names 1 parameter server; leave "
        "ps.servers out");
  const PsPlace rank = found_ps_place({{"TF_CONFIG", ps_cluster("ps", 0)},
                                       {"DT_RANK", "0"},
                                       {"DT_WORLD_SIZE", "1"},
                                       {"DT_LAUNCHER_PID", "7"}});
  CHECK(rank.role == PsRole::kWorker);
  CHECK(rank.launcher == "dt run");
  // A text that is of no use does not matter where the settings say all.
  CHECK(found_ps_place(and_also(kTwoServers, {{"TF_CONFIG", "{"}, {"DT_PS_INDEX", "0"}})).index ==
        0);
  CHECK(
      contains(ps_refusal_of({{"TF_CONFIG", "{"}, {"DT_PS_INDEX", "0"}}), "bad_json: TF_CONFIG="));
}

TEST_CASE("who has no parameter servers, or a wrong index, is told what to give") {
  const char* const none =
      "no_servers: this job has no parameter servers: ps.servers is empty, and no TF_CONFIG with "
      "ps tasks is set; start it with dt run --servers N, or give ps.servers "
      "(DT_PS_SERVERS=host:port,host:port), or a TF_CONFIG with ps tasks";
  CHECK(ps_refusal_of({}) == none);
  CHECK(ps_refusal_of({{"DT_PS_INDEX", "0"}}) == none);
  CHECK(ps_refusal_of(
            {{"TF_CONFIG", R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}})"}}) ==
        none);
  CHECK(ps_refusal_of(and_also(kTwoServers, {{"DT_PS_INDEX", "2"}})) ==
        "out_of_range: DT_PS_INDEX=2, but this job has 2 parameter servers; the index counts from "
        "0");
  CHECK(ps_refusal_of({{"TF_CONFIG", ps_cluster("ps", 2)}}) ==
        "out_of_range: TF_CONFIG task.index=2, but its cluster has 2 tasks of type ps; give every "
        "task the same cluster, itself included");
  Config config;
  REQUIRE(config.set("ps.servers", "n:1").ok());
  REQUIRE(config.set("ps.index", "7").ok());
  CHECK(resolve_ps_place(config, {}).status().message() ==
        "out_of_range: ps.index (call)=7, but this job has 1 parameter server; the index counts "
        "from 0");
}

TEST_CASE("addresses of parameter servers have a port, and each has its own") {
  for (const char* bad : {"a", "a:", "a:0", "a:99999", "a:1,", ",a:1", "a b:1", "::1", "a:1;b:2"}) {
    CAPTURE(std::string(bad));
    CHECK(contains(ps_refusal_of({{"DT_PS_SERVERS", bad}}), "bad_address: DT_PS_SERVERS: \""));
  }
  CHECK(ps_refusal_of({{"DT_PS_SERVERS", "a"}}) ==
        "bad_address: DT_PS_SERVERS: \"a\"; expected host:port with a port from 1 to 65535, an "
        "IPv6 address in brackets");
  CHECK(ps_refusal_of({{"DT_PS_SERVERS", "[::1]:4,a:1,[::1]:4"}}) ==
        "bad_address: DT_PS_SERVERS names [::1]:4 twice; each parameter server has an address of "
        "its own");
  CHECK(contains(ps_refusal_of({{"TF_CONFIG", R"({"cluster": {"worker": ["a:1"], "ps": ["p"]}, )"
                                              R"("task": {"type": "worker", "index": 0}})"}}),
                 "bad_address: TF_CONFIG cluster.ps: \"p\"; expected host:port"));
}

TEST_CASE("a parameter server is no rank: dt_init tells it what to call") {
  const Environment environment =
      and_also(kTwoServers, {{"DT_PS_INDEX", "1"}, {"DT_RANK", "0"}, {"DT_WORLD_SIZE", "1"}});
  Config config = config_of(environment);
  const auto place = resolve_place(config, environment);
  CHECK(place.status().code() == dt::Code::kConfig);
  CHECK(place.status().message() ==
        "not_a_worker: this process is parameter server 1 of 2 (DT_PS_INDEX=1): it calls "
        "dt_ps_serve instead of dt_init");
}

TEST_CASE("servers that no launcher started belong to the job of the workers of a step") {
  const Environment step = {
      {"SLURM_JOB_ID", "812"},          {"SLURM_STEP_ID", "0"},        {"SLURM_PROCID", "1"},
      {"SLURM_STEP_NUM_TASKS", "2"},    {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_NODEID", "1"},
      {"SLURM_STEP_NODELIST", "n[0-1]"}};
  const PsPlace worker = found_ps_place(and_also(kTwoServers, step));
  const PsPlace server = found_ps_place(and_also(kTwoServers, {{"DT_PS_INDEX", "0"}}));
  CHECK(worker.role == PsRole::kWorker);
  CHECK(worker.job_id == server.job_id);
  const Environment named = and_also(kTwoServers, {{"DT_JOB_ID", "blue"}});
  CHECK(found_ps_place(and_also(named, step)).job_id == "blue");
  CHECK(found_ps_place(and_also(named, {{"DT_PS_INDEX", "0"}})).job_id == "blue");
}

TEST_CASE("a server may leave its port to the kernel, a worker must know it") {
  const Environment open = {{"DT_PS_SERVERS", "127.0.0.1:0,[::1]:0"}};
  CHECK(found_ps_place(and_also(open, {{"DT_PS_INDEX", "1"}})).servers ==
        Strings{"127.0.0.1:0", "[::1]:0"});
  CHECK(contains(ps_refusal_of(open), "bad_address: DT_PS_SERVERS: \"127.0.0.1:0\""));
}
