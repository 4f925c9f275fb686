// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "config/value.h"

namespace dt::config {

/// The first character that is not ASCII and stands neither in a comment nor in a string, where
/// TOML allows none. toml++ 3.3 must not see it: its test for blanks runs into
/// __builtin_unreachable() for letters as common as U+00E4. `text` is UTF-8.
std::optional<TextPosition> find_bare_non_ascii(std::string_view text);

}  // namespace dt::config
