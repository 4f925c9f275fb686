// SPDX-License-Identifier: Apache-2.0
// RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: torchrun, and everything that speaks its names
// (Azure ML's PyTorch jobs, Ray Train, DeepSpeed, Kubeflow's PyTorchJob, shell scripts).
#include <cstdint>

#include "launch/facts.h"

namespace dt::launch {
namespace {

constexpr NumberRow kTorchRows[] = {
    {Field::kRank, "RANK", 0, INT32_MAX - 1, kNoUnset},
    {Field::kWorldSize, "WORLD_SIZE", 1, INT32_MAX, kNoUnset},
};
constexpr NumberRow kMoreRows[] = {
    // accelerate and DeepSpeed write -1 for "unset"
    {Field::kLocalRank, "LOCAL_RANK", 0, INT32_MAX - 1, -1},
    {Field::kLocalSize, "LOCAL_WORLD_SIZE", 1, INT32_MAX, kNoUnset},
    {Field::kLocalSize, "LOCAL_SIZE", 1, INT32_MAX, kNoUnset},  // DeepSpeed
    {Field::kNodeRank, "GROUP_RANK", 0, INT32_MAX - 1, kNoUnset},
    {Field::kNodeRank, "NODE_RANK", 0, INT32_MAX - 1, kNoUnset},   // Azure ML, Ray Train
    {Field::kNodeRank, "CROSS_RANK", 0, INT32_MAX - 1, kNoUnset},  // DeepSpeed
    {Field::kNodeCount, "GROUP_WORLD_SIZE", 1, INT32_MAX, kNoUnset},
    {Field::kNodeCount, "CROSS_SIZE", 1, INT32_MAX, kNoUnset},
    {Field::kNodeCount, "AZUREML_NODE_COUNT", 1, INT32_MAX, kNoUnset},
    {Field::kAttempt, "TORCHELASTIC_RESTART_COUNT", 0, INT32_MAX, kNoUnset},
};

/// The local size of a block layout, only where rank, node rank and local rank prove that it is
/// one.
void derive_local_size(Facts& facts) {
  const auto& nodes = facts.at(Field::kNodeCount);
  const auto& node = facts.at(Field::kNodeRank);
  const auto& local = facts.at(Field::kLocalRank);
  if (facts.at(Field::kLocalSize) || !nodes || !node || !local) return;
  const int32_t world_size = facts.at(Field::kWorldSize)->value;
  if (world_size % nodes->value != 0) return;
  const int32_t local_size = world_size / nodes->value;
  const int64_t rank = int64_t{node->value} * local_size + local->value;
  if (rank != facts.at(Field::kRank)->value) return;
  facts.at(Field::kLocalSize) = NumberFact{local_size, "WORLD_SIZE / " + nodes->variable};
}

/// Kubeflow's PyTorchJob describes a pod: with several processes per pod RANK counts pods while
/// WORLD_SIZE counts processes, and only torchrun inside the pod makes sense of that.
Status read_kubeflow(Variables& variables, Facts& facts) {
  if (facts.at(Field::kLocalRank) || facts.at(Field::kNodeCount)) return {};
  const auto pods = variables.integer("PET_NNODES", 1, INT32_MAX);
  const auto pod = variables.integer("PET_NODE_RANK", 0, INT32_MAX - 1);
  const auto processes = variables.integer("PET_NPROC_PER_NODE", 1, INT32_MAX);
  // "1:4" and "auto" are legal there and say nothing here.
  if (!pods.ok() || !pods.value() || !pod.ok() || !pod.value()) return {};
  if (processes.ok() && processes.value().value_or(1) > 1 &&
      facts.at(Field::kRank)->value == *pod.value()) {
    return launch_error(
        "conflict",
        format(
            "%s counts processes but %s counts pods, and PET_NPROC_PER_NODE=%d processes of "
            "this pod (PET_NODE_RANK=%d) were not started; start the program by torchrun or dt run",
            facts.at(Field::kWorldSize)->text().c_str(), facts.at(Field::kRank)->text().c_str(),
            *processes.value(), *pod.value()));
  }
  if (*pods.value() != facts.at(Field::kWorldSize)->value) return {};
  facts.at(Field::kNodeCount) = NumberFact{*pods.value(), "PET_NNODES"};
  facts.at(Field::kNodeRank) = NumberFact{*pod.value(), "PET_NODE_RANK"};
  facts.at(Field::kLocalRank) = NumberFact{0, "PET_NNODES"};
  facts.at(Field::kLocalSize) = NumberFact{1, "PET_NNODES"};
  return {};
}

}  // namespace

Result<Facts> read_torch(Variables& variables) {
  Facts facts;
  DT_TRY(read_numbers(variables, kTorchRows, facts));
  Status rest = read_numbers(variables, kMoreRows, facts);
  if (rest.ok()) rest = read_user_rendezvous(variables, facts);
  // Such names are common: in a process that nobody started as a rank they may be anybody's, and
  // junk in them is no error.
  const bool node = variables.get("NODE_RANK") != nullptr || variables.get("GROUP_RANK") != nullptr;
  const bool launch = facts.at(Field::kRank) || facts.at(Field::kWorldSize) ||
                      (node && variables.get("MASTER_ADDR") != nullptr);
  if (launch) DT_TRY(rest);
  const std::string* run_id = variables.get("TORCHELASTIC_RUN_ID");
  facts.launcher = run_id != nullptr ? "torchrun" : "env";
  facts.nested = run_id != nullptr;
  // "none" is torchrun's default and identifies nothing.
  if (run_id != nullptr && *run_id != "none") {
    facts.job_id = TextFact{*run_id, "TORCHELASTIC_RUN_ID"};
  }
  if (facts.complete()) {
    DT_TRY(read_kubeflow(variables, facts));
    derive_local_size(facts);
  } else if (facts.at(Field::kNodeRank) && facts.master_addr) {
    facts.intention = facts.at(Field::kNodeRank)->text() + " and MASTER_ADDR are set";
  }
  return facts;
}

}  // namespace dt::launch
