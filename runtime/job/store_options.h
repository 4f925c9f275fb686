// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/status.h"
#include "config/config.h"
#include "launch/discover.h"
#include "store/server.h"

namespace dt::job {

/// What the configuration says about a store, whoever serves it.
store::ServerOptions store_options(const Config& config);

/// All ranks use loopback where all are on this host and nobody asked for another address.
void prefer_loopback(launch::Place* place);

/// Where rank 0 listens if the ranks meet at place.master_addr: at store.bind if that is given,
/// else where the other hosts can come. Empty: all interfaces. May block, like net::resolve_now().
Result<std::string> bind_address(const Config& config, const launch::Place& place);

}  // namespace dt::job
