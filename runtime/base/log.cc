// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>

namespace dt {
namespace {

constexpr size_t kMessageLimit = 8192;  // bytes; longer messages are cut

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

Logger::Logger(LogLevel level, Sink sink)
    : level_(level), sink_(sink ? std::move(sink) : write_stderr) {}

void Logger::log(LogLevel level, const char* pattern, ...) {
  if (!enabled(level)) return;
  char message[kMessageLimit];
  va_list args;
  va_start(args, pattern);
  vsnprintf(message, sizeof message, pattern, args);
  va_end(args);
  sink_(level, message);
}

}  // namespace dt
