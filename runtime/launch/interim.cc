// SPDX-License-Identifier: Apache-2.0
#include "launch/discover.h"
namespace dt::launch {
Result<Place> resolve_place(config::Config& c) {
  Place p;
  p.job_id = c.text("job.id");
  p.attempt = static_cast<int32_t>(c.integer("job.attempt"));
  p.launcher = "none";
  if (c.integer("job.rank") < 0) return p;
  p.rank = static_cast<int32_t>(c.integer("job.rank"));
  p.world_size = static_cast<int32_t>(c.integer("job.world_size"));
  p.local_rank = static_cast<int32_t>(c.integer("job.local_rank"));
  p.node_rank = static_cast<int32_t>(c.integer("job.node_rank"));
  p.master_addr = c.text("job.master_addr");
  p.master_port = static_cast<int32_t>(c.integer("job.master_port"));
  p.store_served = c.boolean("job.store_served");
  p.launcher = c.environment().count("DT_LAUNCHER_PID") ? "dt run" : "config";
  return p;
}
}  // namespace dt::launch
