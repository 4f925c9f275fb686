// SPDX-License-Identifier: Apache-2.0
package io.dt;

import java.time.Duration;
import java.util.List;

/** Arguments that this layer refuses, because C could not say it in the words of Java. */
final class Checks {
  private Checks() {}

  /** Says what, where, why; what to do. */
  static InvalidArgumentException refused(String method, String name, String why, String remedy) {
    return DtException.invalidArgument(method + ": " + name + " " + why + "; " + remedy);
  }

  static <T> T notNull(String method, String name, T value) {
    if (value == null) throw refused(method, name, "is null", "give one");
    return value;
  }

  /** C's texts end at a NUL. */
  static String text(String method, String name, String text) {
    int nul = notNull(method, name, text).indexOf(0);
    if (nul < 0) return text;
    throw refused(method, name, "has a NUL at position " + nul, "leave it out");
  }

  /** As text(), but null stays null. */
  static String optionalText(String method, String name, String text) {
    return text == null ? null : text(method, name, text);
  }

  static void atLeast(String method, String name, long value, long least) {
    if (value >= least) return;
    throw refused(method, name, "is " + value, "it must be at least " + least);
  }

  /** A list that has a number for each parameter, or none. */
  static void oneEach(String method, String name, int length, List<Param> params) {
    if (length == 0 || length == params.size()) return;
    throw refused(
        method, name, "has " + length + " numbers for " + params.size() + " parameters",
        "give one each");
  }

  /** Rounded up, so that a short time is not none. Negative: no limit of the caller's. */
  static long milliseconds(String method, Duration time) {
    if (notNull(method, "the duration", time).isNegative()) return -1;
    long seconds = time.getSeconds();
    if (seconds >= Long.MAX_VALUE / 1000 - 1) return Long.MAX_VALUE;
    return seconds * 1000 + (time.getNano() + 999_999) / 1_000_000;
  }

  /** How many bytes one array or buffer has. */
  static int size(String method, long bytes) {
    if (bytes <= Integer.MAX_VALUE) return (int) bytes;
    throw refused(
        method, "the memory", "has " + bytes + " bytes, more than a buffer can hold",
        "take slices, or the address");
  }
}
