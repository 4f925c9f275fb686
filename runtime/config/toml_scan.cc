// SPDX-License-Identifier: Apache-2.0
#include "config/toml_scan.h"

namespace dt::config {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }
bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::optional<TextPosition> scan() {
    if (text_.substr(0, 3) == "\xef\xbb\xbf") at_ = 3;  // a byte order mark is allowed in front
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (!is_ascii(c)) return position();
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (c == '"' || c == '\'') {
        if (!string(c)) return position();
      } else {
        ++at_;
      }
    }
    return std::nullopt;
  }

 private:
  /// Passes the string that opens here. False: at_ is at a character that must not be there.
  bool string(char quote) {
    const char three[] = {quote, quote, quote};
    const std::string_view fence(three, 3);
    const bool multi_line = text_.substr(at_, 3) == fence;
    at_ += multi_line ? 3 : 1;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\\' && quote == '"') {
        if (!escape(multi_line)) return false;
      } else if (!multi_line && (c == quote || c == '\n')) {
        ++at_;
        return true;
      } else if (multi_line && text_.substr(at_, 3) == fence) {
        at_ += 3;
        for (int extra = 0; extra < 2 && text_.substr(at_, 1) == fence.substr(0, 1); ++extra) ++at_;
        return true;
      } else {
        ++at_;
      }
    }
    return true;
  }

  /// A backslash, and in strings of several lines the blanks that it swallows.
  bool escape(bool multi_line) {
    ++at_;
    bool blanks = false;
    while (multi_line && at_ < text_.size() && is_blank(text_[at_])) {
      blanks = true;
      ++at_;
    }
    if (at_ >= text_.size()) return true;
    if (!is_ascii(text_[at_])) return false;
    if (!blanks && text_[at_] != '\n') ++at_;
    return true;
  }

  TextPosition position() const {
    TextPosition found;
    for (const char c : text_.substr(0, at_)) {
      if (c == '\n') {
        ++found.line;
        found.column = 1;
      } else if (starts_character(c)) {
        ++found.column;
      }
    }
    return found;
  }

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::optional<TextPosition> find_bare_non_ascii(std::string_view text) {
  return Scanner(text).scan();
}

}  // namespace dt::config
