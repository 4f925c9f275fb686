// SPDX-License-Identifier: Apache-2.0
// Texts that a user or a launcher gives: the value of a key (the first byte says of which), a host,
// a host and a port, a range of ports, a token, NCCL's file of settings. Properties: no crash, and
// what is accepted reads back as the same from the text that dt would write.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>

#include "backend/nccl/conf.h"
#include "config/keys.h"
#include "config/value.h"
#include "net/address.h"
#include "net/host_port.h"
#include "net/security.h"
#include "transport/tcp/socket.h"

namespace {

void require_value(bool holds) {
  if (!holds) std::abort();
}

void check_key(const dt::config::Key& key, const std::string& text) {
  const auto value = dt::config::parse_value(key, text);
  if (!value) return;
  const auto again = dt::config::parse_value(key, value->text);
  require_value(again && again->text == value->text && again->integer == value->integer);
}

void check_host(const std::string& text) {
  const auto host = dt::net::parse_host(text);
  if (host) {
    require_value(!host->empty() && dt::net::parse_host(*host) == host);
  }
  const auto maybe = dt::net::parse_host_maybe_port(text);
  const auto both = dt::net::parse_host_port(text);
  if (!both.ok()) {
    require_value(!maybe || maybe->port == 0);
    return;
  }
  const dt::net::HostPort& found = both.value();
  require_value(maybe && maybe->host == found.host && maybe->port == found.port);
  const auto again = dt::net::parse_host_port(dt::net::host_port_text(found.host, found.port));
  require_value(again.ok() && again.value().host == found.host && again.value().port == found.port);
}

void check_ports(const std::string& text) {
  const auto range = dt::tcp::parse_port_range(text);
  if (!range.ok()) return;
  require_value(range.value().first <= range.value().last &&
                (range.value().first == 0) == (range.value().last == 0));
}

void check_token(const std::string& text) {
  const auto token = dt::net::Token::from_text(text);
  if (!token.ok()) {
    // No message holds a part of what may be a secret.
    constexpr size_t kPart = 16;
    constexpr char kDigits[] = "0123456789abcdefABCDEF";
    for (size_t at = 0; at + kPart <= text.size(); ++at) {
      const std::string part = text.substr(at, kPart);
      if (part.find_first_not_of(kDigits) != std::string::npos) continue;
      require_value(token.status().message().find(part) == std::string::npos);
    }
    return;
  }
  const std::string written = token.value().text();
  require_value(written.size() >= 2 * dt::net::Token::kMinBytes &&
                written.size() <= 2 * dt::net::Token::kMaxBytes);
  const auto again = dt::net::Token::from_text(written);
  require_value(again.ok() && again.value() == token.value());
}

void check_nccl_file(const std::string& text) {
  const int fd = memfd_create("nccl.conf", MFD_CLOEXEC);
  require_value(fd >= 0 &&
                write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  const auto lines = dt::nccl::read_conf({}, {"", "/proc/self/fd/" + std::to_string(fd)});
  close(fd);
  std::set<std::string> names;
  for (const dt::nccl::ConfLine& line : lines) {
    require_value(line.number >= 1 && names.insert(line.name).second);
    require_value(line.name.find('=') == std::string::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  const auto& table = dt::config::keys();
  check_key(table[data[0] % table.size()], text);
  check_host(text);
  check_ports(text);
  check_token(text);
  check_nccl_file(text);
  return 0;
}
