// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace dt::cli::bench {

/// Names of integer keys of [host], as "host.slot_bytes", and their values.
using Settings = std::vector<std::pair<std::string, int64_t>>;

/// `text` of a dt.toml with these settings in it: a line that sets one is changed, the others are
/// added to [host], which is made at the end where there is none. All else stays byte for byte.
/// CONFIG: dt cannot read `text`, or cannot change it without touching more. `shown` is its name.
Result<std::string> with_settings(const std::string& text, const Settings& settings,
                                  const std::string& shown);

/// Whether the file could take these settings: asked before minutes of measuring.
Status check_settings_file(const std::string& path, const Settings& settings);

/// The same for the file, which is made where it is missing: readers see the old or the new one,
/// never a part.
Status write_settings(const std::string& path, const Settings& settings);

}  // namespace dt::cli::bench
