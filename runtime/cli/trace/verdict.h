// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "record/trace.h"

namespace dt::cli::trace {

/// What happened, as far as the traces tell.
enum class Case {
  kNothingWrong,
  kMissingCall,     ///< a rank never called what the others are in
  kOtherOrder,      ///< ranks call different operations, or communicators in different order
  kMismatch,        ///< the same operation with another size, dtype, reduction
  kRankDead,        ///< no trace, and others saw it die
  kRankSilent,      ///< no trace, and others wait for it: dead, stopped, or cut off
  kRankSlow,        ///< it came, much later than the others
  kGpuNotFinished,  ///< all called it, and a GPU did not end it
  kUnfinished,      ///< all called it, and it did not end on the host
  kFailure,         ///< the job failed of something else, see the sentence
};
/// "missing call"
const char* case_name(Case found);

/// One rank of the table.
struct Row {
  int32_t rank = 0;
  std::string host;
  int64_t pid = 0;
  bool traced = false;
  std::string last;            ///< the operation that it ended last, as it should; empty: none
  int64_t last_ago_ns = 0;     ///< before its trace was written
  std::string current;         ///< the oldest that it has not ended, or that failed; empty: none
  int64_t current_for_ns = 0;  ///< since the call
  std::string outcome;         ///< of the current one: "queued", "inside", "TIMEOUT"
};

struct Verdict {
  Case found = Case::kNothingWrong;
  std::string sentence;
  std::vector<int32_t> ranks;  ///< who caused it, ascending; empty: nobody in particular
  std::string communicator;    ///< of the operation; empty: none
  std::string failure;         ///< the first one that a rank saw, and which; empty: none
  int64_t position = 0;
  std::vector<Row> rows;  ///< by rank; those without a trace, too
};

struct JudgeOptions {
  /// A rank that comes this much after the last of the others is slow; and what is under way for
  /// less, in traces that were asked for, is no news.
  int64_t slow_ns = 1'000'000'000;
};

/// A pure function of the traces of one job.
Verdict judge(const std::vector<record::Trace>& traces, const JudgeOptions& options = {});

}  // namespace dt::cli::trace
