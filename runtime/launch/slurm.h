// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "launch/facts.h"

namespace dt::launch {

/// The numbers of a step that srun started, and its name as job id: "812.0". No rank and no size in
/// a batch script or a shell of salloc.
Result<Facts> read_slurm_step(Variables& variables);

/// The first host of the step, and a port that follows from the number of the job, unless
/// MASTER_ADDR and MASTER_PORT are both there. Error: bad_nodelist.
Status read_slurm_step_host(Variables& variables, Facts& facts);

}  // namespace dt::launch
