// SPDX-License-Identifier: Apache-2.0
#include "cli/host_port.h"

#include <unistd.h>

#include <charconv>
#include <climits>

namespace dt::cli {

Result<HostPort> parse_host_port(const std::string& text) {
  const size_t colon = text.rfind(':');
  const Status bad(Code::kInvalidArgument,
                   "\"" + text + "\" is no address; write host:port, or [::1]:port");
  if (colon == std::string::npos || colon == 0) return bad;
  uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, port);
  if (error != std::errc() || rest != end || port == 0) return bad;
  std::string host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host.empty()) return bad;
  return HostPort{host, port};
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = "";
  gethostname(name, sizeof name - 1);
  return name[0] != '\0' ? name : "localhost";
}

}  // namespace dt::cli
