// SPDX-License-Identifier: Apache-2.0
// TF_CONFIG: TensorFlow jobs of Azure ML, Kubeflow and others. The chief is rank 0; without one
// worker 0 leads.
#include "launch/cluster.h"

namespace dt::launch {

Result<Facts> read_tf_config(Variables& variables) {
  DT_TRY_VALUE(const Cluster cluster, read_cluster(variables, kTfConfig));
  return facts_of_cluster(cluster, kTfConfig);
}

}  // namespace dt::launch
