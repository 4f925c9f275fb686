// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** Receives the log messages of jobs instead of stderr. */
@FunctionalInterface
public interface LogSink {
  /**
   * Takes one message. Runs on threads of dt, also several at once; it must be quick and must not
   * call dt. What it throws is reported on stderr in one line.
   *
   * @param level severity
   * @param message one line without a newline
   */
  void log(LogLevel level, String message);
}
