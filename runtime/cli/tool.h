// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/status.h"
#include "net/host_port.h"
#include "store/client.h"

namespace dt::cli {

/// How a command that is no rank of any job connects to a store: with the token that is found here.
Result<store::ClientOptions> tool_options(const net::HostPort& address);

}  // namespace dt::cli
