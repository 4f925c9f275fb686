// SPDX-License-Identifier: Apache-2.0
#include "cli/run/node_place.h"

#include <doctest/doctest.h>

using dt::Environment;
using dt::cli::find_node;
using dt::cli::NodeOptions;
using dt::cli::NodePlace;

namespace {

// As srun sets them for one task on each of two nodes.
Environment slurm_step() {
  return {{"SLURM_JOB_ID", "3490098"},
          {"SLURM_STEP_ID", "2"},
          {"SLURM_STEP_NUM_NODES", "2"},
          {"SLURM_STEP_NUM_TASKS", "2"},
          {"SLURM_STEP_NODELIST", "gpu[08-09]"},
          {"SLURM_NODEID", "1"},
          {"SLURM_PROCID", "1"}};
}

Environment with(Environment environment, const std::string& name, const std::string& value) {
  environment[name] = value;
  return environment;
}

std::string error_of(const NodeOptions& options, const Environment& environment) {
  const auto place = find_node(options, environment);
  return place.ok() ? "no error" : place.status().message();
}

NodeOptions options(int node_count, std::optional<int> node_rank, const std::string& rendezvous) {
  NodeOptions all;
  all.node_count = node_count;
  all.node_rank = node_rank;
  all.rendezvous = rendezvous;
  return all;
}

}  // namespace

TEST_CASE("nothing said is one node") {
  const auto place = find_node({}, {});
  REQUIRE(place.ok());
  CHECK(place.value().node_count == 1);
  CHECK(place.value().node_rank == 0);
}

TEST_CASE("the options say all three, with IPv6 too") {
  const auto place = find_node(options(3, 2, "[fe80::1]:4711"), {});
  REQUIRE(place.ok());
  CHECK(place.value().node_count == 3);
  CHECK(place.value().node_rank == 2);
  CHECK(place.value().host == "fe80::1");
  CHECK(place.value().port == 4711);
  CHECK(place.value().job_id.empty());
}

TEST_CASE("under srun everything comes from the step") {
  const auto place = find_node({}, slurm_step());
  REQUIRE(place.ok());
  CHECK(place.value().node_count == 2);
  CHECK(place.value().node_rank == 1);
  CHECK(place.value().host == "gpu08");
  CHECK(place.value().port == 10098);  // 10000 + job id mod 10000
  CHECK(place.value().job_id == "slurm-3490098.2");
  CHECK(place.value().source == "Slurm step 3490098.2");
  // Given ones win.
  const auto given = find_node({{}, {}, "10.0.0.9:500", "mine"}, slurm_step());
  REQUIRE(given.ok());
  CHECK(given.value().host == "10.0.0.9");
  CHECK(given.value().port == 500);
  CHECK(given.value().job_id == "mine");
}

TEST_CASE("MASTER_ADDR and MASTER_PORT of the user win over the step's own address") {
  const auto place =
      find_node({}, with(with(slurm_step(), "MASTER_ADDR", "head"), "MASTER_PORT", "29500"));
  REQUIRE(place.ok());
  CHECK(place.value().host == "head");
  CHECK(place.value().port == 29500);
}

TEST_CASE("several tasks per node are refused with the way out") {
  CHECK(
      error_of({}, with(slurm_step(), "SLURM_STEP_NUM_TASKS", "8")) ==
      "Slurm step 3490098.2 has 8 tasks on 2 nodes, but dt run is started once per node and "
      "starts the ranks itself; use srun -n \"$SLURM_NNODES\" --ntasks-per-node=1 dt run -n "
      "RANKS_PER_NODE (-n, because srun inherits the number of tasks of a batch script), or dt run "
      "--nnodes 1 for a job of its own in each task");
  NodeOptions alone;
  alone.node_count = 1;
  const auto place = find_node(alone, with(slurm_step(), "SLURM_STEP_NUM_TASKS", "8"));
  REQUIRE(place.ok());
  CHECK(place.value().node_count == 1);
}

TEST_CASE("MASTER_PORT alone is the port at the step's own address, and MASTER_ADDR the host") {
  const auto port = find_node({}, with(slurm_step(), "MASTER_PORT", "29500"));
  REQUIRE(port.ok());
  CHECK(port.value().host == "gpu08");
  CHECK(port.value().port == 29500);
  const auto host = find_node({}, with(slurm_step(), "MASTER_ADDR", "head"));
  REQUIRE(host.ok());
  CHECK(host.value().host == "head");
  CHECK(host.value().port == 10098);
}

