// SPDX-License-Identifier: Apache-2.0
package io.dt;

import io.dt.raw.Loader;
import io.dt.raw.Raw;

/** The library itself. */
public final class Dt {
  private Dt() {}

  /**
   * Release of the native library.
   *
   * @return "0.1.0", for example
   */
  public static String version() {
    Loader.load();
    return Raw.version();
  }

  /**
   * ABI of the native library; the one of this jar, or nothing would have been loaded.
   *
   * @return a number that grows
   */
  public static int abiVersion() {
    Loader.load();
    return Raw.abi_version();
  }

  /**
   * How the native library was built.
   *
   * @return one "name: value" line for each of compiler, backends, instruction sets, libraries
   */
  public static String buildInfo() {
    Loader.load();
    return Raw.build_info();
  }

  /**
   * Name of a status number, also of one that {@link Status} does not know.
   *
   * @param number of dt_status
   * @return "DT_ERR_PEER_LOST", for example
   */
  public static String statusName(int number) {
    Loader.load();
    return Raw.status_name(number);
  }
}
