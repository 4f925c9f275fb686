// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/status.h"
#include "config/config.h"
#include "net/host_port.h"
#include "store/client.h"

namespace dt::cli {

/// Loads the settings of a command that joins no job, and prints their warnings as warn() does.
Result<Config> tool_config(const char* name);
/// How such a command connects to a store: with the token that is found here.
Result<store::ClientOptions> tool_options(const Config& config, const net::HostPort& address);

}  // namespace dt::cli