TEST_CASE("what is no step of srun's is no step") {
  for (const char* id : {"4294967290", "4294967291", "-5"}) {  // interactive, batch, newer batch
    CAPTURE(id);
    const auto place = find_node({}, with(slurm_step(), "SLURM_STEP_ID", id));
    REQUIRE(place.ok());
    CHECK(place.value().node_count == 1);
  }
  // Inside a rank of dt run, under mpirun or torchrun the step is about the outer launcher.
  for (const char* name : {"DT_LAUNCHER_PID", "OMPI_COMM_WORLD_SIZE", "TORCHELASTIC_RUN_ID"}) {
    const auto place = find_node({}, with(slurm_step(), name, "4"));
    REQUIRE(place.ok());
    CHECK(place.value().node_count == 1);
  }
  const auto hydra = find_node({}, with(slurm_step(), "PMI_SIZE", "4"));
  REQUIRE(hydra.ok());
  CHECK(hydra.value().node_count == 1);
  const auto pmi2 = find_node({}, with(slurm_step(), "PMI_SIZE", "2"));
  REQUIRE(pmi2.ok());
  CHECK(pmi2.value().node_count == 2);
}

TEST_CASE("a launch inside a rank of dt run is refused, unless --nnodes says what is meant") {
  const Environment inside = with(slurm_step(), "DT_RUN_AROUND", "none");
  CHECK(error_of({}, inside).find(", slurm) seems to have been started inside a rank of dt run") !=
        std::string::npos);
  CHECK(find_node(options(1, {}, ""), inside).value().node_count == 1);
  CHECK(find_node({}, with(slurm_step(), "DT_RUN_AROUND", "slurm 3490098.2 1/2")).ok());
}

TEST_CASE("several agents of one launcher are refused, unless their number is known") {
  const struct {
    Environment launch;
    const char* who;
    const char* rank;
  } rows[] = {
      {{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
       "openmpi has started (OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2)",
       "OMPI_COMM_WORLD_RANK"},
      {{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}},
       "hydra has started (PMI_RANK=1 PMI_SIZE=2)",
       "PMI_RANK"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "none"}},
       "torchrun has started (RANK=0 WORLD_SIZE=2)",
       "RANK"},
      {{{"DT_RANK", "1"}, {"DT_WORLD_SIZE", "2"}, {"DT_LAUNCHER_PID", "7"}},
       "dt run has started (DT_RANK=1 DT_WORLD_SIZE=2)",
       "DT_RANK"},
  };
  for (const auto& row : rows) {
    CHECK(error_of({}, row.launch) ==
          "this is one of 2 dt run that " + std::string(row.who) +
              ", and each would make a job of its own; start PROG without dt run there; or start "
              "dt run once per node, with --nnodes, --rendezvous HOST:PORT and --node-rank \"$" +
              row.rank + "\"; or give --nnodes 1 for a job of its own in each process");
    CHECK(find_node(options(1, {}, ""), row.launch).value().node_count == 1);
    CHECK(find_node(options(2, 1, "h:1"), row.launch).value().node_rank == 1);
  }
  // One process of a launcher, a shell's own variables, a step of one task per node.
  CHECK(find_node({}, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}).ok());
  CHECK(find_node({}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}}).ok());
  CHECK(find_node({}, {{"DT_RANK", "0"}, {"DT_WORLD_SIZE", "2"}}).ok());
  const auto pmi2 = with(with(slurm_step(), "PMI_SIZE", "2"), "PMI_RANK", "1");
  CHECK(find_node({}, pmi2).value().node_rank == 1);
}

