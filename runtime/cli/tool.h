// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/status.h"
#include "config/config.h"
#include "net/host_port.h"
#include "store/client.h"

namespace dt::cli {

/// The settings of a command that is no rank of any job. Prints their warnings, as warn(name, ...).
Result<Config> tool_config(const char* name);
/// How such a command connects to a store: with the token that is found here.
Result<store::ClientOptions> tool_options(const Config& config, const net::HostPort& address);

}  // namespace dt::cli
