// SPDX-License-Identifier: Apache-2.0
#include "cli/host_port.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>

namespace dt::cli {

Result<HostPort> parse_host_port(const std::string& text) {
  const size_t colon = text.rfind(':');
  const Status bad(Code::kInvalidArgument,
                   "\"" + text + "\" is no address; write host:port, or [::1]:port");
  if (colon == std::string::npos || colon == 0) return bad;
  char* end = nullptr;
  const long port = strtol(text.c_str() + colon + 1, &end, 10);
  if (end == text.c_str() + colon + 1 || *end != '\0' || port < 1 || port > 65535) return bad;
  std::string host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return HostPort{host, static_cast<uint16_t>(port)};
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = "";
  gethostname(name, sizeof name - 1);
  return name[0] != '\0' ? name : "localhost";
}

}  // namespace dt::cli
