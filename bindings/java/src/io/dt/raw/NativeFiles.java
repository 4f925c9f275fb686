// SPDX-License-Identifier: Apache-2.0
package io.dt.raw;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.function.Function;

/** Copies native files out of the jar, for as long as they are used. */
final class NativeFiles {
  private NativeFiles() {}

  /**
   * Copies the files to a private folder, uses them and removes them; tries another folder where
   * that does not work.
   *
   * @param purpose what does not work without them: "cannot load the native libraries"
   * @param use null, or why the copies in this folder are of no use
   * @return null, or why it did not work
   */
  static String use(List<String> names, String purpose, Function<Path, String> use) {
    String platform =
        System.getProperty("os.name").toLowerCase(Locale.ROOT) + "-"
            + System.getProperty("os.arch").toLowerCase(Locale.ROOT).replace("amd64", "x64");
    String folder = "/io/dt/native/" + platform + "/";
    for (String name : names) {
      if (NativeFiles.class.getResource(folder + name) == null) {
        return "dt: " + purpose + ": the jar has no " + folder + name
            + " (tried only this; it is built for linux-x64)";
      }
    }
    StringBuilder tried = new StringBuilder();
    for (Path parent : parents()) {
      String why = copy(names, folder, parent, use);
      if (why == null) return null;
      tried.append("; ").append(why);
    }
    return "dt: " + purpose + ", copied from the jar's " + folder + tried
        + "; choose a folder that may be written and allows execution by -Djava.io.tmpdir";
  }

  /** Folders to copy to; some forbid writing or execution. */
  private static Set<Path> parents() {
    Set<Path> parents = new LinkedHashSet<>();
    parents.add(Path.of(System.getProperty("java.io.tmpdir")));
    String runtime = System.getenv("XDG_RUNTIME_DIR");
    if (runtime != null && !runtime.isEmpty()) parents.add(Path.of(runtime));
    String home = System.getProperty("user.home");
    if (home != null && !home.isEmpty()) parents.add(Path.of(home, ".cache"));
    parents.add(Path.of("/dev/shm"));
    return parents;
  }

  /** Null, or where and why it did not work. */
  private static String copy(
      List<String> names, String folder, Path parent, Function<Path, String> use) {
    Path temporary;
    try {
      temporary = Files.createTempDirectory(parent, "dt-native-");
    } catch (IOException e) {
      return "cannot make a folder in " + parent + ": " + e;
    }
    try {
      for (String name : names) {
        try (InputStream in = NativeFiles.class.getResourceAsStream(folder + name)) {
          Files.copy(in, temporary.resolve(name));
        }
      }
      String why = use.apply(temporary);
      return why == null ? null : "in " + temporary + ": " + why;
    } catch (IOException e) {
      return "cannot copy to " + temporary + ": " + e;
    } finally {
      remove(names, temporary);
    }
  }

  private static void remove(List<String> names, Path temporary) {
    try {
      for (String name : names) Files.deleteIfExists(temporary.resolve(name));
      Files.deleteIfExists(temporary);
    } catch (IOException e) {
      // A temporary file stays behind: no reason to fail.
    }
  }
}
