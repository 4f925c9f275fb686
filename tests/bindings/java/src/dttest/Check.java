// SPDX-License-Identifier: Apache-2.0
package dttest;

import io.dt.DtException;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;

/** A few checks, and a runner of named tests. */
final class Check {
  interface Body {
    void run() throws Exception;
  }

  private static final Map<String, Body> TESTS = new LinkedHashMap<>();

  private Check() {}

  /** @param name says what holds */
  static void test(String name, Body body) {
    if (TESTS.put(name, body) != null) throw new AssertionError(name + " is there twice");
  }

  /** Runs all whose name contains one of the words; ends the program. */
  static void runAll(String[] words) {
    int failed = 0;
    int ran = 0;
    for (Map.Entry<String, Body> each : TESTS.entrySet()) {
      if (words.length > 0 && Arrays.stream(words).noneMatch(each.getKey()::contains)) continue;
      ran++;
      try {
        each.getValue().run();
        System.out.println("passed: " + each.getKey());
      } catch (Throwable e) {
        failed++;
        System.out.println("FAILED: " + each.getKey());
        e.printStackTrace(System.out);
      }
    }
    System.out.println(ran - failed + " passed, " + failed + " failed");
    System.exit(failed > 0 || ran == 0 ? 1 : 0);
  }

  static void that(boolean holds, String what) {
    if (!holds) throw new AssertionError(what);
  }

  static void equal(Object got, Object wanted) {
    if (!got.equals(wanted)) throw new AssertionError("got " + got + ", wanted " + wanted);
  }

  static void near(double got, double wanted, double tolerance) {
    if (!(Math.abs(got - wanted) <= tolerance)) {
      throw new AssertionError("got " + got + ", wanted " + wanted);
    }
  }

  /** The exception of this class whose message contains all parts. */
  static <E extends Throwable> E thrown(Class<E> type, Body body, String... parts)
      throws Exception {
    try {
      body.run();
    } catch (Throwable e) {
      if (!type.isInstance(e)) throw new AssertionError("another class: " + e, e);
      for (String part : parts) {
        that(e.getMessage().contains(part), "\"" + part + "\" is not in: " + e.getMessage());
      }
      if (e instanceof DtException) {
        String said = e.getMessage().replaceAll("\"[^\"]*\"", "");
        that(!said.matches("(?s).*(\\bdt_[a-z]|\\bNULL\\b|->|dt\\.h).*"), "words of C: " + said);
      }
      return type.cast(e);
    }
    throw new AssertionError("nothing was thrown instead of " + type.getSimpleName());
  }
}
