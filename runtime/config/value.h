// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/keys.h"

namespace dt::config {

/// A value that fits its key.
struct Value {
  std::string text;     ///< canonical: parse_value(text) gives the same value
  int64_t integer = 0;  ///< also of a bool
};

/// Reads text as variables and calls give it: integers decimal only, without unit, sign "+" or
/// blanks; true, false, 1 and 0. Empty when it is not what expectation(key) says.
std::optional<Value> parse_value(const Key& key, std::string_view text);

// The same for values that already have a type (from a file).
std::optional<Value> make_bool(const Key& key, bool value);
std::optional<Value> make_integer(const Key& key, int64_t value);
std::optional<Value> make_string(const Key& key, std::string_view value);
/// Empty also when a name is there twice or is none, and when a value is empty or holds blanks.
using Variables = std::vector<std::pair<std::string, std::string>>;
std::optional<Value> make_variables(const Key& key, Variables variables);

/// The way back: what a text of Type::kVariables holds. Without "=" a name has an empty value.
Variables split_variables(std::string_view text);

/// Text for a message: quoted, control characters replaced, cut to a readable length.
std::string quoted(std::string_view text);

/// Line and column, from 1, of the first byte that is not UTF-8.
struct TextPosition {
  uint32_t line = 1;
  uint32_t column = 1;
};
std::optional<TextPosition> find_bad_utf8(std::string_view text);

}  // namespace dt::config
