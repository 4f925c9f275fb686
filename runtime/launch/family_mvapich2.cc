// SPDX-License-Identifier: Apache-2.0
// MVAPICH2's mpirun_rsh; newer releases write MVP_ for MV2_.
#include "launch/mpi.h"

namespace dt::launch {
namespace {

constexpr NumberRow kMvapich2Rows[] = {
    rank_row(Field::kRank, "MV2_COMM_WORLD_RANK"),
    rank_row(Field::kRank, "MVP_COMM_WORLD_RANK"),
    size_row(Field::kWorldSize, "MV2_COMM_WORLD_SIZE"),
    size_row(Field::kWorldSize, "MVP_COMM_WORLD_SIZE"),
    rank_row(Field::kLocalRank, "MV2_COMM_WORLD_LOCAL_RANK"),
    rank_row(Field::kLocalRank, "MVP_COMM_WORLD_LOCAL_RANK"),
    size_row(Field::kLocalSize, "MV2_COMM_WORLD_LOCAL_SIZE"),
    size_row(Field::kLocalSize, "MVP_COMM_WORLD_LOCAL_SIZE"),
    size_row(Field::kNodeCount, "MPISPAWN_NNODES"),
};

}  // namespace

Result<Facts> read_mvapich2(Variables& variables) {
  Facts facts;
  facts.launcher = "mvapich2";
  DT_TRY(read_numbers(variables, kMvapich2Rows, facts));
  DT_TRY(read_mpi_surroundings(variables, facts));
  return facts;
}

}  // namespace dt::launch
