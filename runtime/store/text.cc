// SPDX-License-Identifier: Apache-2.0
#include "store/text.h"

#include <algorithm>
#include <cerrno>

namespace dt::store {
namespace {

constexpr size_t kMaxQuotedBytes = 80;
constexpr size_t kMaxItems = 16;

}  // namespace

std::string seconds_text(int64_t ms) { return format("%.1f s", static_cast<double>(ms) / 1000.0); }

std::string quoted(std::string_view bytes) {
  std::string text = "\"";
  for (const char c : bytes.substr(0, kMaxQuotedBytes)) {
    const bool printable = static_cast<unsigned char>(c) >= 0x20 && c != 0x7f && c != '"';
    text += printable ? std::string(1, c) : format("\\x%02x", static_cast<unsigned char>(c));
  }
  return text + (bytes.size() > kMaxQuotedBytes ? "...\"" : "\"");
}

std::string key_list(const std::vector<std::string>& keys) {
  return keys.size() == 1 ? "key " + quoted(keys[0]) : format("%zu keys", keys.size());
}

std::string rank_list(const std::vector<int32_t>& ranks) {
  std::vector<std::string> runs;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - begin >= 3) {
      runs.push_back(format("%d-%d", ranks[begin], ranks[end - 1]));
    } else {
      for (size_t i = begin; i < end; ++i) runs.push_back(std::to_string(ranks[i]));
    }
    begin = end;
  }
  return item_list(runs);
}

std::string ranks_text(const std::vector<int32_t>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + rank_list(ranks);
}

std::string item_list(const std::vector<std::string>& items) {
  std::string text;
  const size_t shown = std::min(items.size(), kMaxItems);
  for (size_t i = 0; i < shown; ++i) text += (i == 0 ? "" : ", ") + items[i];
  if (shown < items.size()) text += format(" and %zu more", items.size() - shown);
  return text;
}

std::string connection_problem(int error) {
  switch (error) {
    case 0:
      return "the connection was closed before the hello was answered: something listens there, "
             "but the store is not ready or it is no store";
    case ECONNREFUSED: return "connection refused: the host is up, nothing listens there yet";
    case ECONNRESET:
    case EPIPE: return "connection reset: something listens there, but it ended or is no store";
    case ETIMEDOUT: return "no answer: the host is down, or a firewall drops the packets";
    case EHOSTUNREACH: return "no route to host: the host is down or not in this network";
    case ENETUNREACH:
      return "network unreachable: this host has no route there; check the address and the "
             "interface";
    case EADDRNOTAVAIL: return "no free local port or no suitable local address";
    default: return errno_text(error);
  }
}

bool is_final_refusal(Code code) {
  return code == Code::kConfig || code == Code::kVersion || code == Code::kInvalidArgument ||
         code == Code::kUnsupported;
}

}  // namespace dt::store
