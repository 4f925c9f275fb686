// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "base/status.h"
#include "base/wait.h"
#include "cli/doctor/report.h"

namespace dt::cli::doctor {

/// Brings the reports of all ranks to rank 0 through the job's store, which rank 0 serves when the
/// launcher does not; the ranks find it as those of a job do. On rank 0: all reports by rank, empty
/// ones of those that did not come in time. On others: nothing.
Result<std::vector<Report>> gather(const Machine& machine, const Report& own, const Wait& wait);

}  // namespace dt::cli::doctor
