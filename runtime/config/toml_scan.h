// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "config/value.h"

namespace dt::config {

struct TomlFault {
  TextPosition at;
  std::string why;
};

/// The first place in `text`, which is UTF-8, that toml++ 3.3 must not see. One is a character that
/// is not ASCII, outside of comments and strings, where TOML allows none: its test for blanks runs
/// into __builtin_unreachable() for letters as common as U+00E4. The other is a key or value nested
/// too deeply: it limits arrays and inline tables, but not the parts of a dotted name, and frees
/// nested tables by recursion, which overflows the stack.
std::optional<TomlFault> find_toml_fault(std::string_view text);

}  // namespace dt::config
