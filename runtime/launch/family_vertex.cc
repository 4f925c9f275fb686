// SPDX-License-Identifier: Apache-2.0
// Vertex AI's CLUSTER_SPEC: pool 0 holds the leader, pool 1 the workers; pools 2 and 3 hold servers
// and evaluators.
#include "launch/cluster.h"

namespace dt::launch {

Result<Facts> read_vertex(Variables& variables) {
  DT_TRY_VALUE(const Cluster cluster, read_cluster(variables, kVertexSpec));
  return facts_of_cluster(cluster, kVertexSpec);
}

}  // namespace dt::launch