TEST_CASE("a platform that starts one process per node says which node this is") {
  const std::string tf = R"({"cluster": {"chief": ["c0:2222"], "worker": ["w0:2222", "w1:2222"]},
                            "task": {"type": "worker", "index": 0}})";
  const std::string vertex =
      R"({"cluster": {"workerpool0": ["p0:2222"], "workerpool1": ["p1:2222"]},
                                "task": {"type": "workerpool1", "index": 0}})";
  const Environment azure_mpi = {{"AZ_BATCH_MASTER_NODE", "10.0.0.4:6000"},
                                 {"AZUREML_NODE_COUNT", "2"},
                                 {"OMPI_COMM_WORLD_RANK", "1"},
                                 {"OMPI_COMM_WORLD_SIZE", "2"},
                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  const Environment azure_torch = {{"AZUREML_NODE_COUNT", "2"},
                                   {"NODE_RANK", "1"},
                                   {"MASTER_ADDR", "10.0.0.4"},
                                   {"MASTER_PORT", "6105"}};
  const struct {
    const char* name;
    Environment environment;
    int rank;
    int count;
    const char* host;
    int port;
    const char* source;
  } rows[] = {
      {"Azure ML, PyTorch per node", azure_torch, 1, 2, "10.0.0.4", 6105, "AZUREML_NODE_COUNT=2"},
      {"the same with its RANK and WORLD_SIZE",
       with(with(with(azure_torch, "RANK", "1"), "WORLD_SIZE", "2"), "LOCAL_RANK", "0"), 1, 2,
       "10.0.0.4", 6105, "AZUREML_NODE_COUNT=2"},
      {"Azure ML, MPI per node", azure_mpi, 1, 2, "10.0.0.4", 6105, "OMPI_COMM_WORLD_SIZE=2"},
      {"the same after hi-ml",
       with(with(with(azure_mpi, "NODE_RANK", "1"), "MASTER_ADDR", "10.0.0.4"), "MASTER_PORT",
            "6000"),
       1, 2, "10.0.0.4", 6000, "OMPI_COMM_WORLD_SIZE=2"},
      {"Azure ML, Intel MPI per node",
       {{"AZ_BATCH_MASTER_NODE", "10.0.0.4:6000"},
        {"PMI_RANK", "1"},
        {"PMI_SIZE", "2"},
        {"MPI_LOCALRANKID", "0"},
        {"MPI_LOCALNRANKS", "1"}},
       1,
       2,
       "10.0.0.4",
       6105,
       "PMI_SIZE=2"},
      {"mpirun --map-by ppr:1:node in a Slurm job",
       {{"SLURM_JOB_ID", "3490098"},
        {"SLURM_JOB_NODELIST", "gpu[08-09]"},
        {"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}},
       1,
       2,
       "gpu08",
       10098,
       "OMPI_COMM_WORLD_SIZE=2"},
      {"TF_CONFIG", {{"TF_CONFIG", tf}}, 1, 3, "c0", 2222, "TF_CONFIG cluster=3"},
      {"Vertex AI", {{"CLUSTER_SPEC", vertex}}, 1, 2, "p0", 2222, "CLUSTER_SPEC cluster=2"},
      {"SageMaker",
       {{"SM_HOSTS", R"(["algo-1", "algo-2"])"}, {"SM_CURRENT_HOST", "algo-2"}},
       1,
       2,
       "algo-1",
       29500,
       "SM_HOSTS=2"},
      {"AWS Batch, a child",
       {{"AWS_BATCH_JOB_NODE_INDEX", "2"},
        {"AWS_BATCH_JOB_NUM_NODES", "4"},
        {"AWS_BATCH_JOB_MAIN_NODE_INDEX", "0"},
        {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", "10.0.1.8"}},
       2,
       4,
       "10.0.1.8",
       29500,
       "AWS_BATCH_JOB_NUM_NODES=4"},
      {"Kubeflow's PyTorchJob, nprocPerNode 4",
       {{"RANK", "1"},
        {"WORLD_SIZE", "8"},
        {"PET_NNODES", "2"},
        {"PET_NODE_RANK", "1"},
        {"PET_NPROC_PER_NODE", "4"},
        {"MASTER_ADDR", "job-master-0"},
        {"MASTER_PORT", "23456"}},
       1,
       2,
       "job-master-0",
       23456,
       "PET_NNODES=2"},
      {"Kubeflow's Trainer",
       {{"PET_NNODES", "2"},
        {"PET_NODE_RANK", "0"},
        {"PET_MASTER_ADDR", "job-node-0"},
        {"PET_MASTER_PORT", "29400"}},
       0,
       2,
       "job-node-0",
       29400,
       "PET_NNODES=2"},
      {"an Indexed Job with the size in its template",
       {{"JOB_COMPLETION_INDEX", "3"},
        {"WORLD_SIZE", "4"},
        {"MASTER_ADDR", "train-0.train"},
        {"MASTER_PORT", "29500"}},
       3,
       4,
       "train-0.train",
       29500,
       "WORLD_SIZE=4"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.name);
    const auto place = find_node({}, row.environment);
    REQUIRE_MESSAGE(place.ok(), place.status().message());
    CHECK(place.value().node_rank == row.rank);
    CHECK(place.value().node_count == row.count);
    CHECK(place.value().host == row.host);
    CHECK(place.value().port == row.port);
    CHECK(place.value().source == row.source);
    // Given ones win.
    const auto given = find_node(options(9, 7, "mine:1"), row.environment);
    REQUIRE(given.ok());
    CHECK(given.value().node_count == 9);
    CHECK(given.value().node_rank == 7);
    CHECK(given.value().host == "mine");
    CHECK(find_node(options(1, {}, ""), row.environment).value().node_count == 1);
    const auto elsewhere = find_node({{}, {}, "mine:1", ""}, row.environment);
    REQUIRE(elsewhere.ok());
    CHECK(elsewhere.value().node_rank == row.rank);
    CHECK(elsewhere.value().host == "mine");
  }
  // One node of such a platform is one node.
  for (const Environment& one :
       {Environment{{"AZUREML_NODE_COUNT", "1"}, {"NODE_RANK", "0"}, {"MASTER_ADDR", "10.0.0.4"}},
        Environment{{"PET_NNODES", "1"}, {"PET_NODE_RANK", "0"}},
        Environment{{"SM_HOSTS", R"(["algo-1"])"}, {"SM_CURRENT_HOST", "algo-1"}}}) {
    const auto place = find_node({}, one);
    REQUIRE_MESSAGE(place.ok(), place.status().message());
    CHECK(place.value().node_count == 1);
  }
}

TEST_CASE("several nodes of which too little is known are refused") {
  const std::string ways =
      "; give --nnodes, --node-rank and --rendezvous HOST:PORT (--nnodes 1: a job of its own on "
      "each node)";
  const struct {
    Environment environment;
    std::string error;
  } rows[] = {
      {{{"NODE_RANK", "1"}, {"MASTER_ADDR", "10.0.0.4"}, {"MASTER_PORT", "6105"}},
       "NODE_RANK=1 and MASTER_ADDR are set, so this is one of several nodes, but nobody says of "
       "how many" +
           ways},
      {{{"AZUREML_NODE_COUNT", "2"}},
       "AZUREML_NODE_COUNT=2, but nobody says which of the nodes this is" + ways},
      {{{"PET_NNODES", "1:4"}, {"PET_NODE_RANK", "1"}},
       "PET_NNODES=\"1:4\" is not the number of nodes" + ways},
      {{{"RANK", "5"},
        {"WORLD_SIZE", "8"},
        {"LOCAL_RANK", "1"},
        {"NODE_RANK", "1"},
        {"AZUREML_NODE_COUNT", "2"},
        {"MASTER_ADDR", "10.0.0.4"},
        {"MASTER_PORT", "6105"}},
       "this is one of 8 dt run that env has started (RANK=5 WORLD_SIZE=8), and each would make a "
       "job of its own; start PROG without dt run there; or start dt run once per node, with "
       "--nnodes, --rendezvous HOST:PORT and --node-rank \"$RANK\"; or give --nnodes 1 for a job "
       "of its own in each process"},
      {{{"TF_CONFIG", R"({"cluster": {"worker": {"1": "w1:2222"}},
                         "task": {"type": "worker", "index": 1}})"}},
       "TF_CONFIG names some tasks of worker only" + ways},
      {{{"JOB_COMPLETION_INDEX", "2"}, {"MASTER_ADDR", "train-0"}, {"MASTER_PORT", "29500"}},
       "JOB_COMPLETION_INDEX=2 is set, but WORLD_SIZE is not" + ways},
      {{{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}},
       "2 nodes (OMPI_COMM_WORLD_SIZE=2), but nobody says where they meet; give --rendezvous "
       "HOST:PORT, the host of node 0 and a free port there, the same on all nodes, or set "
       "MASTER_ADDR and MASTER_PORT (mpirun of Open MPI: -x MASTER_ADDR -x MASTER_PORT)"},
  };
  for (const auto& row : rows) {
    CHECK(error_of({}, row.environment) == row.error);
    CHECK(find_node(options(1, {}, ""), row.environment).ok());
    CHECK(find_node(options(2, 1, "h:1"), row.environment).value().node_rank == 1);
  }
  CHECK(error_of({}, {{"TF_CONFIG", R"({"cluster": {"worker": ["w0:1"], "ps": ["p0:1"]},
                                       "task": {"type": "ps", "index": 0}})"}})
            .find("not_a_worker: TF_CONFIG task.type=\"ps\" takes no rank in dt") == 0);
}

TEST_CASE("a pod knows its index") {
  const Environment pod = {{"JOB_COMPLETION_INDEX", "2"}};
  const auto place = find_node(options(4, {}, "trainer-0.trainer:29400"), pod);
  REQUIRE(place.ok());
  CHECK(place.value().node_rank == 2);
  CHECK(place.value().host == "trainer-0.trainer");
  const Environment azure = {
      {"NODE_RANK", "1"}, {"MASTER_ADDR", "10.0.0.4"}, {"MASTER_PORT", "6105"}};
  const auto node = find_node(options(2, {}, ""), azure);
  REQUIRE(node.ok());
  CHECK(node.value().node_rank == 1);
  CHECK(node.value().host == "10.0.0.4");
  CHECK(node.value().port == 6105);
}

TEST_CASE("what is missing or contradicts is named") {
  CHECK(error_of(options(2, {}, "h:1"), {}) ==
        "--nnodes 2 without a node rank; give --node-rank 0 to 1, another one to each node, or set "
        "NODE_RANK (a Kubernetes Indexed Job sets JOB_COMPLETION_INDEX)");
  CHECK(
      error_of(options(2, 0, ""), {}) ==
      "--nnodes 2, but nobody says where the nodes meet; give --rendezvous HOST:PORT, the host of "
      "node 0 and a free port there, the same on all nodes, or set MASTER_ADDR and MASTER_PORT");
  CHECK(error_of(options(2, 0, "nowhere"), {}) ==
        "--rendezvous: \"nowhere\" is no address; write host:port, or [::1]:port");
  CHECK(error_of(options(3, 0, "h:1,g:1,h:2,h:1"), {}) ==
        "--rendezvous has h:1 twice; give each of node 0, node 1, ... an address of its own");
  CHECK(error_of(options(2, 2, "h:1"), {}) ==
        "--node-rank 2 is out of range: with --nnodes 2 the nodes are 0 to 1");
  CHECK(error_of(options(2, {}, "h:1"), {{"NODE_RANK", "7"}}) ==
        "NODE_RANK 7 is out of range: with --nnodes 2 the nodes are 0 to 1");
  CHECK(error_of(options(2, {}, "h:1"), {{"NODE_RANK", "one"}}) ==
        "not_a_number: NODE_RANK=\"one\"; expected a decimal integer from 0 to 2147483647");
  CHECK(error_of(options(2, 0, ""), {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "70000"}}) ==
        "out_of_range: MASTER_PORT=\"70000\"; expected a decimal integer from 1 to 65535");
  CHECK(error_of({}, with(slurm_step(), "SLURM_STEP_NODELIST", "gpu[08-")) ==
        "bad_nodelist: SLURM_STEP_NODELIST: host list \"gpu[08-\", position 4: [ without ]; set "
        "MASTER_ADDR and MASTER_PORT to the host of rank 0 and a free port there");
  CHECK(error_of(options(1, 1, ""), {}) == "--node-rank 1 is out of range: with one node it is 0");
  CHECK(error_of(options(0, {}, ""), {}) == "--nnodes 0: the number of nodes is 1 to 65536");
  CHECK(error_of({{}, 1, "", ""}, {}) ==
        "--node-rank without --nnodes; give --nnodes N, the number of nodes");
  CHECK(error_of({{}, {}, "h:1", ""}, {}) ==
        "--rendezvous without --nnodes; give --nnodes N, the number of nodes");
  CHECK(error_of(options(3, {}, ""), slurm_step()) ==
        "--nnodes 3, but Slurm step 3490098.2 has 2 nodes; leave --nnodes out");
}
