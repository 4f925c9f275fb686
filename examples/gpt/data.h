// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpt {

/// Empty: success. Otherwise one line: what, which file, what to do.
using Error = std::string;

/// Licence texts and copyright files that every Debian system has, in one order everywhere.
std::vector<std::string> default_files();

/// Reads the files one after the other, at most `limit_bytes` in all.
Error read_text(const std::vector<std::string>& paths, int64_t limit_bytes, std::string* out);

/// Empty, or why no sequence of length + 1 bytes can be cut from the text.
Error check_length(int64_t text_bytes, int64_t length);

/// FNV-1a over 8-byte words, then the tail bytewise: not cryptographic, catches what disks and
/// ranks get wrong.
uint64_t hash_bytes(const void* data, size_t bytes, uint64_t start = 0xcbf29ce484222325u);

/// Where sequence `index` of the global batch of a step begins, in [0, places): a pure function, so
/// that any number of ranks sees the same batches.
int64_t sequence_start(uint64_t seed, int64_t step, int64_t index, int64_t places);

/// Sequences [first, first + count) of a step's global batch, length + 1 bytes each, back to back.
std::vector<uint8_t> cut_batch(const std::string& text, uint64_t seed, int64_t step, int64_t first,
                               int64_t count, int64_t length);

}  // namespace gpt
