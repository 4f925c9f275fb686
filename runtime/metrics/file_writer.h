// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/status.h"

namespace dt::metrics {

/// Replaces a file by a newer one again and again, on a thread of its own, since a file system may
/// take any time. Who reads it sees the whole of one text. What cannot be written is told once, and
/// tried again in time.
///
/// The thread holds nothing but its options, so that a file system that hangs keeps nobody from
/// ending.
class FileWriter {
 public:
  struct Options {
    std::string path;
    int64_t interval_ms = 10'000;
    std::function<std::string()> text;  ///< called on the thread, also after the FileWriter is gone
    std::string self;                   ///< "rank 3 (host)", for messages
    LoggerPtr logger;
  };

  /// Writes at once for the first time.
  static Result<std::unique_ptr<FileWriter>> start(Options options);
  /// Writes for the last time, and waits for that within limits.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

 private:
  struct State;
  explicit FileWriter(std::shared_ptr<State> state) : state_(std::move(state)) {}

  const std::shared_ptr<State> state_;
};

/// The file of one rank: {rank} is replaced by its number. Where it is missing although `shared`,
/// the number goes in front of the extension: "dt.prom" becomes "dt.3.prom".
std::string path_of_rank(const std::string& path, int32_t rank, bool shared);

}  // namespace dt::metrics
