// SPDX-License-Identifier: Apache-2.0
#include "metrics/request.h"

#include <algorithm>

#include "base/status.h"

namespace dt::metrics {
namespace {

constexpr int kOk = 200;
constexpr int kBadRequest = 400;
constexpr int kNotFound = 404;
constexpr int kMethodNotAllowed = 405;
constexpr int kTooLarge = 431;
constexpr int kVersionNotSupported = 505;
constexpr std::string_view kPath = "/metrics";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return c >= 'A' && c <= 'Z'; }
/// Neither a space, a control character nor above ASCII.
bool is_visible(char c) { return c > ' ' && c < 0x7f; }

bool is_version(std::string_view text) {
  return text.size() == 8 && text.substr(0, 5) == "HTTP/" && is_digit(text[5]) && text[6] == '.' &&
         is_digit(text[7]);
}

/// `line`: without its end. RFC 9112, section 3: "METHOD TARGET VERSION".
int judge(std::string_view line) {
  const size_t first = line.find(' ');
  const size_t second = first == line.npos ? first : line.find(' ', first + 1);
  if (second == line.npos) return kBadRequest;
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, second - first - 1);
  const std::string_view version = line.substr(second + 1);
  const bool sound = !method.empty() && std::all_of(method.begin(), method.end(), is_letter) &&
                     !target.empty() && std::all_of(target.begin(), target.end(), is_visible) &&
                     is_version(version);
  if (!sound) return kBadRequest;
  if (version[5] != '1') return kVersionNotSupported;
  if (method != "GET") return kMethodNotAllowed;
  return target.substr(0, target.find('?')) == kPath ? kOk : kNotFound;
}

const char* reason_of(int status) {
  switch (status) {
    case kOk: return "OK";
    case kNotFound: return "Not Found";
    case kMethodNotAllowed: return "Method Not Allowed";
    case kTooLarge: return "Request Header Fields Too Large";
    case kVersionNotSupported: return "HTTP Version Not Supported";
    default: return "Bad Request";
  }
}

}  // namespace

std::optional<int> RequestReader::feed(std::string_view bytes) {
  if (status_.has_value()) return status_;
  text_ += bytes.substr(0, kMaxBytes - text_.size());
  const size_t end = text_.find('\n');
  if (end != text_.npos) {
    std::string_view line(text_.data(), end);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    const int judged = judge(line);
    const bool whole =
        text_.find("\n\r\n", end) != text_.npos || text_.find("\n\n", end) != text_.npos;
    if (judged != kOk || whole) status_ = judged;
  }
  if (!status_.has_value() && text_.size() == kMaxBytes) status_ = kTooLarge;
  return status_;
}

std::string response(int status, std::string body) {
  if (status != kOk) body = format("%d: only GET %s is answered\n", status, kPath.data());
  return format(
             "HTTP/1.1 %d %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
             "Content-Length: %zu\r\n%sConnection: close\r\n\r\n",
             status, reason_of(status), body.size(),
             status == kMethodNotAllowed ? "Allow: GET\r\n" : "") +
         body;
}

}  // namespace dt::metrics
