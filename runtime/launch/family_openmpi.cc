// SPDX-License-Identifier: Apache-2.0
// mpirun of Open MPI 4 and 5. OMPI_COMM_WORLD_NODE_RANK is the rank on this node over all jobs, not
// the rank of the node; OMPI_APP_CTX_NUM_PROCS is a list and OMPI_UNIVERSE_SIZE counts slots. None
// of them is read.
#include "config/value.h"
#include "launch/mpi.h"

namespace dt::launch {
namespace {

constexpr NumberRow kOpenmpiRows[] = {
    rank_row(Field::kRank, "OMPI_COMM_WORLD_RANK"),
    size_row(Field::kWorldSize, "OMPI_COMM_WORLD_SIZE"),
    rank_row(Field::kLocalRank, "OMPI_COMM_WORLD_LOCAL_RANK"),
    size_row(Field::kLocalSize, "OMPI_COMM_WORLD_LOCAL_SIZE"),
    size_row(Field::kNodeCount, "OMPI_MCA_orte_num_nodes"),  // 4.x: hosts that hold ranks
};

}  // namespace

Result<Facts> read_openmpi(Variables& variables) {
  Facts facts;
  facts.launcher = "openmpi";
  DT_TRY(read_numbers(variables, kOpenmpiRows, facts));
  if (!facts.complete()) return facts;
  if (const std::string* id = variables.get("PMIX_NAMESPACE")) {
    facts.job_id = TextFact{*id, "PMIX_NAMESPACE"};
  }
  facts.exchange = Exchange::kPmix;
  DT_TRY(read_mpi_surroundings(variables, facts));
  return facts;
}

/// prterun of PRRTE starts programs that are no MPI programs, too, and does not say how many.
void warn_openmpi_alone(Variables& variables) {
  const std::string* rank = variables.get("PMIX_RANK");
  if (rank == nullptr || !offers_pmix(variables)) return;
  variables.warn(
      format("pmix_without_size: this process was started with PMIX_RANK=%s, but no variable says "
             "how many there are: running as 1 of 1. Start it with mpirun of Open MPI, or set RANK "
             "and WORLD_SIZE",
             config::quoted(*rank).c_str()));
}

}  // namespace dt::launch
