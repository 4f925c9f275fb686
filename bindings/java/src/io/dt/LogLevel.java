// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** Severity of a log message. */
public enum LogLevel {
  /** Something failed. */
  ERROR,
  /** Something is not as it should be. */
  WARNING,
  /** What happens. */
  INFO,
  /** For those who look for a fault. */
  DEBUG;

  private static final LogLevel[] ALL = values();

  /** Of dt_log_level; what a newer library may add counts as DEBUG. */
  static LogLevel of(int number) {
    return number >= 0 && number < ALL.length ? ALL[number] : DEBUG;
  }
}
