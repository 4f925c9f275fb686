// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.time.Duration;

/** Arguments that C cannot take as they are. */
final class Checks {
  private Checks() {}

  /** C's texts end at a NUL. */
  static String text(String function, String name, String text) {
    if (text == null) {
      throw DtException.invalidArgument(function + ": " + name + " is null; give a text");
    }
    int nul = text.indexOf(0);
    if (nul >= 0) {
      throw DtException.invalidArgument(
          function + ": " + name + " has a NUL at position " + nul + "; leave it out");
    }
    return text;
  }

  /** Rounded up, so that a short time is not none. Negative: no limit of the caller's. */
  static long milliseconds(Duration time) {
    if (time.isNegative()) return -1;
    long seconds = time.getSeconds();
    if (seconds >= Long.MAX_VALUE / 1000 - 1) return Long.MAX_VALUE;
    return seconds * 1000 + (time.getNano() + 999_999) / 1_000_000;
  }

  /** Of a handle that a call gets beside its own. */
  static long number(Handle handle) {
    return handle == null ? 0 : handle.number();
  }
}
