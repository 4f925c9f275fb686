// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "base/status.h"

namespace dt::config {

/// How a file is to be treated.
struct FilePolicy {
  bool must_exist = false;
  /// It lies where others may write. Whatever belongs neither to the user nor to root is passed
  /// over, and what everybody can write is refused.
  bool check_owner = false;
};

struct FileText {
  std::optional<std::string> text;  ///< absent: the file does not exist or was ignored
  std::string warning;              ///< why it is passed over; empty: it is not
};

/// The whole file; nothing when it does not exist and need not. `shown` is its name in messages.
/// CONFIG: errno, a directory, too large, can be written by everybody.
Result<FileText> read_file(const std::string& path, const std::string& shown, FilePolicy policy);

/// This user may not search a folder on the way to `path`, so it is not known whether it exists.
bool is_out_of_reach(const std::string& path);

}  // namespace dt::config
