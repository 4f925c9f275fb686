// SPDX-License-Identifier: Apache-2.0
// Who advances the collectives of a job, and where.
#include "base/processors.h"
#include "job/job.h"

namespace dt::job {

Status Job::settle_progress(const Config& config) {
  by_caller_ = config.text("host.progress") == "caller";
  auto processors = parse_processors(config.text("host.progress_cpus"));
  Status status = processors.status();
  if (status.ok()) status = check_processors(processors.value());
  if (!status.ok()) {
    const std::string& where = config.source_of("host.progress_cpus").where;
    return Status(status.code(), format("rank %d (%s): host.progress_cpus%s%s: %s", place_.rank,
                                        host_name_.c_str(), where.empty() ? "" : " of ",
                                        where.c_str(), status.message().c_str()));
  }
  progress_processors_ = std::move(processors).value();
  return {};
}

}  // namespace dt::job
