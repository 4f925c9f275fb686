// SPDX-License-Identifier: Apache-2.0
// Who advances the collectives of a job, and where.
#include "job/job.h"
#include "job/settings.h"

namespace dt::job {

Status Job::settle_progress(const Config& config) {
  by_caller_ = config.text("host.progress") == "caller";
  auto processors = progress_processors(config);
  if (!processors.ok()) {
    return processors.status().within(format("rank %d (%s)", place_.rank, host_name_.c_str()));
  }
  progress_processors_ = std::move(processors).value();
  return {};
}

}  // namespace dt::job
