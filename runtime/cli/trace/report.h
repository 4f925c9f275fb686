// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/trace/load.h"
#include "cli/trace/verdict.h"

namespace dt::cli::trace {

/// The sentence, then a table of the ranks around the break.
std::string report_text(const Verdict& verdict);
/// {"case": , "sentence": , "ranks": [], "communicator": , "position": , "failure": ,
/// "table": [...], "problems": []}
std::string report_json(const Verdict& verdict, const std::vector<std::string>& problems);

/// Chrome's trace format, which Perfetto reads: ranks as processes, communicators as threads.
std::string timeline_json(const std::vector<record::Trace>& traces);

}  // namespace dt::cli::trace
