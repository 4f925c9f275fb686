// SPDX-License-Identifier: Apache-2.0
package io.dt.raw;

import java.nio.file.Path;
import java.util.List;

/**
 * Loads the native libraries, once per class loader. They find each other by their own folder, so
 * only the last one is named. A second class loader gets its own libdtjava.so and, by its soname,
 * the libdt that is already there.
 */
public final class Loader {
  /** What each needs comes before it. */
  private static final List<String> LIBRARIES = List.of("libdt.so.0", "libdtjava.so");
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
    // What is mapped needs no file any more.
    String failure =
        NativeFiles.use(
            LIBRARIES, "cannot load the native libraries",
            temporary -> load(temporary.resolve("libdtjava.so")));
    return failure == null
        ? null
        : failure + "; or name a folder that has the libraries by -D" + PROPERTY;
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
}
