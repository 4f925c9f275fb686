// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace dt::net {

struct HostPort {
  std::string host;   ///< without brackets
  uint16_t port = 0;  ///< 0: none given
};

/// A host name, an IPv4 or an IPv6 address, "fe80::1%eth0" too; brackets around an IPv6 address are
/// removed. Absent: none of them. Looks nothing up.
std::optional<std::string> parse_host(const std::string& text);

/// "host:port", "[::1]:port" or a host alone. Absent: none of them, or an IPv6 address without
/// brackets, which could end in a port or not.
std::optional<HostPort> parse_host_maybe_port(const std::string& text);

/// "host:port" or "[::1]:port". CONFIG, the text begins with the quoted address.
Result<HostPort> parse_host_port(const std::string& text);

}  // namespace dt::net
