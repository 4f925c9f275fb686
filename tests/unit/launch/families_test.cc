// SPDX-License-Identifier: Apache-2.0
// What the recorded environments do not show: texts of errors, the rules between families, hostile
// values.
#include <doctest/doctest.h>

#include "../contains.h"
#include "launch/discover.h"
#include "launch/facts.h"

using dt::Environment;
using dt::launch::discover;
using dt::launch::Exchange;
using dt::launch::Place;
using dt::test::contains;

namespace {

std::string refusal_of(const Environment& environment) {
  const auto place = discover(environment);
  REQUIRE_FALSE(place.ok());
  CHECK(place.status().code() == dt::Code::kConfig);
  return place.status().message();
}

Place found_place(const Environment& environment) {
  const auto place = discover(environment);
  INFO(place.status().message());
  REQUIRE(place.ok());
  return place.value();
}

Environment plus(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}

const Environment kStep = {{"SLURM_JOB_ID", "70012"},
                           {"SLURM_STEP_ID", "3"},
                           {"SLURM_PROCID", "2"},
                           {"SLURM_STEP_NUM_TASKS", "4"},
                           {"SLURM_LOCALID", "0"},
                           {"SLURM_NODEID", "1"},
                           {"SLURM_STEP_NUM_NODES", "2"},
                           {"SLURM_STEP_NODELIST", "n[3,1]"},
                           {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}};
const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"PMIX_NAMESPACE", "704643073"}};
const Environment kAddress = {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "5"}};

std::string cluster(const std::string& roles, const std::string& task) {
  return R"({"cluster": {)" + roles + R"(}, "task": )" + task + "}";
}

}  // namespace

TEST_CASE(
    "slurm: the address follows from the step, and the exchange is better when there is one") {
  const Place place = found_place(kStep);
  CHECK(place.launcher == "slurm");
  CHECK(place.master_addr == "n3");
  CHECK(place.master_port == 10012);
  CHECK(place.address_by_convention);
  CHECK(place.job_id == "70012.3");
  CHECK(place.exchange == Exchange::kNone);
  const Place pmi =
      found_place(plus(kStep, {{"PMI_FD", "7"}, {"PMI_RANK", "2"}, {"PMI_SIZE", "4"}}));
  CHECK(pmi.launcher == "slurm");
  CHECK(pmi.exchange == Exchange::kPmi);
  CHECK(pmi.master_addr == "n3");
  CHECK(pmi.master_port == 0);
  const Place pmix = found_place(
      plus(kStep, {{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "s"}, {"PMIX_SERVER_URI4", "x"}}));
  CHECK(pmix.exchange == Exchange::kPmix);
  const Place given = found_place(plus(plus(kStep, kAddress), {{"PMI_FD", "7"}}));
  CHECK(given.exchange == Exchange::kNone);
  CHECK_FALSE(given.address_by_convention);
  const Place port = found_place(plus(kStep, {{"MASTER_PORT", "5"}, {"PMI_FD", "7"}}));
  CHECK(port.address_by_convention);
  CHECK(port.master_addr == "n3");
  CHECK(port.master_port == 5);
  CHECK(port.exchange == Exchange::kNone);
  CHECK(given.master_addr == "m");
  CHECK(given.master_port == 5);
}

TEST_CASE("slurm: an arbitrary layout needs an address or an exchange") {
  const Environment arbitrary = plus(kStep, {{"SLURM_DISTRIBUTION", "arbitrary"}});
  CHECK(refusal_of(arbitrary) ==
        "ambiguous_host_order: SLURM_DISTRIBUTION=\"arbitrary\": rank 0 need not be on the first "
        "node of SLURM_STEP_NODELIST; set MASTER_ADDR and MASTER_PORT to its host and a free port "
        "there");
  CHECK(found_place(plus(arbitrary, kAddress)).master_addr == "m");
  const Place pmi = found_place(plus(arbitrary, {{"PMI_FD", "7"}}));
  CHECK(pmi.exchange == Exchange::kPmi);
  CHECK(pmi.master_addr.empty());
}

