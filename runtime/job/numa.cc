// SPDX-License-Identifier: Apache-2.0
// On which NUMA node of its host a rank lives.
#include <utility>

#include "job/job.h"
#include "job/settings.h"

namespace dt::job {

Status Job::settle_numa(const Config& config) {
  auto wish = numa_wish(config);
  if (!wish.ok()) {
    return wish.status().within(format("rank %d (%s)", place_.rank, host_name_.c_str()));
  }
  numa_ = std::move(wish).value();
  return {};
}

/// The error is that of all ranks of the host.
Result<NumaHome> Job::find_home(const store::Verdict& verdict) const {
  const auto told = static_cast<int32_t>(numa_.nodes.size());
  if (told > 0 && told < verdict.local_size) {
    return Status(
        Code::kConfig,
        format("rank %d (%s): host.numa has %d of the nodes of the %d ranks on this host; name one "
               "for each, or set it to auto",
               place_.rank, host_name_.c_str(), told, verdict.local_size));
  }
  return find_numa_home(numa_, verdict.local_rank);
}

}  // namespace dt::job
