// SPDX-License-Identifier: Apache-2.0
// Vertex AI's CLUSTER_SPEC: pool 0 holds the leader, pool 1 the workers; pools 2 and 3 hold servers
// and evaluators.
#include "launch/cluster.h"

namespace dt::launch {

Result<Facts> read_vertex(Variables& variables) {
  constexpr WorkerRole kWorkers[] = {{"workerpool0", nullptr}, {"workerpool1", nullptr}};
  Facts facts;
  if (const std::string* text = variables.get("CLUSTER_SPEC")) {
    DT_TRY_VALUE(const Cluster cluster, parse_cluster(variables.shown("CLUSTER_SPEC"), *text));
    DT_TRY_VALUE(facts, facts_of_cluster(cluster, "CLUSTER_SPEC", kWorkers));
  }
  facts.launcher = "vertex";
  return facts;
}

}  // namespace dt::launch