TEST_CASE("slurm: tasks per node") {
  const auto local_size = [](const char* text, const char* node, const char* tasks,
                             const char* nodes) {
    return found_place(plus(kStep, {{"SLURM_STEP_TASKS_PER_NODE", text},
                                    {"SLURM_NODEID", node},
                                    {"SLURM_STEP_NUM_TASKS", tasks},
                                    {"SLURM_STEP_NODELIST", "n7"},
                                    {"SLURM_STEP_NUM_NODES", nodes}}))
        .local_size;
  };
  CHECK(local_size("4(x2),3", "1", "11", "3") == 4);
  CHECK(local_size("4(x2),3", "2", "11", "3") == 3);
  CHECK(local_size("1,2(x3),1(x1)", "3", "8", "5") == 2);
  for (const char* bad : {"", "x", "4(", "4(x", "4(x2", "4(x2)3", "4(x0)", "0", "-1", "4,", ",4",
                          "4(y2)", "99999999999", "2000000000(x2000000000)"}) {
    CAPTURE(std::string(bad));
    if (*bad == 0) continue;
    CHECK(contains(refusal_of(plus(kStep, {{"SLURM_STEP_TASKS_PER_NODE", bad}})),
                   "bad_tasks_per_node: SLURM_STEP_TASKS_PER_NODE="));
  }
  CHECK(
      refusal_of(plus(kStep, {{"SLURM_STEP_TASKS_PER_NODE", "3,2"}})) ==
      "bad_tasks_per_node: SLURM_STEP_TASKS_PER_NODE=\"3,2\" are 5 tasks on 2 nodes, but "
      "SLURM_STEP_NUM_TASKS=4 and SLURM_STEP_NUM_NODES=2; start the program with srun, and do not "
      "export SLURM_STEP_* variables");
}

