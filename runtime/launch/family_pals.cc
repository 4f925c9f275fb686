// SPDX-License-Identifier: Apache-2.0
// Cray's PALS, often below PBS. Some versions leave PALS_SIZE to PMI_SIZE.
#include "launch/mpi.h"

namespace dt::launch {
namespace {

constexpr NumberRow kPalsRank[] = {rank_row(Field::kRank, "PALS_RANKID")};
constexpr NumberRow kPalsRows[] = {
    size_row(Field::kWorldSize, "PALS_SIZE"),         size_row(Field::kWorldSize, "PMI_SIZE"),
    rank_row(Field::kLocalRank, "PALS_LOCAL_RANKID"), rank_row(Field::kLocalRank, "PMI_LOCAL_RANK"),
    size_row(Field::kLocalSize, "PALS_LOCAL_SIZE"),   size_row(Field::kLocalSize, "PMI_LOCAL_SIZE"),
    rank_row(Field::kNodeRank, "PALS_NODEID"),
};

}  // namespace

Result<Facts> read_pals(Variables& variables) {
  Facts facts;
  facts.launcher = "pals";
  DT_TRY(read_numbers(variables, kPalsRank, facts));
  if (facts.at(Field::kRank)) DT_TRY(read_numbers(variables, kPalsRows, facts));
  if (facts.complete()) read_exchange(variables, facts);
  return facts;
}

}  // namespace dt::launch
