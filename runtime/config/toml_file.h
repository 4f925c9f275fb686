// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/keys.h"
#include "config/value.h"

namespace dt::config {

/// The `schema` that this release writes. A file with a higher one may hold keys unknown to us.
constexpr int64_t kSchema = 1;

/// What a file may do, by where it lies.
struct FileRights {
  bool lock = false;    ///< may hold `lock = [...]`
  bool guarded = true;  ///< may set guarded keys
};

struct FileSetting {
  size_t key = 0;  ///< index into the table
  Value value;
  uint32_t line = 0;
};

struct FileContent {
  std::vector<FileSetting> settings;
  std::vector<FileSetting> locks;  ///< with the value that is locked in
  std::vector<std::string> warnings;
};

/// Reads the text of a dt.toml. CONFIG: the first fault in the text as "shown:line:column: ...".
Result<FileContent> parse_toml(std::span<const Key> table, std::string_view text,
                               const std::string& shown, FileRights rights);

}  // namespace dt::config
