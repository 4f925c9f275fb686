// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <utility>

namespace dt {
namespace {

constexpr size_t kMessageLimit = 8192;  // bytes; longer messages are cut

thread_local const Logger* calling_sink_of = nullptr;  // this thread is inside the sink of that one

void write_stderr(LogLevel level, const char* message) {
  static constexpr const char* kNames[] = {"error", "warning", "info", "debug"};
  char line[kMessageLimit + 32];
  const int length =
      snprintf(line, sizeof line, "dt: %s: %s\n", kNames[static_cast<int>(level)], message);
  if (length <= 0) return;
  const size_t bytes =
      static_cast<size_t>(length) < sizeof line ? static_cast<size_t>(length) : sizeof line - 1;
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, bytes);
}

}  // namespace

Logger::Logger(LogLevel level, Sink sink) : level_(level), sink_(std::move(sink)) {}

void Logger::log(LogLevel level, const char* pattern, ...) {
  if (!enabled(level)) return;
  char message[kMessageLimit];
  va_list args;
  va_start(args, pattern);
  vsnprintf(message, sizeof message, pattern, args);
  va_end(args);
  deliver(level, message);
}

void Logger::deliver(LogLevel level, const char* message) {
  if (!sink_) return write_stderr(level, message);
  const bool muted = calls_.with([](Calls& calls) {
    if (!calls.muted) ++calls.under_way;
    return calls.muted;
  });
  if (muted) return;
  const Logger* const before = std::exchange(calling_sink_of, this);
  sink_(level, message);
  calling_sink_of = before;
  const bool last = calls_.with([](Calls& calls) { return --calls.under_way == 0 && calls.muted; });
  if (last) idle_.set();
}

void Logger::mute(const Wait& wait) {
  const bool idle = calls_.with([](Calls& calls) {
    calls.muted = true;
    return calls.under_way == 0;
  });
  if (!idle && calling_sink_of != this) (void)idle_.wait(wait);
}

}  // namespace dt
