// SPDX-License-Identifier: Apache-2.0
#include "config/value.h"

#include <algorithm>
#include <charconv>

#include "base/status.h"

namespace dt::config {
namespace {

/// Bytes of the UTF-8 character at the front of `text`; 0: there is none.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto follows = [&](size_t i, unsigned low, unsigned high) {
    return byte(i) >= low && byte(i) <= high;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return follows(1, 0x80, 0xbf) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    const unsigned low = lead == 0xe0 ? 0xa0 : 0x80;   // no overlong forms
    const unsigned high = lead == 0xed ? 0x9f : 0xbf;  // no surrogates
    return follows(1, low, high) && follows(2, 0x80, 0xbf) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    const unsigned low = lead == 0xf0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xf4 ? 0x8f : 0xbf;  // up to U+10FFFF
    return follows(1, low, high) && follows(2, 0x80, 0xbf) && follows(3, 0x80, 0xbf) ? 4 : 0;
  }
  return 0;
}

std::optional<bool> parse_bool(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');  // Python writes True
  }
  if (lower == "true" || lower == "1") return true;
  if (lower == "false" || lower == "0") return false;
  return std::nullopt;
}

/// from_chars() neither skips blanks nor takes a plus, and knows no locale.
std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// Of an environment variable.
bool is_name(std::string_view text) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  const auto part = [&](char c) { return letter(c) || (c >= '0' && c <= '9'); };
  return !text.empty() && letter(text[0]) && std::all_of(text.begin(), text.end(), part);
}

bool is_word(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) > 0x20 && c != 0x7f;
  });
}

bool is_choice(std::string_view choices, std::string_view value) {
  while (!choices.empty()) {
    const size_t comma = choices.find(", ");
    if (choices.substr(0, comma) == value) return true;
    if (comma == std::string_view::npos) return false;
    choices.remove_prefix(comma + 2);
  }
  return false;
}

}  // namespace

std::optional<Value> make_bool(const Key& key, bool value) {
  if (key.type == Type::kEnum) return make_string(key, value ? "true" : "false");
  if (key.type != Type::kBool) return std::nullopt;
  return Value{value ? "true" : "false", value};
}

std::optional<Value> make_integer(const Key& key, int64_t value) {
  if (key.type != Type::kInteger) return std::nullopt;
  if (value < key.minimum || value > key.maximum) return std::nullopt;
  return Value{std::to_string(value), value};
}

std::optional<Value> make_string(const Key& key, std::string_view value) {
  if (key.type == Type::kEnum) {
    if (!is_choice(key.choices, value)) return std::nullopt;
  } else if (key.type != Type::kString || value.size() > static_cast<size_t>(key.maximum) ||
             value.find('\0') != std::string_view::npos || find_bad_utf8(value)) {
    return std::nullopt;
  }
  return Value{std::string(value), 0};
}

std::optional<Value> make_variables(const Key& key, Variables variables) {
  if (key.type != Type::kVariables) return std::nullopt;
  std::sort(variables.begin(), variables.end());
  std::string text;
  for (size_t i = 0; i < variables.size(); ++i) {
    const auto& [name, value] = variables[i];
    const bool twice = i > 0 && variables[i - 1].first == name;
    if (twice || !is_name(name) || !is_word(value)) return std::nullopt;
    text += (i > 0 ? " " : "") + name + "=" + value;
  }
  if (text.size() > static_cast<size_t>(key.maximum) || find_bad_utf8(text)) return std::nullopt;
  return Value{std::move(text), 0};
}

Variables split_variables(std::string_view text) {
  Variables variables;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    const size_t equals = std::min(word.find('='), word.size());
    if (!word.empty()) {
      variables.emplace_back(word.substr(0, equals),
                             word.substr(std::min(equals + 1, word.size())));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return variables;
}

std::optional<Value> parse_value(const Key& key, std::string_view text) {
  if (key.type == Type::kVariables) return make_variables(key, split_variables(text));
  if (key.type == Type::kBool) {
    const auto value = parse_bool(text);
    return value ? make_bool(key, *value) : std::nullopt;
  }
  if (key.type == Type::kInteger) {
    const auto value = parse_integer(text);
    return value ? make_integer(key, *value) : std::nullopt;
  }
  auto value = make_string(key, text);
  if (value || key.type != Type::kEnum) return value;
  const auto boolean = parse_bool(text);  // 1 and True for a choice "true"
  return boolean ? make_bool(key, *boolean) : std::nullopt;
}

std::string quoted(std::string_view text) {
  constexpr size_t kLongest = 80;
  std::string out = "\"";
  size_t at = 0;
  while (at < text.size() && at < kLongest) {
    const size_t length = utf8_length(text.substr(at));
    const auto byte = static_cast<unsigned char>(text[at]);
    if (length == 0 || byte < 0x20 || byte == 0x7f) {
      out += '?';
      ++at;
    } else {
      out += text.substr(at, length);
      at += length;
    }
  }
  return out + (at < text.size() ? "...\"" : "\"");
}

std::optional<TextPosition> find_bad_utf8(std::string_view text) {
  TextPosition position;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text.substr(at));
    if (length == 0) return position;
    if (text[at] == '\n') {
      ++position.line;
      position.column = 1;
    } else {
      ++position.column;
    }
    at += length;
  }
  return std::nullopt;
}

}  // namespace dt::config
