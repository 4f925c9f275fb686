// SPDX-License-Identifier: Apache-2.0
// TF_CONFIG: TensorFlow jobs of Azure ML, Kubeflow and others. The chief is rank 0; without one
// worker 0 leads.
#include "launch/cluster.h"

namespace dt::launch {

Result<Facts> read_tf_config(Variables& variables) {
  constexpr WorkerRole kWorkers[] = {{"chief", "master"}, {"worker", nullptr}};
  Facts facts;
  if (const std::string* text = variables.get("TF_CONFIG")) {
    DT_TRY_VALUE(const Cluster cluster, parse_cluster(variables.shown("TF_CONFIG"), *text));
    DT_TRY_VALUE(facts, facts_of_cluster(cluster, "TF_CONFIG", kWorkers));
  }
  facts.launcher = "tf_config";
  return facts;
}

}  // namespace dt::launch
