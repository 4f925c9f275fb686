// SPDX-License-Identifier: Apache-2.0
#include "job/store_options.h"

#include "net/interfaces.h"

namespace dt::job {

store::ServerOptions store_options(const Config& config) {
  store::ServerOptions options;
  options.max_connections = static_cast<size_t>(config.integer("store.max_connections"));
  options.memory_bytes = config.integer("store.memory_mb") << 20;
  options.join_warn_ms = config.integer("watchdog.stall_warn_ms");
  options.torch_compat = config.boolean("store.torch_compat");
  options.heartbeat_ms = config.integer("heartbeat.interval_ms");
  options.heartbeat_timeout_ms = config.integer("heartbeat.timeout_ms");
  return options;
}

void prefer_loopback(launch::Place* place) {
  if (place->node_count == 1 && place->address_by_convention) place->master_addr = "127.0.0.1";
}

Result<std::string> bind_address(const Config& config, const launch::Place& place) {
  const std::string& given = config.text("store.bind");
  if (!given.empty()) return given;
  if (!place.may_span_hosts()) return place.master_addr;
  return net::bind_host(place.master_addr);
}

}  // namespace dt::job
