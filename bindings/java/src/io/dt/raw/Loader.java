// SPDX-License-Identifier: Apache-2.0
package io.dt.raw;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;

/**
 * Loads the native libraries, once per class loader. They find each other by their own folder, so
 * only the last one is named. A second class loader gets its own libdtjava.so and, by its soname,
 * the libdt that is already there.
 */
public final class Loader {
  private static final String[] LIBRARIES = {"libuv.so.1", "libdt.so.0", "libdtjava.so"};
  private static final String PROPERTY = "dt.library.path";
  private static boolean loaded;
  private static String failure;

  private Loader() {}

  /** Says the same each time when it cannot. */
  public static synchronized void load() {
    if (loaded) return;
    if (failure == null) failure = attempt();
    if (failure != null) throw new UnsatisfiedLinkError(failure);
    loaded = true;
    int built = Raw.built_abi_version();
    if (Raw.abi_version() == built) return;
    loaded = false;
    failure =
        "dt: libdt has ABI " + Raw.abi_version() + ", but this jar was built for ABI " + built
            + "; take both from one release, or leave -D" + PROPERTY + " away";
    throw new UnsatisfiedLinkError(failure);
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
    String folder = "/native/" + platform + "/";
    Path temporary;
    try {
      temporary = Files.createTempDirectory("dt-native-");
    } catch (IOException e) {
      return "dt: cannot make a folder in " + System.getProperty("java.io.tmpdir")
          + " for the native libraries: " + e + "; name a folder that has them by -D" + PROPERTY;
    }
    try {
      for (String name : LIBRARIES) {
        try (InputStream in = Loader.class.getResourceAsStream(folder + name)) {
          if (in == null) {
            return "dt: the jar has no " + folder + name + " (tried only this; it is built for"
                + " linux-x64); name a folder with the libraries by -D" + PROPERTY;
          }
          Files.copy(in, temporary.resolve(name));
        }
      }
      String why = load(temporary.resolve("libdtjava.so"));
      return why == null
          ? null
          : "dt: cannot load " + temporary.resolve("libdtjava.so") + ", copied from the jar's "
              + folder + " (tried only this): " + why
              + "; if the folder forbids execution, choose another by -Djava.io.tmpdir, or name one"
              + " that has the libraries by -D" + PROPERTY;
    } catch (IOException e) {
      return "dt: cannot copy the native libraries to " + temporary + ": " + e
          + "; choose another folder by -Djava.io.tmpdir, or name one that has them by -D"
          + PROPERTY;
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
