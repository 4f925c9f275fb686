// SPDX-License-Identifier: Apache-2.0
// The file of a rank, and all that `dt trace` makes of it. The checksum is put right, so that the
// fuzzer comes to what lies behind it. Properties: no crash, what is read is written to the same
// bytes and read again, every index is within its table.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "cli/trace/report.h"
#include "cli/trace/verdict.h"
#include "record/trace_file.h"

namespace {

using dt::record::Trace;

void require_trace(bool holds) {
  if (!holds) std::abort();
}

/// Length and checksum as docs/trace.md says.
std::string framed(const char* payload, size_t bytes) {
  std::string file(dt::record::kTraceMagic);
  const auto put = [&](uint64_t value, size_t width) {
    for (size_t i = 0; i < width; ++i) file.push_back(static_cast<char>(value >> (8 * i)));
  };
  put(dt::record::kTraceVersion, 4);
  put(bytes, 8);
  file.append(payload, bytes);
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : file) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  put(hash, 8);
  return file;
}

void check_trace(const Trace& trace) {
  for (const auto& entry : trace.recorded.entries) {
    require_trace(entry.communicator < trace.recorded.communicators.size());
  }
  const std::string bytes = encode(trace);
  const auto again = dt::record::decode_trace(bytes);
  require_trace(again.ok() && encode(again.value()) == bytes);
}

}  // namespace

/// The first byte says where the rest is cut into the payloads of two ranks.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  const char* payload = reinterpret_cast<const char*>(data) + 1;
  --bytes;
  (void)dt::record::decode_trace(std::string_view(payload, bytes));
  const size_t cut = bytes * data[0] / 256;
  std::vector<Trace> traces;
  const std::pair<const char*, size_t> parts[] = {{payload, cut}, {payload + cut, bytes - cut}};
  for (const auto& [part, length] : parts) {
    auto trace = dt::record::decode_trace(framed(part, length));
    if (!trace.ok()) continue;
    check_trace(trace.value());
    traces.push_back(std::move(trace).value());
  }
  if (traces.empty()) return 0;
  // As the loader does: of one job, one of each rank.
  if (traces.size() == 2) {
    traces[1].identity.world_size = traces[0].identity.world_size;
    if (traces[1].identity.rank == traces[0].identity.rank ||
        traces[1].identity.rank >= traces[0].identity.world_size) {
      traces.pop_back();
    }
  }
  const dt::cli::trace::Verdict verdict = dt::cli::trace::judge(traces);
  require_trace(!verdict.sentence.empty());
  (void)dt::cli::trace::report_text(verdict);
  (void)dt::cli::trace::report_json(verdict, {});
  (void)dt::cli::trace::timeline_json(traces);
  return 0;
}