TEST_CASE("slurm: what is no step runs alone, and says so") {
  for (const char* step : {"4294967290", "4294967291", "-5", ""}) {
    CAPTURE(std::string(step));
    const Place place = found_place(plus(kStep, {{"SLURM_STEP_ID", step}, {"SLURM_NTASKS", "4"}}));
    CHECK(place.launcher == "single");
    CHECK(place.world_size == 1);
    REQUIRE_FALSE(place.warnings.empty());
    CHECK(place.warnings.back() ==
          "slurm_allocation_without_srun: the allocation is for 4 tasks (SLURM_NTASKS), but this "
          "process was not started by srun: running as 1 of 1. Start it with srun");
  }
  CHECK(found_place({{"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "1"}}).warnings.empty());
  CHECK(found_place({{"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "2"}, {"DT_LAUNCHER", "single"}})
            .warnings.empty());
}

TEST_CASE("a rank exported before the launcher") {
  CHECK(
      refusal_of(plus(kStep, {{"RANK", "0"}})) ==
      "conflict: RANK=0, but SLURM_PROCID=2; unset the stale one, or set DT_LAUNCHER=slurm to use "
      "the second");
  const Environment both = plus(plus(kStep, {{"RANK", "0"}, {"WORLD_SIZE", "4"}}), kAddress);
  CHECK(refusal_of(both) ==
        "conflict: RANK=0 WORLD_SIZE=4 (env), but SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 (slurm); "
        "unset the stale ones (a rank exported before the launcher is the same in all processes), "
        "or set DT_LAUNCHER=env or DT_LAUNCHER=slurm to say which counts");
  CHECK(found_place(plus(both, {{"DT_LAUNCHER", "env"}})).rank == 0);
  const Place slurm = found_place(plus(both, {{"DT_LAUNCHER", "slurm"}}));
  CHECK(slurm.rank == 2);
  CHECK(slurm.local_size == 2);
  CHECK(slurm.master_addr == "m");
  CHECK(found_place(plus(both, {{"TORCHELASTIC_RUN_ID", "x"}})).launcher == "torchrun");
  CHECK(found_place(plus(both, {{"WORLD_SIZE", "8"}})).world_size == 8);
}

TEST_CASE("a launcher that numbers its processes itself takes nothing from the step around it") {
  // The agents' order is not that of the tasks: rank 0 has both numbers in common, rank 2 has not.
  const Environment step = {{"SLURM_JOB_ID", "812"},        {"SLURM_STEP_ID", "0"},
                            {"SLURM_STEP_NUM_TASKS", "3"},  {"SLURM_STEP_NUM_NODES", "3"},
                            {"SLURM_LOCALID", "0"},         {"PMIX_SERVER_URI4", "tcp4://x"},
                            {"PMIX_NAMESPACE", "slurm.812"}};
  const std::vector<std::vector<std::string>> launches = {
      {"RANK"}, {"HOROVOD_RANK"}, {"RANK", "DT_RANK"}};
  for (const std::vector<std::string>& variables : launches) {
    CAPTURE(variables.back());
    const auto rank_in = [&](const char* rank, const char* task) {
      Environment all = plus(step, kAddress);
      if (variables[0] == "RANK") all["TORCHELASTIC_RUN_ID"] = "none";
      for (const std::string& variable : variables) {
        all[variable] = rank;
        all[variable.substr(0, variable.size() - 4) +
            (variable[0] == 'H' ? "SIZE" : "WORLD_SIZE")] = "3";
      }
      all["SLURM_PROCID"] = all["SLURM_NODEID"] = task;
      return found_place(all);
    };
    const Place first = rank_in("0", "0");
    const Place last = rank_in("2", "1");
    CHECK(first.job_id == last.job_id);
    CHECK(first.token_exchange == last.token_exchange);
    CHECK(first.exchange == last.exchange);
  }
}

TEST_CASE("a rank of a program that runs alone, exported before the launcher") {
  const Environment alone = {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}};
  const Environment hydra = {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}};
  const struct {
    Environment launch;
    const char* who;
  } rows[] = {
      {kOpenMpi, "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 (openmpi)"},
      {hydra, "PMI_RANK=1 PMI_SIZE=4 (hydra)"},
      {kStep, "SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 (slurm)"},
  };
  for (const auto& row : rows) {
    CHECK(refusal_of(plus(row.launch, alone)) ==
          "conflict: RANK=0 WORLD_SIZE=1 (env), but " + std::string(row.who) +
              ": each of the 4 processes would be a job of its own; unset RANK and WORLD_SIZE, or "
              "start one process only, or set DT_LAUNCHER=env to run so many jobs of one rank");
    CHECK(found_place(plus(plus(row.launch, alone), {{"DT_LAUNCHER", "env"}})).world_size == 1);
    // Somebody who writes these variables for each process was started in it.
    const Place inner =
        found_place(plus(plus(row.launch, alone), {{"TORCHELASTIC_RUN_ID", "none"}}));
    CHECK(inner.launcher == "torchrun");
    CHECK(inner.world_size == 1);
    const Place own =
        found_place(plus(plus(row.launch, alone),
                         {{"DT_RANK", "0"}, {"DT_WORLD_SIZE", "1"}, {"DT_LAUNCHER_PID", "7"}}));
    CHECK(own.launcher == "dt run");
    CHECK(own.world_size == 1);
  }
  const Environment ray = plus(alone, {{"LOCAL_WORLD_SIZE", "1"}, {"NODE_RANK", "0"}});
  CHECK(found_place(plus(kStep, ray)).world_size == 1);
  CHECK(
      contains(refusal_of(plus(kOpenMpi, ray)), "conflict: RANK=0 WORLD_SIZE=1 (env), but OMPI_"));
  const Environment horovod = {{"HOROVOD_RANK", "0"}, {"HOROVOD_SIZE", "1"}};
  CHECK(found_place(plus(kOpenMpi, horovod)).launcher == "horovod");
  // The step is around an mpirun of one process, not around the exported variables.
  const Environment one = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}};
  CHECK(found_place(plus(plus(kStep, alone), one)).world_size == 1);
}

TEST_CASE("MASTER_IP is the address only next to a name of Azure's") {
  const Environment common = plus(kOpenMpi, {{"MASTER_IP", "10.1.0.7"}, {"PMIX_SERVER_URI4", "x"}});
  const Place place = found_place(common);
  CHECK(place.exchange == Exchange::kPmix);
  CHECK(place.master_addr.empty());
  for (const char* mark : {"AZUREML_RUN_ID", "AZ_BATCH_POOL_ID"}) {
    const Place azure = found_place(plus(common, {{mark, "x"}}));
    CHECK(azure.master_addr == "10.1.0.7");
    CHECK(azure.master_port == 6105);
  }
}

TEST_CASE("openmpi: a process of prterun runs alone, and says so") {
  const Environment prterun = {{"PMIX_RANK", "2"},
                               {"PMIX_NAMESPACE", "prterun-n0-77@1"},
                               {"PMIX_SERVER_URI41", "prterun-n0-77@0.0;tcp4://127.0.0.1:9"}};
  const Place place = found_place(prterun);
  CHECK(place.world_size == 1);
  REQUIRE(place.warnings.size() == 1);
  CHECK(place.warnings[0] ==
        "pmix_without_size: this process was started with PMIX_RANK=\"2\", but no variable says "
        "how many there are: running as 1 of 1. Start it with mpirun of Open MPI, or set RANK and "
        "WORLD_SIZE");
  CHECK(found_place(plus(prterun, {{"OMPI_MCA_ess", "singleton"}})).warnings.empty());
  CHECK(found_place(plus(prterun, {{"DT_LAUNCHER", "single"}})).warnings.empty());
  CHECK(found_place(plus(prterun, kOpenMpi)).warnings.empty());
}

TEST_CASE("names of launches in a process that nobody launched") {
  const struct {
    const char* name;
    const char* value;
    const char* warning;
  } rows[] = {
      {"MASTER_PORT", "tcp://10.0.0.1:80",
       "not_a_number: MASTER_PORT=\"tcp://10.0.0.1:80\"; expected a decimal integer from 1 to "
       "65535; "
       "nobody needs it in a process that runs alone"},
      {"MASTER_PORT", "70000",
       "out_of_range: MASTER_PORT=\"70000\"; expected a decimal integer from 1 to 65535; nobody "
       "needs "
       "it in a process that runs alone"},
      {"MASTER_ADDR", "http://x",
       "bad_address: MASTER_ADDR=\"http://x\"; expected a host name, an IPv4 or an IPv6 address "
       "without a port; nobody needs it in a process that runs alone"},
      {"LOCAL_RANK", "first", nullptr},
      {"NODE_RANK", "x", nullptr},
      {"CLUSTER_SPEC", "hello",
       "other_cluster_spec: CLUSTER_SPEC names no workerpool, so it is not Vertex AI's and does "
       "not "
       "count"},
      {"CLUSTER_SPEC", "{\"cluster\": {\"web\": [\"a\"]}, \"task\": {\"type\": \"web\"}}",
       "other_cluster_spec: CLUSTER_SPEC names no workerpool, so it is not Vertex AI's and does "
       "not "
       "count"},
  };
  for (const auto& row : rows) {
    CAPTURE(std::string(row.value));
    const Place place = found_place({{row.name, row.value}});
    CHECK(place.launcher == "single");
    CHECK(place.world_size == 1);
    std::vector<std::string> expected;
    if (row.warning != nullptr) expected.push_back(row.warning);
    CHECK(place.warnings == expected);
    // Under a launcher what belongs to the address counts, and nothing else.
    const auto step = discover(plus(kStep, {{row.name, row.value}}));
    CHECK(step.ok() == (std::string(row.name).find("MASTER_") != 0));
    if (!step.ok()) CHECK(contains(step.status().message(), std::string(": ") + row.name + "="));
    if (step.ok()) CHECK(step.value().launcher == "slurm");
  }
  CHECK(contains(refusal_of({{"NODE_RANK", "1"}, {"MASTER_ADDR", "m"}, {"MASTER_PORT", "x"}}),
                 "not_a_number: MASTER_PORT="));
  CHECK(
      contains(refusal_of({{"WORLD_SIZE", "2"}, {"LOCAL_RANK", "x"}}), "not_a_number: LOCAL_RANK"));
  CHECK(contains(refusal_of({{"CLUSTER_SPEC", "{\"cluster\": {\"workerpool0\""}}),
                 "bad_json: CLUSTER_SPEC="));
}

TEST_CASE("two MPI families that differ cannot be told apart") {
  CHECK(refusal_of(plus(kOpenMpi, {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}})) ==
        "conflict: OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 (openmpi), but PMI_RANK=0 "
        "PMI_SIZE=2 (hydra); unset the stale ones (a rank exported before the launcher is the same "
        "in all processes), or set DT_LAUNCHER=openmpi or DT_LAUNCHER=hydra to say which counts");
  const Place place = found_place(plus(
      plus(kOpenMpi, kAddress),
      {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"DT_LAUNCHER", "hydra"}}));
  CHECK(place.launcher == "hydra");
  CHECK(place.world_size == 2);
}

TEST_CASE("openmpi: an MPI that found no launcher does not fit to one that dt finds") {
  const Environment singleton = {{"OMPI_MCA_ess", "singleton"},
                                 {"PMIX_NAMESPACE", "1299120129"},
                                 {"PMIX_RANK", "0"},
                                 {"PMIX_SERVER_URI4", "x"}};
  CHECK(refusal_of(plus(kStep, singleton)) ==
        "conflict: SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 (slurm), but OMPI_MCA_ess=singleton: "
        "MPI_Init of Open MPI did not find its launcher and made each process rank 0 of 1; start "
        "the program with mpirun of Open MPI or with srun --mpi=pmix, or set DT_LAUNCHER=slurm to "
        "use dt beside such an MPI");
  const Place place = found_place(plus(plus(kStep, singleton), {{"DT_LAUNCHER", "slurm"}}));
  CHECK(place.rank == 2);
  CHECK(place.exchange == Exchange::kNone);
  CHECK(found_place(singleton).launcher == "single");
}

TEST_CASE("hydra: its own service counts, not a server of PMIx around it") {
  const Environment around = {{"PMIX_NAMESPACE", "slurm.pmix.5.0"}, {"PMIX_SERVER_URI41", "x"}};
  const Environment inner = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_FD", "9"}};
  const Environment hydra = plus(inner, {{"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  CHECK(found_place(plus(hydra, around)).exchange == Exchange::kPmi);
  CHECK(found_place(plus(inner, around)).exchange == Exchange::kPmi);
  Environment without = plus(inner, around);
  without.erase("PMI_FD");
  CHECK(found_place(without).exchange == Exchange::kPmix);
}

TEST_CASE("openmpi: an address is asked for with -x, unless PMIx can tell one") {
  CHECK(refusal_of(kOpenMpi) ==
        "no_rendezvous: OMPI_COMM_WORLD_SIZE=4, but nobody names the address of rank 0; set "
        "MASTER_ADDR and MASTER_PORT (or DT_MASTER_ADDR and DT_MASTER_PORT) to the host of rank 0 "
        "and a free port there, the same on all ranks: mpirun -x MASTER_ADDR=... -x "
        "MASTER_PORT=... (without -x other hosts get neither)");
  const Place place = found_place(plus(kOpenMpi, {{"PMIX_SERVER_URI41", "x"}}));
  CHECK(place.exchange == Exchange::kPmix);
  CHECK(place.master_addr.empty());
  CHECK(place.master_port == 0);
  CHECK(place.job_id == "704643073");
  const Place one_node = found_place(plus(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}));
  CHECK(one_node.exchange == Exchange::kPmix);
  CHECK(one_node.master_addr == "127.0.0.1");
  CHECK(one_node.node_rank == 0);
}

TEST_CASE("mpirun inside a Slurm job takes the first node of the job, not of the daemons' step") {
  const Environment inside = plus(plus(kStep, kOpenMpi), {{"SLURM_STEP_NUM_TASKS", "1"},
                                                          {"SLURM_PROCID", "0"},
                                                          {"SLURM_STEP_NODELIST", "n9"},
                                                          {"SLURM_STEP_TASKS_PER_NODE", "1"},
                                                          {"SLURM_STEP_NUM_NODES", "1"},
                                                          {"SLURM_NODEID", "0"},
                                                          {"SLURM_JOB_NUM_NODES", "2"},
                                                          {"SLURM_JOB_NODELIST", "n[8-9]"}});
  const Place place = found_place(inside);
  CHECK(place.launcher == "openmpi");
  CHECK(place.rank == 3);
  CHECK(place.master_addr == "n8");
  CHECK(place.master_port == 10012);
  CHECK(found_place(plus(plus(inside, kAddress), {{"SLURM_JOB_NODELIST", "n["}})).master_addr ==
        "m");
  CHECK(contains(refusal_of(plus(inside, {{"SLURM_JOB_NODELIST", "n["}})),
                 "bad_nodelist: SLURM_JOB_NODELIST: host list \"n[\", position 2: [ without ]; set "
                 "MASTER_ADDR and MASTER_PORT to the host of rank 0 and a free port there"));
}

TEST_CASE("tf_config: what a task that is no worker does instead") {
  const std::string roles = R"("worker": ["a:1", "b:1"], "ps": ["p:1"])";
  CHECK(refusal_of({{"TF_CONFIG", cluster(roles, R"({"type": "ps", "index": 0})")}}) ==
        "not_a_worker: TF_CONFIG task.type=\"ps\" takes no rank in dt. It is a parameter server: "
        "call dt_ps_serve in it. Call dt_init in tasks of type chief and worker only");
  CHECK(refusal_of({{"TF_CONFIG", cluster(roles, R"({"type": "evaluator"})")}}) ==
        "not_a_worker: TF_CONFIG task.type=\"evaluator\" takes no rank in dt. It is an evaluator: "
        "let it read checkpoints, or parameters after dt_ps_connect. Call dt_init in tasks of type "
        "chief and worker only");
  CHECK(contains(refusal_of({{"TF_CONFIG", cluster(roles, R"({"type": "x"})")}}),
                 "not_a_worker: TF_CONFIG task.type=\"x\" is unknown"));
  CHECK(refusal_of({{"TF_CONFIG", cluster(roles, R"({"type": "worker", "index": 2})")}}) ==
        "out_of_range: TF_CONFIG task.index=2, but its cluster has 2 tasks of type worker; give "
        "every task the same cluster, itself included");
  const Place place =
      found_place({{"TF_CONFIG", cluster(roles, R"({"type": "worker", "index": "1"})")}});
  CHECK(place.rank == 1);
  CHECK(place.master_addr == "a");
  CHECK(place.master_port == 1);
  const Place old =
      found_place({{"TF_CONFIG", cluster(R"("master": ["[::7]:9"], "worker": ["b:1"])",
                                         R"({"type": "worker", "index": 0})")}});
  CHECK(old.rank == 1);
  CHECK(old.master_addr == "::7");
  CHECK(found_place({{"TF_CONFIG", R"({"environment": "cloud"})"}}).launcher == "single");
  CHECK(found_place({{"TF_CONFIG", "{"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}}).launcher == "env");
  CHECK(refusal_of({{"TF_CONFIG", cluster(roles, "{}")}}) ==
        "partial: TF_CONFIG names a cluster, but TF_CONFIG task.index and TF_CONFIG cluster are "
        "not; give every task the whole cluster in TF_CONFIG, or set RANK and WORLD_SIZE");
}

TEST_CASE("json: hostile texts are errors") {
  const std::string deep(100000, '[');
  CHECK(contains(refusal_of({{"TF_CONFIG", deep}}), ": nested more than 32 levels deep"));
  CHECK(contains(refusal_of({{"TF_CONFIG", "\"" + std::string(2 << 20, 'x') + "\""}}),
                 ": longer than 1 MiB"));
  for (const char* bad :
       {"[]", "1", "\"x\"", "{\"cluster\": 1}", "{\"cluster\": {\"worker\": 1}}",
        "{\"cluster\": {\"worker\": [1]}}", "{\"cluster\": {\"worker\": [[]]}}",
        "{\"task\": {\"type\": 1}}", "{\"task\": {\"index\": -1}}", "{\"task\": {\"index\": 1e9}}",
        "{\"task\": {\"index\": 99999999999999999999}}", "{\"task\": {\"index\": \"1x\"}}", "\xff",
        "{\"cluster\": {\"worker\": [\"\xff\"]}}"}) {
    CAPTURE(std::string(bad));
    CHECK(contains(refusal_of({{"TF_CONFIG", bad}}), "bad_json: TF_CONFIG="));
  }
  CHECK(contains(refusal_of({{"SM_HOSTS", "{}"}}), "bad_json: SM_HOSTS="));
  CHECK(contains(refusal_of({{"SM_RESOURCE_CONFIG", "{\"hosts\": 1}"}}), "bad_json: SM_RESOURCE_"));
  CHECK(
      contains(refusal_of({{"CLUSTER_SPEC", cluster("\"workerpool0\": [\"a b:1\"]",
                                                    "{\"type\": \"workerpool0\", \"index\": 0}")}}),
               "bad_address: CLUSTER_SPEC=\"a b:1\""));
  CHECK(refusal_of({{"SM_HOSTS", "[\"a\"]"}, {"SM_CURRENT_HOST", "b"}}) ==
        "unknown_host: SM_CURRENT_HOST=\"b\" is none of the 1 hosts in SM_HOSTS; set RANK, "
        "WORLD_SIZE, MASTER_ADDR and MASTER_PORT instead");
}

TEST_CASE("azure: addresses with and without the port of its own service") {
  const Environment two = plus(kOpenMpi, {{"AZUREML_NODE_COUNT", "2"}});
  CHECK(found_place(plus(two, {{"AZ_BATCH_MASTER_NODE", "[fd00::1]:6000"}})).master_addr ==
        "fd00::1");
  for (const char* bad : {":6000", "a:", "a:x", "a:0", "a:-1", "a:99999", "fd00::1", "a b", ":"}) {
    CAPTURE(std::string(bad));
    CHECK(contains(refusal_of(plus(two, {{"AZ_BATCH_MASTER_NODE", bad}})),
                   "bad_address: AZ_BATCH_MASTER_NODE="));
  }
  const Place cyclic =
      found_place(plus(two, {{"AZ_BATCH_MASTER_NODE", "a"}, {"OMPI_COMM_WORLD_RANK", "2"}}));
  CHECK(cyclic.node_rank == -1);  // local rank 1 of rank 2 is no block layout
  CHECK(cyclic.node_count == 2);
}

TEST_CASE("launchers of one process per node") {
  const Environment batch = {{"AWS_BATCH_JOB_NODE_INDEX", "0"},
                             {"AWS_BATCH_JOB_NUM_NODES", "4"},
                             {"AWS_BATCH_JOB_MAIN_NODE_INDEX", "3"}};
  CHECK(found_place(plus(batch, {{"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", "10.0.0.9"}}))
            .rank == 1);
  const Place main = found_place(plus(batch, {{"AWS_BATCH_JOB_NODE_INDEX", "3"}}));
  CHECK(main.rank == 0);
  CHECK(main.master_addr == "0.0.0.0");
  CHECK(main.master_port == 29500);
  CHECK(contains(refusal_of(batch), "no_rendezvous: AWS_BATCH_JOB_NUM_NODES=4"));
  CHECK(contains(refusal_of(plus(batch, {{"AWS_BATCH_JOB_NODE_INDEX", "4"}})),
                 "out_of_range: AWS_BATCH_JOB_NODE_INDEX=4 must be less than"));
}

TEST_CASE("lightning: the rank of a child, where it follows") {
  const Environment child = plus(kAddress, {{"LOCAL_RANK", "1"}, {"WORLD_SIZE", "8"}});
  const Place first = found_place(plus(child, {{"NODE_RANK", "0"}}));
  CHECK(first.launcher == "lightning");
  CHECK(first.rank == 1);
  CHECK(found_place(plus(child, {{"NODE_RANK", "1"}, {"AZUREML_NODE_COUNT", "2"}})).rank == 5);
  CHECK_FALSE(
      found_place(plus(child, {{"NODE_RANK", "1"}, {"AZUREML_NODE_COUNT", "2"}})).settles_ranks);
  CHECK(first.settles_ranks);  // the other nodes need to hear of this process
  const Place later = found_place(plus(child, {{"NODE_RANK", "1"}}));
  CHECK(later.settles_ranks);
  CHECK(later.rank == -1);
  CHECK(later.node_rank == 1);
  CHECK(later.local_rank == 1);
  CHECK(later.world_size == 8);
  CHECK_FALSE(found_place(plus(child, {{"NODE_RANK", "1"}, {"RANK", "3"}})).settles_ranks);
  CHECK(contains(refusal_of(plus(child, {{"NODE_RANK", "1"}, {"LOCAL_RANK", "8"}})),
                 "partial: WORLD_SIZE=8 is set, but RANK is not; "));
}

TEST_CASE("jsrun, pals, flux and mvapich2 without what the recorded environments have") {
  const Environment jsrun = {{"JSM_NAMESPACE_RANK", "1"},
                             {"JSM_NAMESPACE_SIZE", "2"},
                             {"LSB_JOBID", "812345"},
                             {"LSB_MCPU_HOSTS", "batch1 1 c01 42 c02 42"}};
  CHECK(found_place(jsrun).master_addr == "c01");
  CHECK(found_place(jsrun).master_port == 12345);
  CHECK(found_place(plus(jsrun, {{"LSB_MCPU_HOSTS", "c07 42 "}})).master_addr == "c07");
  CHECK(contains(refusal_of(plus(jsrun, {{"LSB_MCPU_HOSTS", "c07"}})), "no_rendezvous: "));
  const Place pals =
      found_place(plus(kAddress, {{"PALS_RANKID", "1"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}));
  CHECK(pals.launcher == "pals");
  CHECK(pals.world_size == 2);
  CHECK(
      contains(refusal_of({{"PALS_RANKID", "1"}}), "partial: PALS_RANKID=1 is set, but PALS_SIZE"));
  const Place flux =
      found_place({{"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "2"}, {"PMI_FD", "9"}});
  CHECK(flux.exchange == Exchange::kPmi);
  const Place newer =
      found_place(plus(kAddress, {{"MVP_COMM_WORLD_RANK", "1"}, {"MVP_COMM_WORLD_SIZE", "2"}}));
  CHECK(newer.launcher == "mvapich2");
}

TEST_CASE("srun and mpirun inside a rank of dt run are a conflict, those around it are not") {
  const Environment rank = {
      {"DT_RANK", "0"},    {"DT_WORLD_SIZE", "1"},       {"DT_LAUNCHER_PID", "7"}, {"RANK", "0"},
      {"WORLD_SIZE", "1"}, {"TORCHELASTIC_RUN_ID", "j"}, {"DT_RUN_AROUND", "none"}};
  CHECK(refusal_of(plus(kStep, rank)) ==
        "conflict: this process (SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4, slurm) seems to have been "
        "started inside a rank of dt run, whose variables are still set; unset them before (in "
        "sh or bash: unset $DT_RUN_SET), or set DT_LAUNCHER=own to be that rank of dt run");
  CHECK(contains(refusal_of(plus(kOpenMpi, rank)), ", openmpi) seems to have been started inside"));
  CHECK(found_place(plus(plus(kStep, rank), {{"DT_LAUNCHER", "own"}})).world_size == 1);
  // Another step than the one around dt run, even if this task has the same numbers there.
  CHECK(contains(refusal_of(plus(plus(kStep, rank), {{"DT_RUN_AROUND", "slurm 70012.2 2/4"}})),
                 ", slurm) seems to have been started inside"));
  // The rank's own program as the only process of an mpirun.
  const Environment one = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}};
  CHECK(found_place(plus(one, rank)).launcher == "dt run");
  Environment both = plus(kStep, kOpenMpi);
  both["DT_RUN_AROUND"] = dt::launch::launches_around(dt::launch::Variables(both));
  CHECK(both["DT_RUN_AROUND"] == "openmpi 704643073 3/4;slurm 70012.3 2/4");
  Environment inherited = plus(rank, both);
  CHECK(found_place(inherited).launcher == "dt run");
  inherited["OMPI_COMM_WORLD_RANK"] = "1";
  CHECK(contains(refusal_of(inherited), "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4, openmpi)"));
}

TEST_CASE("dt run and its ranks see the same launches around, whatever list of nodes") {
  const Environment own = {{"DT_RANK", "0"}, {"DT_WORLD_SIZE", "8"}, {"DT_LAUNCHER_PID", "7"}};
  Environment step = plus(kStep, {{"SLURM_STEP_NODELIST", "n[1-"}});
  step["DT_RUN_AROUND"] = dt::launch::launches_around(dt::launch::Variables(step));
  CHECK(step["DT_RUN_AROUND"] == "slurm 70012.3 2/4");
  CHECK(found_place(plus(plus(step, kAddress), own)).launcher == "dt run");
  Environment mpi = plus(kOpenMpi, {{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "n[1-"}});
  mpi["DT_RUN_AROUND"] = dt::launch::launches_around(dt::launch::Variables(mpi));
  CHECK(found_place(plus(plus(mpi, kAddress), own)).launcher == "dt run");
}

TEST_CASE("dt run inside another launch is no reason for a warning") {
  const Environment agent = plus(
      plus(kStep, kAddress), {{"DT_RANK", "5"}, {"DT_WORLD_SIZE", "8"}, {"DT_LAUNCHER_PID", "7"}});
  const Place place = found_place(agent);
  CHECK(place.launcher == "dt run");
  CHECK(place.warnings.empty());
  CHECK(place.node_count == -1);
}
