// SPDX-License-Identifier: Apache-2.0
// horovodrun without MPI. HOROVOD_CROSS_RANK counts the hosts that have this local rank, which is
// the node rank only where all hosts have equally many; HOROVOD_GLOO_RENDEZVOUS_ADDR is
// horovodrun's own HTTP server. Neither is read.
#include "launch/facts.h"

namespace dt::launch {
namespace {

constexpr NumberRow kHorovodRows[] = {
    rank_row(Field::kRank, "HOROVOD_RANK"),
    size_row(Field::kWorldSize, "HOROVOD_SIZE"),
    rank_row(Field::kLocalRank, "HOROVOD_LOCAL_RANK"),
    size_row(Field::kLocalSize, "HOROVOD_LOCAL_SIZE"),
};

}  // namespace

Result<Facts> read_horovod(Variables& variables) {
  Facts facts;
  facts.launcher = "horovod";
  facts.nested = true;
  DT_TRY(read_numbers(variables, kHorovodRows, facts));
  return facts;
}

}  // namespace dt::launch
