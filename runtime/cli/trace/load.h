// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "record/trace.h"

namespace dt::cli::trace {

/// The traces of one attempt of one job.
struct Loaded {
  std::vector<record::Trace> traces;  ///< by rank, one of each at most
  std::vector<std::string> problems;  ///< files that are not used: "PATH: why"
};

/// Of all files of a directory those of one job: of most ranks, then the latest. CONFIG where the
/// directory cannot be read or no file can be used; then the text has every problem.
Result<Loaded> load(const std::string& directory);

/// The same of traces that were read, with their paths.
Loaded choose(std::vector<std::pair<std::string, record::Trace>> read);

}  // namespace dt::cli::trace
