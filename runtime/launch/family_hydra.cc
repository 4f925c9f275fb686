// SPDX-License-Identifier: Apache-2.0
// PMI_RANK and PMI_SIZE: Hydra (MPICH, Intel MPI), and whoever offers PMI-1 (srun --mpi=pmi2,
// Flux). With mpiexec -pmi-port the size comes over the wire only.
#include "launch/mpi.h"

namespace dt::launch {
namespace {

constexpr NumberRow kHydraRows[] = {
    rank_row(Field::kRank, "PMI_RANK"),
    size_row(Field::kWorldSize, "PMI_SIZE"),
};
constexpr NumberRow kIdRows[] = {rank_row(Field::kRank, "PMI_ID")};
constexpr NumberRow kLocalRows[] = {
    rank_row(Field::kLocalRank, "MPI_LOCALRANKID"),
    size_row(Field::kLocalSize, "MPI_LOCALNRANKS"),
};

}  // namespace

Result<Facts> read_hydra(Variables& variables) {
  Facts facts;
  facts.launcher = "hydra";
  DT_TRY(read_numbers(variables, kHydraRows, facts));
  if (!facts.at(Field::kRank) && variables.get("PMI_PORT") != nullptr) {
    DT_TRY(read_numbers(variables, kIdRows, facts));
  }
  if (!facts.complete()) return facts;
  DT_TRY(read_numbers(variables, kLocalRows, facts));
  facts.bare = !facts.at(Field::kLocalRank);
  // Without them another launcher offers PMI and knows more about its nodes.
  if (facts.bare) {
    read_exchange(variables, facts);
    return facts;
  }
  facts.exchange = Exchange::kPmi;
  DT_TRY(read_mpi_surroundings(variables, facts));
  return facts;
}

}  // namespace dt::launch
