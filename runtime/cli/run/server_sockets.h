// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "base/wait.h"
#include "cli/run/fd.h"
#include "cli/run/node_place.h"

namespace dt::cli {

/// A socket that listens for one parameter server. The agent keeps it for the whole life of the
/// job: connections that come while the server is started again wait.
struct ServerSocket {
  Fd fd;                ///< above the three standard descriptors
  std::string address;  ///< "host:port" as workers reach it
};

/// Where parameter servers of this host listen.
struct ServerHost {
  std::string bind;   ///< empty: all interfaces
  std::string shown;  ///< as workers reach it
};

/// Loopback with one node. Else `interface` says it, as network.interface; empty: node 0 listens at
/// its rendezvous address, the others at the address from which they reach that.
Result<ServerHost> find_server_host(const NodePlace& node, const std::string& interface,
                                    const Wait& wait);

/// On ports that the kernel chooses.
Result<std::vector<ServerSocket>> listen_for_servers(int count, const ServerHost& host);

}  // namespace dt::cli
