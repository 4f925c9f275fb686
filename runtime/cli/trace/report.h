// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/trace/load.h"
#include "cli/trace/verdict.h"

namespace dt::cli::trace {

/// The sentence, then a table of the ranks around the break.
std::string report_text(const Verdict& verdict);
/// {"case": , "sentence": , "ranks": [], "communicator": , "position": , "failure": , "attempt": ,
/// "other_attempts": [], "table": [...], "problems": []}
/// @param loaded what was judged
std::string report_json(const Verdict& verdict, const Loaded& loaded);

/// Chrome's trace format, which Perfetto reads: ranks as processes, communicators as threads.
std::string timeline_json(const std::vector<record::Trace>& traces);

}  // namespace dt::cli::trace
