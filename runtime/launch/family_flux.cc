// SPDX-License-Identifier: Apache-2.0
// Flux. FLUX_JOB_ID is a text, not a number, so no port follows from it; Flux offers PMI-1.
#include "launch/mpi.h"

namespace dt::launch {
namespace {

constexpr NumberRow kRank[] = {rank_row(Field::kRank, "FLUX_TASK_RANK")};
constexpr NumberRow kFluxRows[] = {
    size_row(Field::kWorldSize, "FLUX_JOB_SIZE"),
    rank_row(Field::kLocalRank, "FLUX_TASK_LOCAL_ID"),
    size_row(Field::kNodeCount, "FLUX_JOB_NNODES"),
};

}  // namespace

Result<Facts> read_flux(Variables& variables) {
  Facts facts;
  facts.launcher = "flux";
  DT_TRY(read_numbers(variables, kRank, facts));
  if (facts.at(Field::kRank)) DT_TRY(read_numbers(variables, kFluxRows, facts));
  if (!facts.complete()) return facts;
  if (const std::string* id = variables.get("FLUX_JOB_ID")) {
    facts.job_id = TextFact{*id, "FLUX_JOB_ID"};
  }
  read_exchange(variables, facts);
  return facts;
}

}  // namespace dt::launch
