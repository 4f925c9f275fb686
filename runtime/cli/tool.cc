// SPDX-License-Identifier: Apache-2.0
#include "cli/tool.h"

#include <unistd.h>

#include "cli/command.h"
#include "job/host_identity.h"
#include "launch/credentials.h"

namespace dt::cli {

Result<Config> tool_config(const char* name) {
  DT_TRY_VALUE(Config config, Config::load(process_environment()));
  warn(name, config.warnings());
  return config;
}

Result<store::ClientOptions> tool_options(const Config& config, const net::HostPort& address) {
  DT_TRY_VALUE(const launch::Credentials credentials,
               launch::find_credentials(config, process_environment(), false));
  store::ClientOptions options;
  options.host = address.host;
  options.port = address.port;
  options.attempt = -1;
  options.host_name = job::host_name();
  options.pid = getpid();
  options.security = credentials.security;
  return options;
}

}  // namespace dt::cli
