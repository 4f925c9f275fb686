// SPDX-License-Identifier: Apache-2.0
package io.dt.raw;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashSet;
import java.util.Locale;
import java.util.Set;

/**
 * Loads the native libraries, once per class loader. They find each other by their own folder, so
 * only the last one is named. A second class loader gets its own libdtjava.so and, by its soname,
 * the libdt that is already there. So does libdt with an OpenSSL that the program loaded before.
 */
public final class Loader {
  /** What each needs comes before it. */
  private static final String[] LIBRARIES = {
    "libcrypto.so.3", "libssl.so.3", "libdt.so.0", "libdtjava.so"
  };
  private static final String PROPERTY = "dt.library.path";
  private static boolean loaded;
  /** Why a loaded libdt cannot be used. */
  private static String foreign;

  private Loader() {}

  /** Tries again after it could not, but not with a libdt of another ABI: that one stays. */
  public static synchronized void load() {
    if (loaded) return;
    if (foreign == null) {
      String failure = attempt();
      if (failure != null) throw new UnsatisfiedLinkError(failure);
      int built = Raw.built_abi_version();
      if (Raw.abi_version() == built) {
        loaded = true;
        return;
      }
      foreign =
          "dt: libdt has ABI " + Raw.abi_version() + ", but this jar was built for ABI " + built
              + "; take both from one release, or leave -D" + PROPERTY + " away";
    }
    throw new UnsatisfiedLinkError(foreign);
  }

  /** Null, or why it did not work. */
  private static String attempt() {
    String directory = System.getProperty(PROPERTY);
    if (directory != null) {
      Path library = Path.of(directory, "libdtjava.so").toAbsolutePath();
      String why = load(library);
      return why == null
          ? null
          : "dt: cannot load " + library + " (tried only this, as -D" + PROPERTY + "=" + directory
              + " says): " + why;
    }
    String platform =
        System.getProperty("os.name").toLowerCase(Locale.ROOT) + "-"
            + System.getProperty("os.arch").toLowerCase(Locale.ROOT).replace("amd64", "x64");
    String folder = "/io/dt/native/" + platform + "/";
    for (String name : LIBRARIES) {
      if (Loader.class.getResource(folder + name) == null) {
        return "dt: the jar has no " + folder + name + " (tried only this; it is built for"
            + " linux-x64); name a folder with the libraries by -D" + PROPERTY;
      }
    }
    StringBuilder tried = new StringBuilder();
    for (Path parent : parents()) {
      String why = copy(folder, parent);
      if (why == null) return null;
      tried.append("; ").append(why);
    }
    return "dt: cannot load the native libraries, copied from the jar's " + folder + tried
        + "; choose a folder that may be written and allows execution by -Djava.io.tmpdir, or name"
        + " one that has the libraries by -D" + PROPERTY;
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
  private static String copy(String folder, Path parent) {
    Path temporary;
    try {
      temporary = Files.createTempDirectory(parent, "dt-native-");
    } catch (IOException e) {
      return "cannot make a folder in " + parent + ": " + e;
    }
    try {
      for (String name : LIBRARIES) {
        try (InputStream in = Loader.class.getResourceAsStream(folder + name)) {
          Files.copy(in, temporary.resolve(name));
        }
      }
      String why = load(temporary.resolve("libdtjava.so"));
      return why == null ? null : "in " + temporary + ": " + why;
    } catch (IOException e) {
      return "cannot copy to " + temporary + ": " + e;
    } finally {
      remove(temporary); // mapped, or of no use
    }
  }

  private static String load(Path library) {
    try {
      System.load(library.toString());
      return null;
    } catch (UnsatisfiedLinkError e) {
      return e.getMessage();
    } catch (IllegalCallerException e) {
      Module module = Loader.class.getModule();
      throw new UnsatisfiedLinkError(
          "dt: the virtual machine forbids native libraries (" + e.getMessage()
              + "); start java with --enable-native-access="
              + (module.isNamed() ? module.getName() : "ALL-UNNAMED"));
    }
  }

  private static void remove(Path temporary) {
    try {
      for (String name : LIBRARIES) Files.deleteIfExists(temporary.resolve(name));
      Files.deleteIfExists(temporary);
    } catch (IOException e) {
      // A temporary file stays behind: no reason to fail.
    }
  }
}
