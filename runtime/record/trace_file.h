// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "record/trace.h"

namespace dt::record {

// The file of one rank, little endian: magic, version u32, payload bytes u64, payload, checksum u64
// (FNV-1a of all before it). docs/trace.md describes the payload.

inline constexpr std::string_view kTraceMagic{"DTTRACE\n", 8};
inline constexpr uint32_t kTraceVersion = 1;
inline constexpr size_t kMaxTraceBytes = size_t{256} << 20;

/// "rank-00003.dttrace"; of a later attempt "rank-00003.attempt-2.dttrace", so that none is lost.
std::string trace_file_name(int32_t rank, int32_t attempt);
bool is_trace_file_name(std::string_view name);

std::string encode(const Trace& trace);
/// CONFIG for bytes that are no trace, a damaged one, or one of another version: says which.
/// Believes nothing that the bytes say: every index, length and time is within its bounds
/// afterwards, and memory grows with the bytes that are there.
Result<Trace> decode_trace(std::string_view bytes);

/// Writes the file of this rank below `directory`, which is made where it is not there; whole or
/// not at all. Its path. Blocks on the file system.
Result<std::string> write_trace(const std::string& directory, const Trace& trace);
/// The error names the file.
Result<Trace> read_trace(const std::string& path);

}  // namespace dt::record
