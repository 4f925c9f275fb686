// SPDX-License-Identifier: Apache-2.0
// Words: a list is items; an item is pieces of text and brackets, `r[0-1]n[00-02]`; a bracket is
// ranges, `[a-b,c]`. Names are counted before any is made, so that a short text cannot ask for
// billions.
#include "launch/hostlist.h"

#include <algorithm>
#include <cstdint>

namespace dt::launch {
namespace {

constexpr size_t kLongestName = 255;  // of a host, RFC 1035
constexpr size_t kMostDigits = 9;     // fits a uint32_t; Slurm's own numbers are shorter
constexpr size_t kLongestList = 1 << 20;

struct Range {
  uint32_t low = 0;
  uint32_t high = 0;
  size_t width = 0;  ///< digits of the low end, zeros in front included
};

/// Either text or ranges.
struct Piece {
  std::string text;
  std::vector<Range> ranges;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_separator(char c) { return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

class Expander {
 public:
  Expander(std::string_view text, size_t limit) : text_(text), limit_(limit) {}

  Result<std::vector<std::string>> expand() {
    if (text_.size() > kLongestList) return fault(0, "is too long");
    while (at_ < text_.size()) {
      if (is_separator(text_[at_])) {
        ++at_;
        continue;
      }
      DT_TRY(item());
    }
    return std::move(hosts_);
  }

 private:
  Status fault(size_t position, const std::string& why) const {
    constexpr size_t kShown = 100;
    std::string shown;
    for (const char c : text_.substr(0, kShown)) {
      shown += c >= 0x20 && c < 0x7f ? c : '?';
    }
    if (text_.size() > kShown) shown += "...";
    return Status(Code::kConfig, format("host list \"%s\", position %zu: %s", shown.c_str(),
                                        position + 1, why.c_str()));
  }

  Status item() {
    const size_t start = at_;
    std::vector<Piece> pieces;
    while (at_ < text_.size() && !is_separator(text_[at_])) {
      if (text_[at_] == '[') {
        DT_TRY(bracket(pieces));
      } else {
        DT_TRY(plain(pieces));
      }
    }
    uint64_t names = 1;
    size_t longest = 0;
    for (const Piece& piece : pieces) {
      if (piece.ranges.empty()) {
        longest += piece.text.size();
        continue;
      }
      uint64_t count = 0;
      size_t widest = 0;
      for (const Range& range : piece.ranges) {
        count += uint64_t{range.high} - range.low + 1;
        widest = std::max({widest, range.width, std::to_string(range.high).size()});
      }
      longest += widest;
      // Compared before it is multiplied: both factors stay below 2^64 / 2^32.
      if (count > limit_ || names > limit_ / count) return too_many(start);
      names *= count;
    }
    if (names > limit_ - hosts_.size()) return too_many(start);
    if (longest > kLongestName) {
      return fault(start, format("a name is longer than %zu bytes", kLongestName));
    }
    make_names(pieces, 0, "");
    return {};
  }

  Status too_many(size_t position) const {
    return fault(position, format("more than %zu hosts", limit_));
  }

  Status plain(std::vector<Piece>& pieces) {
    const size_t start = at_;
    while (at_ < text_.size() && !is_separator(text_[at_]) && text_[at_] != '[') {
      const char c = text_[at_];
      if (c == ']') return fault(at_, "] without [");
      if (static_cast<unsigned char>(c) <= 0x20 || static_cast<unsigned char>(c) >= 0x7f) {
        return fault(at_, "a character that no host name has");
      }
      ++at_;
    }
    pieces.push_back({std::string(text_.substr(start, at_ - start)), {}});
    return {};
  }

  Status bracket(std::vector<Piece>& pieces) {
    const size_t start = at_++;
    Piece piece;
    for (;;) {
      DT_TRY(range(piece, start));
      if (at_ >= text_.size()) return fault(start, "[ without ]");
      const char c = text_[at_++];
      if (c == ']') break;
      if (c != ',') return fault(at_ - 1, "expected a digit, \"-\", \",\" or \"]\"");
    }
    pieces.push_back(std::move(piece));
    return {};
  }

  Status range(Piece& piece, size_t bracket_start) {
    Range range;
    const size_t start = at_;
    DT_TRY(number(range.low, bracket_start));
    range.width = at_ - start;
    range.high = range.low;
    if (at_ < text_.size() && text_[at_] == '-') {
      ++at_;
      DT_TRY(number(range.high, bracket_start));
    }
    if (range.high < range.low) return fault(start, "the range runs backwards");
    piece.ranges.push_back(range);
    return {};
  }

  Status number(uint32_t& value, size_t bracket_start) {
    const size_t start = at_;
    value = 0;
    while (at_ < text_.size() && is_digit(text_[at_])) {
      if (at_ - start == kMostDigits) {
        return fault(start, format("a number of more than %zu digits", kMostDigits));
      }
      value = value * 10 + static_cast<uint32_t>(text_[at_++] - '0');
    }
    if (at_ > start) return {};
    if (at_ >= text_.size()) return fault(bracket_start, "[ without ]");
    return fault(at_, "expected a number");
  }

  /// The left bracket varies slowest.
  void make_names(const std::vector<Piece>& pieces, size_t index, const std::string& prefix) {
    if (index == pieces.size()) {
      hosts_.push_back(prefix);
      return;
    }
    const Piece& piece = pieces[index];
    if (piece.ranges.empty()) {
      make_names(pieces, index + 1, prefix + piece.text);
      return;
    }
    for (const Range& range : piece.ranges) {
      for (uint32_t i = range.low; i <= range.high; ++i) {
        std::string digits = std::to_string(i);
        if (digits.size() < range.width) digits.insert(0, range.width - digits.size(), '0');
        make_names(pieces, index + 1, prefix + digits);
      }
    }
  }

  const std::string_view text_;
  const size_t limit_;
  size_t at_ = 0;
  std::vector<std::string> hosts_;
};

}  // namespace

Result<std::vector<std::string>> expand_hostlist(std::string_view text, size_t limit) {
  return Expander(text, limit).expand();
}

}  // namespace dt::launch
