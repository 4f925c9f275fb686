// SPDX-License-Identifier: Apache-2.0
// Vertex AI's CLUSTER_SPEC: pool 0 holds the leader, pool 1 the workers; pools 2 and 3 hold servers
// and evaluators.
#include "launch/cluster.h"

namespace dt::launch {
namespace {

/// Other software has a CLUSTER_SPEC of its own.
bool is_of_vertex(const std::string& text) { return text.find("workerpool") != std::string::npos; }

}  // namespace

Result<Facts> read_vertex(Variables& variables) {
  constexpr WorkerRole kWorkers[] = {{"workerpool0", nullptr}, {"workerpool1", nullptr}};
  Facts facts;
  facts.launcher = "vertex";
  if (const std::string* text = variables.get("CLUSTER_SPEC")) {
    if (!is_of_vertex(*text)) {
      variables.warn("other_cluster_spec: " + variables.shown("CLUSTER_SPEC") +
                     " names no workerpool, so it is not Vertex AI's and does not count");
      return facts;
    }
    DT_TRY_VALUE(const Cluster cluster, parse_cluster(variables.shown("CLUSTER_SPEC"), *text));
    DT_TRY_VALUE(facts, facts_of_cluster(cluster, "CLUSTER_SPEC", kWorkers));
  }
  facts.launcher = "vertex";
  return facts;
}

}  // namespace dt::launch
