// SPDX-License-Identifier: Apache-2.0
#include "net/host_port.h"

#include <arpa/inet.h>

#include <algorithm>

#include "base/number.h"

namespace dt::net {
namespace {

constexpr size_t kLongestHost = 255;  // RFC 1035

bool is_host_name(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  });
}

/// Also with the name of an interface: "fe80::1%eth0".
bool is_ipv6(const std::string& text) {
  if (text.find('\0') != std::string::npos) return false;  // inet_pton() reads up to there
  const size_t zone = text.find('%');
  if (zone != std::string::npos && !is_host_name(text.substr(zone + 1))) return false;
  in6_addr address{};
  return inet_pton(AF_INET6, text.substr(0, zone).c_str(), &address) == 1;
}

}  // namespace

std::optional<std::string> parse_host(const std::string& text) {
  std::string host = text;
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const bool good = is_ipv6(host) || (!bracketed && is_host_name(host));
  if (!good || host.size() > kLongestHost) return std::nullopt;
  return host;
}

std::optional<HostPort> parse_host_maybe_port(const std::string& text) {
  HostPort result;
  std::string host = text;
  const size_t colon = text.rfind(':');
  if (colon != std::string::npos && text.back() != ']') {
    host = text.substr(0, colon);
    if (host.find(':') != std::string::npos && host.back() != ']') return std::nullopt;
    const auto port = parse_number<uint16_t>(std::string_view(text).substr(colon + 1));
    if (!port || *port == 0) return std::nullopt;
    result.port = *port;
  }
  const auto parsed = parse_host(host);
  if (!parsed) return std::nullopt;
  result.host = *parsed;
  return result;
}

Result<HostPort> parse_host_port(const std::string& text) {
  auto parsed = parse_host_maybe_port(text);
  if (parsed && parsed->port != 0) return *std::move(parsed);
  return Status(Code::kConfig, "\"" + text + "\" is no address; write host:port, or [::1]:port");
}

}  // namespace dt::net
