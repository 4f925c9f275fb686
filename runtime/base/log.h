// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/guarded.h"

namespace dt {

/// Values equal dt_log_level (asserted in runtime/capi).
enum class LogLevel : int32_t { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

/// Where a job's messages go. One per job, shared by its parts; no process-wide logger exists.
/// Any thread.
class Logger {
 public:
  using Sink = std::function<void(LogLevel, const char* message)>;

  /// An empty sink writes "dt: LEVEL: message" lines to stderr, each with one write().
  explicit Logger(LogLevel level = LogLevel::kWarning, Sink sink = {});

  bool enabled(LogLevel level) const { return level <= level_; }
  [[gnu::format(printf, 3, 4)]] void log(LogLevel level, const char* pattern, ...);
  /// What was asked for by a setting of its own: whatever the level is.
  void tell(const std::string& message) { sink_(LogLevel::kInfo, message.c_str()); }

 private:
  const LogLevel level_;
  const Sink sink_;
};

using LoggerPtr = std::shared_ptr<Logger>;

}  // namespace dt
