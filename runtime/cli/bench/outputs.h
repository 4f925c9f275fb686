// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/bench/options.h"
#include "cli/bench/report.h"

namespace dt::cli::bench {

/// Whether the files that `options` name can be written, or be read: asked before minutes of
/// measuring.
Status check_outputs(const Options& options);

/// Writes the files that `options` name, and prints whether the expectation was held: false when it
/// was not.
Result<bool> finish(const Options& options, const Machine& machine,
                    const std::vector<Measured>& measured);

/// `text` in quotes, as JSON wants it.
std::string json_quoted(const std::string& text);

/// {"host": ..., "cpu": ..., "cores": ..., "date": ...}
std::string machine_json(const Machine& machine);

/// A file is replaced as a whole: one that cannot be written stays as it was.
Status write_text(const std::string& path, const std::string& text);

}  // namespace dt::cli::bench
