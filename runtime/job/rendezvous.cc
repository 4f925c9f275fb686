// SPDX-License-Identifier: Apache-2.0
#include "job/job.h"
#include "launch/exchange.h"

namespace dt::job {

/// Where nobody names an address and a port, rank 0 serves on a port of the kernel's choice and
/// tells the others through the launcher.
Status Job::exchange_address(const Config& config, const Wait& wait) {
  const Environment environment = process_environment();
  launch::StoreAddress mine;
  if (place_.rank == 0) {
    DT_TRY_VALUE(place_.master_addr, launch::own_address(place_, environment, wait));
    DT_TRY(serve_store(config));
    mine = {place_.master_addr, server_->port()};
  }
  DT_TRY_VALUE(const launch::StoreAddress store,
               launch::exchange_address(place_, environment, mine, wait));
  place_.master_addr = store.host;
  place_.master_port = store.port;
  return {};
}

}  // namespace dt::job
