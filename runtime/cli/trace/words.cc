// SPDX-License-Identifier: Apache-2.0
#include "cli/trace/words.h"

#include "base/dtype.h"
#include "base/kinds.h"

namespace dt::cli::trace {

std::string kind_text(uint8_t kind) {
  if (kind == record::kSplitKind) return "split";
  return kind_name(static_cast<Kind>(kind));
}

std::string operation_text(const record::Trace& trace, const record::Entry& entry) {
  std::string text =
      format("%s #%lld", kind_text(entry.kind).c_str(), static_cast<long long>(entry.position));
  if (!entry.label.empty()) text += " \"" + entry.label + "\"";
  text += " on comm \"" + trace.recorded.communicators[entry.communicator].name + "\"";
  if (entry.kind == record::kSendKind) text += format(" to its rank %d", entry.root);
  if (entry.kind == record::kRecvKind) text += format(" from its rank %d", entry.root);
  return text;
}

std::string signature_text(const record::Entry& entry) {
  std::string text = kind_text(entry.kind);
  const auto kind = static_cast<Kind>(entry.kind);
  if (entry.kind == record::kSplitKind || kind == Kind::kBarrier) return text;
  // Counts of these may differ between ranks.
  if (is_irregular(kind)) {
    text += format(" of %s", dtype_name(static_cast<Dtype>(entry.dtype)));
  } else {
    text += format(" of %lld x %s", static_cast<long long>(entry.count),
                   dtype_name(static_cast<Dtype>(entry.dtype)));
  }
  if (reduces(kind)) {
    text += format(", %s", reduce_op_name(static_cast<ReduceOp>(entry.op)));
  }
  if (entry.root >= 0 && !record::is_transfer(entry.kind)) text += format(", root %d", entry.root);
  return text;
}

std::string rank_text(const record::Trace& trace) {
  return format("rank %d (%s pid %lld)", trace.identity.rank, trace.identity.host.c_str(),
                static_cast<long long>(trace.identity.pid));
}

std::string duration_text(int64_t ns) {
  if (ns < 1'000'000) return format("%.0f us", static_cast<double>(ns) / 1e3);
  if (ns < 1'000'000'000) return format("%.1f ms", static_cast<double>(ns) / 1e6);
  return format("%.1f s", static_cast<double>(ns) / 1e9);
}

}  // namespace dt::cli::trace
