// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/keys.h"

namespace dt::config {

/// The settings of one dt.toml, every one checked against the table of keys.
struct TomlFile {
  struct Setting {
    const Key* key;
    std::string text;
    int line;
  };
  struct Lock {
    const Key* key;
    int line;
  };
  std::vector<Setting> settings;
  std::vector<Lock> locks;
  std::vector<std::string> warnings;  ///< unknown keys of a newer schema
};

inline constexpr int64_t kSchema = 1;  ///< of dt.toml files that this release writes about

/// Parses `text`. `name` stands in messages: "name:line:column: ...". `trusted`: keys marked
/// trusted_only are allowed. Any bytes give a result or one CONFIG error, never more.
Result<TomlFile> parse_toml(const std::string& text, const std::string& name, bool trusted,
                            std::span<const Key> keys);

/// "unknown key "x"; did you mean "y"?"
std::string unknown_key_text(std::span<const Key> keys, const std::string& name);

}  // namespace dt::config
