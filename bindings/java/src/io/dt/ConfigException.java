// SPDX-License-Identifier: Apache-2.0
package io.dt;

/** A setting is wrong, or the ranks' settings do not fit together. */
public final class ConfigException extends DtException {
  private static final long serialVersionUID = 1L;

  ConfigException(Data data) {
    super(data);
  }
}
