// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace dt::cli {

struct HostPort {
  std::string host;
  uint16_t port = 0;
};

/// "host:port" or "[::1]:port". INVALID_ARGUMENT, the text begins with the quoted address.
Result<HostPort> parse_host_port(const std::string& text);

/// This machine's name, for texts.
std::string host_name();

}  // namespace dt::cli
