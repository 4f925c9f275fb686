// SPDX-License-Identifier: Apache-2.0
#include "job/store_options.h"

namespace dt::job {

store::ServerOptions store_options(const Config& config) {
  store::ServerOptions options;
  options.max_connections = static_cast<size_t>(config.integer("store.max_connections"));
  options.memory_bytes = config.integer("store.memory_mb") << 20;
  options.torch_compat = config.boolean("store.torch_compat");
  options.heartbeat_ms = config.integer("heartbeat.interval_ms");
  options.heartbeat_timeout_ms = config.integer("heartbeat.timeout_ms");
  return options;
}

}  // namespace dt::job
