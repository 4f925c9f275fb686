// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "base/status.h"

namespace dt::config {

/// How a file is to be treated.
struct FilePolicy {
  bool must_exist = false;
  bool check_owner = false;  ///< must belong to the user or root and not be world-writable
};

/// The whole file; empty when it does not exist and need not. `shown` is its name in messages.
/// CONFIG: errno, a directory, too large, an owner that is not trusted.
Result<std::optional<std::string>> read_file(const std::string& path, const std::string& shown,
                                             FilePolicy policy);

/// This user may not search a folder on the way to `path`, so it is not known whether it exists.
bool is_out_of_reach(const std::string& path);

}  // namespace dt::config
