// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "base/status.h"
#include "config/config.h"
namespace dt::launch {
struct Place {
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t local_rank = -1;
  int32_t local_size = -1;
  int32_t node_rank = -1;
  int32_t node_count = -1;
  std::string master_addr;
  int32_t master_port = 0;
  bool port_taken = false;
  bool store_served = false;
  std::string job_id;
  int32_t attempt = 0;
  std::string launcher;
  std::vector<std::string> warnings;
};
Result<Place> resolve_place(config::Config& config);
}  // namespace dt::launch
