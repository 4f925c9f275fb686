// SPDX-License-Identifier: Apache-2.0
#include "config/toml_scan.h"

#include <utility>
#include <vector>

#include "base/status.h"

namespace dt::config {
namespace {

constexpr size_t kDeepest = 32;  // as of JSON in variables

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }
bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::optional<TomlFault> scan() {
    if (text_.substr(0, 3) == "\xef\xbb\xbf") at_ = 3;  // a byte order mark is allowed in front
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (!is_ascii(c)) return bare_non_ascii();
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (c == '"' || c == '\'') {
        if (!string(c)) return bare_non_ascii();
      } else {
        count(c);
        if (depth_ > kDeepest) {
          return fault(format(
              "nested more than %zu levels deep; no key of dt has more than 3 levels", kDeepest));
        }
        ++at_;
      }
    }
    return std::nullopt;
  }

 private:
  /// Follows how deep the text here is nested: each open bracket and each dot of an unfinished item
  /// is one level. The dot of a number or of a date counts too, which is harmless.
  void count(char c) {
    if (c == '[' || c == '{') {
      outer_.push_back(dots_);
      dots_ = 0;
      ++depth_;
    } else if ((c == ']' || c == '}') && !outer_.empty()) {
      depth_ -= dots_ + 1;
      dots_ = outer_.back();
      outer_.pop_back();
    } else if (c == '.') {
      ++dots_;
      ++depth_;
    } else if (c == ',' || (c == '\n' && outer_.empty())) {
      depth_ -= dots_;
      dots_ = 0;
    }
  }

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

  TomlFault bare_non_ascii() const {
    return fault(
        "not valid TOML: a character that is not ASCII may only stand in a string or a comment");
  }

  TomlFault fault(std::string why) const { return {position(), std::move(why)}; }

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
  size_t depth_ = 0;           ///< outer_.size() and the sum of all dots
  size_t dots_ = 0;            ///< of the item at at_
  std::vector<size_t> outer_;  ///< the dots in front of each open bracket
};

}  // namespace

std::optional<TomlFault> find_toml_fault(std::string_view text) { return Scanner(text).scan(); }

}  // namespace dt::config
