// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "record/trace.h"

namespace dt::cli::trace {

/// The traces of one attempt of one job.
struct Loaded {
  std::vector<record::Trace> traces;    ///< by rank, one of each at most
  std::vector<std::string> problems;    ///< files that are not used: "PATH: why"
  std::vector<int32_t> other_attempts;  ///< of the same job, which have traces here, too; ascending
};

/// Of all files of a directory those of one job (that with the latest trace; of some that ended
/// within a minute, that of most files), and of its last attempt or the one that is asked for.
/// CONFIG where the directory cannot be read or no file can be used; then the text has every
/// problem.
Result<Loaded> load(const std::string& directory, std::optional<int32_t> attempt = {});

/// The same of traces that were read, with their paths.
Loaded choose(std::vector<std::pair<std::string, record::Trace>> read,
              std::optional<int32_t> attempt = {});

}  // namespace dt::cli::trace
