// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "record/trace.h"

namespace dt::cli::trace {

// How the report names things.

/// "allreduce", "split"
std::string kind_text(uint8_t kind);
/// "allreduce #812 \"bucket 3\" on comm \"world\""
std::string operation_text(const record::Trace& trace, const record::Entry& entry);
/// "allreduce of 1024 x f32, sum", what ranks must agree about
std::string signature_text(const record::Entry& entry);
/// "rank 3 (hostB pid 4242)"
std::string rank_text(const record::Trace& trace);
/// "12.3 s", "4.2 ms"
std::string duration_text(int64_t ns);

/// Whether it ended as it should on this rank. What a rank withheld counts: all ranks knew.
inline bool went_well(const record::Entry& entry) {
  return entry.state == record::State::kDone &&
         (entry.status == Code::kOk || entry.status == Code::kInvalidState);
}
/// Since 1970, of a time on the monotonic clock of the trace's host.
inline int64_t realtime_of(const record::Trace& trace, int64_t monotonic_ns) {
  return monotonic_ns + (trace.recorded.realtime_ns - trace.recorded.monotonic_ns);
}
/// How long before the trace was written.
inline int64_t ago_ns(const record::Trace& trace, int64_t monotonic_ns) {
  const int64_t ago = trace.recorded.monotonic_ns - monotonic_ns;
  return ago > 0 ? ago : 0;
}

}  // namespace dt::cli::trace
