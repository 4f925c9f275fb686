// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/guarded.h"
#include "base/wait.h"

namespace dt {

/// Values equal dt_log_level (asserted in runtime/capi).
enum class LogLevel : int32_t { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

/// Where a job's messages go. One per job, shared by its parts; detached threads may outlive the
/// job. No process-wide logger exists. Any thread.
class Logger {
 public:
  using Sink = std::function<void(LogLevel, const char* message)>;

  /// An empty sink writes "dt: LEVEL: message" lines to stderr, each with one write().
  explicit Logger(LogLevel level = LogLevel::kWarning, Sink sink = {});

  bool enabled(LogLevel level) const { return level <= level_; }
  [[gnu::format(printf, 3, 4)]] void log(LogLevel level, const char* pattern, ...);
  /// What was asked for by a setting of its own: whatever the level is.
  void tell(const std::string& message) { deliver(LogLevel::kInfo, message.c_str()); }
  /// Stops calls of the sink, and waits until the last one has returned or the deadline has passed.
  /// The caller may then free what the sink uses. Inside the sink it does not wait, because it
  /// would wait for itself. Stderr stays as it is.
  void mute(const Wait& wait);

 private:
  struct Calls {
    int64_t under_way = 0;
    bool muted = false;
  };

  void deliver(LogLevel level, const char* message);

  const LogLevel level_;
  const Sink sink_;  // empty: stderr
  // Counted, because no lock may be held during a call. A call is counted before it begins, under
  // the lock, unless it is muted by then; so mute(), which sets that under the same lock, knows
  // whether one is under way, and the last of them ends its wait.
  Guarded<Calls> calls_;
  Event idle_;  // muted, and no call is under way
};

using LoggerPtr = std::shared_ptr<Logger>;

}  // namespace dt
