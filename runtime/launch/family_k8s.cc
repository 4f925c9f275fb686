// SPDX-License-Identifier: Apache-2.0
// A Kubernetes Job with completion mode Indexed: the index of the pod, and what its template adds.
// Alone the index means independent shards.
#include "launch/facts.h"

namespace dt::launch {
namespace {

constexpr NumberRow kK8sRows[] = {
    rank_row(Field::kRank, "JOB_COMPLETION_INDEX"),
    size_row(Field::kWorldSize, "WORLD_SIZE"),
};

}  // namespace

Result<Facts> read_k8s_indexed(Variables& variables) {
  Facts facts;
  facts.launcher = "k8s-indexed";
  const bool meant =
      variables.get("WORLD_SIZE") != nullptr || variables.get("MASTER_ADDR") != nullptr;
  if (!meant || variables.get("JOB_COMPLETION_INDEX") == nullptr) return facts;
  DT_TRY(read_numbers(variables, kK8sRows, facts));
  if (facts.complete()) set_one_per_node(facts);
  return facts;
}

void warn_k8s_alone(Variables& variables) {
  const std::string* index = variables.get("JOB_COMPLETION_INDEX");
  if (index == nullptr) return;
  variables.warn(
      "k8s_index_without_world_size: JOB_COMPLETION_INDEX is set, but not WORLD_SIZE: running as 1 "
      "of 1. For one job of all pods set WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the template");
}

}  // namespace dt::launch
